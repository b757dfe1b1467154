"""What a variant could give at most, and what it is expected to give, before it is built.

The bound takes from the baseline's own profile the time of the layers that the variant touches and
lets it fall to what the device was measured to need at the least: operations at the highest rate of
any product in the format, bytes at the highest rate of any copy. The expectation takes what a
product of the site's own shape was measured to gain. The first is derived, the second estimated.

Williams, Waterman and Patterson (2009), Roofline: an insightful visual performance model.
Amdahl (1967), Validity of the single processor approach.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bitworth.record.device_profile import DeviceProfile
from bitworth.record.op_classes import (
    ATTENTION,
    CONVERSION,
    MOVEMENT,
    NORMALIZATION,
    POINTWISE,
    PRODUCT,
    REDUCTION,
    op_class,
)
from bitworth.record.part import Part
from bitworth.record.profile_facts import LayerFact

#: Work between products that can be done in a narrower type as well, and moves fewer bytes then.
_BETWEEN = (POINTWISE, REDUCTION, MOVEMENT, NORMALIZATION)


class WorkFact(Part):
    """The matrix products that a site is at the studied shapes, and the elements that it moves."""

    kind: Literal["conv", "gemm", "depthwise"]
    batch: int
    m: int
    n: int
    k: int
    inputs: int
    weights: int
    outputs: int


@dataclass(frozen=True)
class Outlook:
    """What a set of sites in one format can give.

    Attributes:
        share: of the baseline's layer time that these sites take.
        ceiling: speed-up of the whole at the least times that the device allows; derived.
        expected: speed-up of the whole by products measured at the sites' own shapes; estimated;
            None where none was measured.
    """

    share: float
    ceiling: float
    expected: float | None


def outlook(
    layers: Sequence[LayerFact],
    plain_ns: float | None,
    sites: Mapping[str, str],
    work: Mapping[str, WorkFact],
    device: DeviceProfile,
    base: str = "fp32",
    weight_only: Collection[str] = (),
) -> Outlook | None:
    """What the sites can give in the formats named; None without a profile.

    Args:
        layers: the baseline's profile.
        plain_ns: time of a call that was not profiled.
        sites: format by id of the site.
        work: by id of the site.
        device: measured rates, of this device and engine.
        base: format that the baseline computes in.
        weight_only: ids of the sites whose weights alone are in the format. What they compute in
            is the engine's choice, so that the device's highest rate of all limits them.
    """
    total = sum(layer.time_ns for layer in layers)
    if total <= 0:
        return None
    whole = max(total, plain_ns or 0.0)
    least = expected = whole
    touched = 0.0
    known = False
    whole_sites = {i: f for i, f in sites.items() if i not in weight_only}
    near = _neighbours(layers, set(whole_sites))
    for place, layer in enumerate(layers):
        kind = op_class(layer.op, layer.sites)
        if kind in (PRODUCT, ATTENTION):
            for site in layer.sites:
                if site not in sites:
                    continue
                time = layer.time_ns / len(layer.sites)
                touched += time
                limit = _limit(work.get(site), sites[site], device, site in weight_only)
                least -= time - min(time, limit)
                gain = _gain(work.get(site), sites[site], base, device)
                if gain is not None and site not in weight_only:
                    known = True
                    expected -= time * (1 - gain)
        elif kind == CONVERSION:
            least -= layer.time_ns  # a layout change may no longer be needed
        elif kind in _BETWEEN and place in near:
            least -= layer.time_ns * (1 - _narrowest(tuple(whole_sites.values())) / 32)
    expected += _converted(layers, whole_sites, work, device)
    return Outlook(
        share=touched / total,
        ceiling=whole / max(least, whole * 1e-3),
        expected=whole / expected if known else None,
    )


def _limit(work: WorkFact | None, format_: str, device: DeviceProfile, weight_only: bool) -> float:
    """The least time in ns of a site; 0 where nothing limits it that was measured."""
    if work is None:
        return 0.0
    bandwidth = device.bandwidth()
    peak = device.peak() if weight_only else device.peak(format_)
    operations = 2 * work.batch * work.m * work.n * work.k
    compute = operations / peak if peak else 0.0
    width = _bits(format_) / 8
    around = 2 if weight_only else width  # 16 bits: an engine may hold activations so
    moved = work.weights * width + (work.inputs + work.outputs) * around
    return max(compute, moved / bandwidth if bandwidth else 0.0)


def product_ns(work: WorkFact, format_: str, device: DeviceProfile) -> float:
    """Time of a site's product in ns, estimated: at the rate of the nearest measured shape.

    Of a depthwise convolution, and in a format without a measured product, what its bytes take.
    """
    shape = (work.m * work.batch, work.n, work.k)
    time = None if work.kind == "depthwise" else device.time_ns(work.kind, format_, *shape)
    moved = (work.inputs + work.weights + work.outputs) * _bits(format_) / 8
    bandwidth = device.memory_bandwidth()
    return max(time or 0.0, moved / bandwidth if bandwidth else 0.0)


def _gain(work: WorkFact | None, format_: str, base: str, device: DeviceProfile) -> float | None:
    """Time of the site's product in the format over that in the base's; None: not measured."""
    if work is None or work.kind == "depthwise":
        return None
    shape = (work.m * work.batch, work.n, work.k)
    now = device.time_ns(work.kind, format_, *shape)
    was = device.time_ns(work.kind, base, *shape)
    return None if now is None or not was else now / was


def _converted(
    layers: Sequence[LayerFact],
    sites: Mapping[str, str],
    work: Mapping[str, WorkFact],
    device: DeviceProfile,
) -> float:
    """Time to quantize what the sites read from layers that are not quantized."""
    bandwidth = device.memory_bandwidth()
    if not bandwidth:
        return 0.0
    inside = {p for p, layer in enumerate(layers) if set(layer.sites) & set(sites)}
    spent = 0.0
    for place in inside:
        layer = layers[place]
        if layer.inputs and all(p in inside for p in layer.inputs):
            continue
        read = sum(work[s].inputs for s in layer.sites if s in work and s in sites)
        spent += read * (4 + 1) / bandwidth
    return spent


def _neighbours(layers: Sequence[LayerFact], sites: set[str]) -> set[int]:
    """Layers without sites that a quantized site reaches, or that reach one, with none between.

    All of them where the profile does not tell which layers read which.
    """
    if not any(layer.inputs for layer in layers):
        return set(range(len(layers)))
    readers: dict[int, list[int]] = {p: [] for p in range(len(layers))}
    for place, layer in enumerate(layers):
        for source in layer.inputs:
            readers[source].append(place)
    start = [p for p, layer in enumerate(layers) if set(layer.sites) & sites]
    return _reached(layers, start, readers) | _reached(
        layers, start, {p: list(layer.inputs) for p, layer in enumerate(layers)}
    )


def _reached(
    layers: Sequence[LayerFact], start: Sequence[int], edges: Mapping[int, Sequence[int]]
) -> set[int]:
    found: set[int] = set()
    waiting = list(start)
    while waiting:
        for place in edges[waiting.pop()]:
            if place not in found and not layers[place].sites:
                found.add(place)
                waiting.append(place)
    return found


def _bits(format_: str) -> int:
    return _WIDTHS.get(format_, 32)


def _narrowest(formats: Sequence[str]) -> int:
    return min((_bits(f) for f in formats), default=32)


_WIDTHS = {
    "int8": 8, "int4": 4, "fp8_e4m3": 8, "fp8_e5m2": 8, "mxfp8": 8, "nvfp4": 4, "fp16": 16,
    "bf16": 16,
}  # fmt: skip
