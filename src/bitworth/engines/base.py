"""Protocols that every engine fulfils, and the plain data that crosses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]
SupportState = Literal["native", "emulated", "absent"]
Optimization = Literal["all", "extended", "basic", "none"]


class EngineError(Exception):
    """An engine refused to build, load or run; the message is the engine's own, in one line."""


@dataclass(frozen=True)
class FormatSupport:
    """Whether an engine computes in a format on this device, and why if not natively."""

    state: SupportState
    reason: str


#: What no ONNX graph can say to any engine.
NOT_IN_ONNX: Mapping[str, FormatSupport] = MappingProxyType(
    dict.fromkeys(
        ("fp8_e4m3 dynamic", "fp8_e5m2 dynamic"),
        FormatSupport("absent", "ONNX has no operator that takes FP8 scales at run time"),
    )
)


@dataclass(frozen=True)
class EngineInfo:
    """What an engine is on this machine.

    Attributes:
        name: the engine's name in study files.
        version: the version that the installed library reports.
        device: the device it runs on, in the engine's or the system's words.
        formats: support by format name; under ``FORMAT weight_only`` or ``FORMAT dynamic`` where
            activations are treated otherwise than the format's name alone implies.
        details: further facts worth recording (instruction sets, providers).
    """

    name: str
    version: str
    device: str
    formats: Mapping[str, FormatSupport]
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineOptions:
    """Options that hold for build, load, timing and quality alike.

    ``Engine.decided`` fills in what was left to the engine; everywhere else both numbers are at
    least 1.

    Attributes:
        threads: threads of one inference in onnxruntime, of all streams together in openvino.
        optimization: graph optimization of the build; an engine without ``extended`` and ``basic``
            takes them as ``all``.
        extra: options that only one engine knows, by name.
        streams: inferences in flight at once; over 1, a sample of ``Runner.time_block`` is the
            wall time in which that many of them were completed, with that many in flight.
        mode: what a sample is: ``host`` the wall time of calls and the wait for their results;
            ``hot`` and ``cold``, on a GPU, its own time between two events around them, back to
            back or each on a flushed cache.
    """

    threads: int
    optimization: Optimization = "all"
    extra: Mapping[str, str] = field(default_factory=dict)
    streams: int = 1
    mode: Literal["host", "hot", "cold"] = "host"


@dataclass(frozen=True)
class LoweredModel:
    """A lowered model as a file.

    Attributes:
        path: the ONNX file, or for torch the lowered module.
        label: the variant's name, for messages.
        precision: the precision that the engine is told to compute unquantized operations in:
            ``fp32`` or ``bf16``.
    """

    path: Path
    label: str
    precision: str = "fp32"


@dataclass(frozen=True)
class LayerTime:
    """Time of one layer of a plan in one profiled call.

    Attributes:
        name: the layer's name in the plan.
        op: operator type in the engine's words.
        kernel: kernel or provider that ran it, in the engine's words.
        precision: element type it ran in, in the engine's words; empty if not told.
        time_ns: time of one call, in ns: the median over the profiled calls. Without the layers
            inside it, of a layer that holds others.
        origins: names of the graph's nodes or values that the layer came from, where known.
        format: the format that it computed in, as recipes call it (``int8``, ``fp32``); empty if
            not told.
        calls: how often it ran in one call of the plan.
        inputs: names of the layers whose results it reads, where known.
    """

    name: str
    op: str
    kernel: str
    precision: str
    time_ns: float
    origins: tuple[str, ...] = ()
    format: str = ""
    calls: float = 1.0
    inputs: tuple[str, ...] = ()


class Runner(Protocol):
    """A loaded plan that runs."""

    def bind(self, inputs: Arrays) -> None:
        """Make ``inputs`` what every following call runs on (resident on the device)."""

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """What is bound now, by name, copied to the host: a run must not have changed it."""

    def run(self) -> None:
        """Run once and wait for the result."""

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Outputs of the last run by name, copied to the host."""

    def time_block(self, iterations: int, inner: int = 1) -> list[int]:
        """Take ``iterations`` samples in ns: the wall time of ``inner`` runs, or with several
        streams that in which as many runs were completed; see ``EngineOptions.streams``.
        """

    def profile(self, calls: int) -> Sequence[LayerTime]:
        """Time of each layer over ``calls`` runs and a first one that does not count, from the
        engine's own profiler.

        Raises:
            EngineError: what the profiler reports cannot be times of layers.
        """

    def precision(self) -> str:
        """Base precision read back from the loaded plan: ``fp32`` or ``bf16``."""


class Plan(Protocol):
    """A built artifact."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the plan as saved."""

    @property
    def note(self) -> str:
        """What is unusual about how this plan was made; empty as a rule."""

    def save(self, path: Path) -> None:
        """Write the plan to ``path`` (through a temporary name)."""

    def load(self) -> Runner:
        """Load the plan's bytes into a runner, without building again."""

    def layers(self) -> tuple[str, ...]:
        """Operator types of the plan's executed layers, in order."""


class Engine(Protocol):
    """What builds and runs."""

    name: str

    def probe(self) -> EngineInfo:
        """Version, device and formats of this engine on this machine."""

    def decided(self, lowered: LoweredModel, options: EngineOptions) -> EngineOptions:
        """``options`` with threads and streams of 0 replaced by the engine's choice for throughput.

        Raises:
            EngineError: the engine refused the model.
        """

    def build(self, lowered: LoweredModel, options: EngineOptions) -> Plan:
        """Build a plan.

        Raises:
            EngineError: the engine refused, with its own message.
        """

    def open(self, path: Path, precision: str, options: EngineOptions) -> Plan:
        """The plan saved at ``path``, to be loaded with the options it was built with."""


def one_line(error: BaseException, limit: int = 300) -> str:
    """The first informative text of an engine's exception, on one line of at most ``limit``."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."
