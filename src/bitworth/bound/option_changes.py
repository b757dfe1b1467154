"""What to try on an engine before any number format: its own options, by the engine's name.

Each is tried alone. What helps and leaves the result as it is joins the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bitworth.engines.base import EngineOptions, Optimization
from bitworth.engines.cpu import physical_cores, usable_cpus


@dataclass(frozen=True)
class OptionChange:
    """Options that differ from those of the cell.

    Attributes:
        name: what it does, in few words.
        threads: other threads; None: as they are.
        optimization: another level; None: as it is.
        extra: the engine's own options.
    """

    name: str
    threads: int | None = None
    optimization: Optimization | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    def on(self, options: EngineOptions) -> EngineOptions:
        """``options`` with the change."""
        return replace(
            options,
            threads=self.threads or options.threads,
            optimization=self.optimization or options.optimization,
            extra={**options.extra, **self.extra},
        )

    @property
    def settings(self) -> dict[str, str]:
        """What it sets, by key; two changes that share a key cannot join together."""
        found = dict(self.extra)
        if self.threads is not None:
            found["threads"] = str(self.threads)
        if self.optimization is not None:
            found["optimization"] = self.optimization
        return found


#: Samples of a call that a batch is tried with; 0 where an engine has no standard changes.
STANDARD_BATCH: Mapping[str, int] = {"onnxruntime": 4, "openvino": 4}


def standard_changes(
    engine: str, options: EngineOptions, gpu: bool = False
) -> tuple[OptionChange, ...]:
    """The changes worth a try with ``options``; none that sets what they set, or what they are."""
    torch = _torch_gpu if gpu else _torch_cpu
    makers = {"onnxruntime": _onnxruntime, "openvino": _openvino, "torch": torch}
    found = makers[engine](options) if engine in makers else ()
    fixed = options.extra.keys()
    return tuple(c for c in found if not fixed & c.extra.keys() and c.on(options) != options)


def joined(options: EngineOptions, changes: tuple[OptionChange, ...]) -> EngineOptions:
    """``options`` with all ``changes``, which share no setting."""
    for change in changes:
        options = change.on(options)
    return options


def compatible(best_first: tuple[OptionChange, ...]) -> tuple[OptionChange, ...]:
    """Of changes that set the same key the first, all others."""
    kept: list[OptionChange] = []
    taken: set[str] = set()
    for change in best_first:
        if not taken & change.settings.keys():
            kept.append(change)
            taken |= change.settings.keys()
    return tuple(kept)


def _onnxruntime(options: EngineOptions) -> tuple[OptionChange, ...]:
    levels: tuple[Optimization, ...] = ("all", "extended")
    return (
        OptionChange(
            "denormals are zero while it runs", extra={"session.set_denormal_as_zero": "1"}
        ),
        *_threads(options),
        *_affinity(options),
        *(OptionChange(f"optimization level {level}", optimization=level) for level in levels),
    )


def _openvino(options: EngineOptions) -> tuple[OptionChange, ...]:
    return (
        OptionChange(
            "denormals are zero while it runs", extra={"CPU_DENORMALS_OPTIMIZATION": "YES"}
        ),
        *_threads(options),
        # Pinned is the plugin's own choice for latency.
        OptionChange("threads are not pinned", extra={"ENABLE_CPU_PINNING": "NO"}),
    )


def _torch_cpu(options: EngineOptions) -> tuple[OptionChange, ...]:
    return (_FUSED, *_threads(options))


def _torch_gpu(options: EngineOptions) -> tuple[OptionChange, ...]:
    del options
    return (
        _FUSED,
        OptionChange("reductions hold a whole row", extra={"persistent_reductions": "on"}),
        OptionChange("pointwise kernels are tuned", extra={"tune_pointwise": "on"}),
    )


#: Modules that read one tensor, such as q, k and v of an attention.
_FUSED = OptionChange("one GEMM for what reads one tensor", extra={"fuse": "on"})


def _threads(options: EngineOptions) -> tuple[OptionChange, ...]:
    """All cores, a thread a physical core, and one alone, which waits for no other."""
    if options.streams > 1:  # the streams share them out
        return ()
    counts = dict.fromkeys((len(usable_cpus()), physical_cores(), 1))
    return tuple(
        OptionChange(f"{n} {'thread' if n == 1 else 'threads'}", threads=n) for n in counts
    )


def _affinity(options: EngineOptions) -> tuple[OptionChange, ...]:
    """Each of onnxruntime's own threads on a CPU of its own; it counts CPUs from 1."""
    cpus = usable_cpus()
    if options.streams > 1 or not 1 < options.threads <= len(cpus):
        return ()
    pinned = ";".join(str(cpu + 1) for cpu in cpus[1 : options.threads])
    return (
        OptionChange(
            "threads are pinned",
            threads=options.threads,
            extra={"session.intra_op_thread_affinities": pinned},
        ),
    )
