"""Why two scales of one tensor differ, or why one side alone quantizes it: rules, checked on facts.

Each side's scale must follow from the values seen by its own rule. A difference is explained when
both do; it stays unknown otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.results import Facts, Role

UNKNOWN = "unknown"

#: Relative difference up to which two scales agree, and up to which a rule gives a scale.
EQUAL = 1e-6
#: fp32 sums in another order move an extreme value by this much at most.
LAST_DIGITS = 1e-4

#: onnxruntime keeps a bias in int32, with the product of both scales as its own.
INT32 = 2.0**31 - 1
INT32_MARGIN = 1.0001
INT32_BIAS = (
    "int32 bias: where a channel's bias would overflow int32 both sides raise the weight's scale, "
    "the peer to the edge of the range, Bitworth to half of it"
)
ROOM = (
    "int32 bias: Bitworth raises the scale of a channel whose bias onnxruntime would let overflow "
    "int32; the peer leaves it"
)
#: Where a scale of fp32 becomes denormal.
SMALLEST = float(np.finfo(np.float32).smallest_normal)
TINY = (
    "next to nothing: of a channel whose scale would underflow the peer makes zeros by a scale of "
    "1, Bitworth keeps it under the smallest scale there is"
)
ZEROS = (
    "zeros: the scale of a channel of zeros is 1 for the peer; Bitworth takes the one at which the "
    "channel's bias is finest as int32"
)
UNFOLDED = "unfolded: the peer quantizes the weight before the normalization behind it is folded in"
ONE_SCALE = "one scale for the weight: the peer has none per channel here"
LEFT_OUT = "the peer leaves the operation out"
UNIT = "fixed range: the peer takes 0 to 1 behind a Softmax"
SAME_RULE = "last digits: one rule, on values whose fp32 sums were added in another order"

#: Rules that need no more than a tensor's facts; each returns a scale.
Rule = Callable[[Facts], float | None]


def _symmetric(facts: Facts) -> float:
    return max(-facts.low, facts.high) / 127


def _asymmetric(facts: Facts) -> float:
    return (max(facts.high, 0.0) - min(facts.low, 0.0)) / 255


def _symmetric_by_sample(facts: Facts) -> float | None:
    if facts.entropy_by_sample is None:
        return None
    low, high = facts.entropy_by_sample
    return max(-low, high) / 127


def _asymmetric_of_all(facts: Facts) -> float | None:
    if facts.entropy_of_all is None:
        return None
    low, high = facts.entropy_of_all
    return (max(high, 0.0) - min(low, 0.0)) / 255


def _fp8(facts: Facts) -> float:
    return max(-facts.low, facts.high) / 448


def _fp8_inverted(facts: Facts) -> float:
    return _symmetric(facts) * 448 / 127


def _fp8_deviation(facts: Facts) -> float | None:
    return None if facts.deviation is None else facts.deviation / E4M3_DEVIATION


def _e4m3_deviation() -> float:
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return float(np.std(codes[np.isfinite(codes)]))


#: A deviation that is read off a histogram is uncertain by half a bin; that of the peer's method.
DEVIATION_BINS = 2048


#: Standard deviation of E4M3's own 254 finite values: what onnxruntime divides a tensor's by.
E4M3_DEVIATION = _e4m3_deviation()

RULES: Mapping[str, Rule] = {
    "symmetric": _symmetric,
    "asymmetric": _asymmetric,
    "symmetric entropy, 128 bins by sample": _symmetric_by_sample,
    "asymmetric entropy, 128 bins": _asymmetric_of_all,
    "fp8": _fp8,
    "fp8 inverted": _fp8_inverted,
    "fp8 deviation": _fp8_deviation,
}

#: What it means that the peer's scale follows from this rule where Bitworth's does not.
DIFFERS_BY_RULE = {
    "symmetric entropy, 128 bins by sample": (
        "entropy, 128 bins: the peer's scale is what 128 bins and 128 levels, zeros counted, "
        "extended from sample to sample, give for these values"
    ),
    "asymmetric entropy, 128 bins": (
        "entropy, 128 bins: the peer's scale is what 128 bins and 128 levels, zeros counted, give "
        "for these values"
    ),
    "fp8 inverted": "fp8 inverted: the peer's scale is amax / 127 x 448 / 127, not amax / 448",
    "fp8 deviation": (
        "fp8 deviation: the peer's scale is the tensor's standard deviation over that of E4M3's "
        "own values, whatever the largest magnitude"
    ),
}


@dataclass(frozen=True)
class Cause:
    """Why a row is as it is.

    Attributes:
        text: the cause; ``UNKNOWN`` where no rule holds.
        other: the other tensor that it is about, if any.
    """

    text: str
    other: str = ""


def relative(one: float, other: float) -> float:
    """How far apart two scales are, over the larger one."""
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if largest else 0.0


def of_scales(
    ours: float,
    theirs: float,
    tensor: str,
    their_rule: str,
    facts: Mapping[str, Facts],
    related: Mapping[str, Sequence[str]],
) -> Cause:
    """Why the two scales of an activation differ.

    Args:
        ours, theirs: the scales.
        tensor: its name.
        their_rule: name of the peer's rule.
        facts: by name of the tensor.
        related: by name, tensors that operators connect with it which move values or join tensors.
    """
    rule = RULES[their_rule]
    apart = relative(ours, theirs)
    mine = rule(facts[tensor])
    follows = mine is not None and relative(mine, theirs) <= _certain(facts[tensor], their_rule)
    if follows and their_rule in DIFFERS_BY_RULE:
        return Cause(DIFFERS_BY_RULE[their_rule])
    if follows and apart <= LAST_DIGITS:
        return Cause(SAME_RULE)
    unit = rule(Facts(0.0, 1.0))
    inside = facts[tensor].low >= 0.0 and facts[tensor].high <= 1.0
    if inside and unit is not None and relative(unit, theirs) <= LAST_DIGITS:
        return Cause(UNIT)
    for other in related.get(tensor, ()):
        if other in facts:
            wanted = rule(facts[other])
            if wanted is not None and relative(wanted, theirs) <= LAST_DIGITS:
                return Cause("shared: the peer gives it the scale of a neighbour", other)
    union = [facts[n] for n in (tensor, *related.get(tensor, ())) if n in facts]
    if len(union) > 1 and their_rule in ("symmetric", "asymmetric", "fp8 inverted"):
        wide = Facts(low=min(f.low for f in union), high=max(f.high for f in union))
        wanted = rule(wide)
        if wanted is not None and relative(wanted, theirs) <= LAST_DIGITS:
            return Cause("shared: the peer gives one scale to all that a Concat joins")
    return Cause(UNKNOWN)


def _certain(facts: Facts, rule: str) -> float:
    """How near a rule comes to a scale that follows from it."""
    if rule != "fp8 deviation" or not facts.deviation:
        return LAST_DIGITS
    # Values next to an edge fall on either side of it by their last digits.
    return max(LAST_DIGITS, max(-facts.low, facts.high) / DEVIATION_BINS / facts.deviation)


@dataclass(frozen=True)
class Weight:
    """What a weight's scales may follow from.

    Attributes:
        facts: extremes over all channels, and the standard deviation.
        plain: scale of each channel, or of all, from its largest magnitude alone; 1 of zeros.
        dead: which are zeros.
        unfolded: amax / 127 of each channel before normalizations are folded in; None where the
            given model has no such weight.
        bias: of the same operation, if it has one.
        input_scale: the peer's scale of its activation input, if there is one.
    """

    facts: Facts
    plain: NDArray[np.float64]
    dead: NDArray[np.bool_]
    unfolded: NDArray[np.float64] | None = None
    bias: NDArray[np.float32] | None = None
    input_scale: float | None = None


def of_weights(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], weight: Weight, rule: str
) -> tuple[Cause, float | None]:
    """Why the scales of a weight differ, and how far off the peer's the rule is that says so.

    Args:
        ours, theirs: one scale, or one a channel.
        weight: what they may follow from.
        rule: name of the peer's rule for activations.
    """
    for text, wanted in _weight_rules(ours, weight, rule):
        if wanted.shape == theirs.shape:
            off = float(np.max(_off(wanted, theirs)))
            if off <= LAST_DIGITS:
                return Cause(text), off
    if weight.plain.shape != theirs.shape:
        return Cause(UNKNOWN), None
    # Each channel by the first rule that gives its scale; none may be left.
    left, texts, worst = np.ones(theirs.shape, np.bool_), [], 0.0
    for text, wanted in _channel_rules(weight, rule):
        off_by = _off(wanted, theirs)
        fits = left & (off_by <= LAST_DIGITS)
        differs = fits & (_off(ours, theirs) > EQUAL)
        if differs.any():
            texts.append(text)
        worst = max(worst, float(off_by[fits].max(initial=0.0)))
        left &= ~fits
    return (Cause(UNKNOWN), None) if left.any() else (Cause("; ".join(texts)), worst)


def _off(wanted: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.abs(wanted - theirs) / np.maximum(wanted, theirs))


def _channel_rules(weight: Weight, rule: str) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """What a peer's scale of a channel may be; NaN where a rule says nothing of it."""
    inverted = rule == "fp8 inverted"
    one = np.full(weight.plain.shape, 448.0 / 127.0 if inverted else 1.0)
    yield ZEROS, np.where(weight.dead, one, np.nan)
    yield TINY, np.where(~weight.dead & (weight.plain <= SMALLEST), one, np.nan)
    if inverted:
        yield DIFFERS_BY_RULE[rule], weight.plain * (448.0 / 127.0) ** 2
        return
    yield ROOM, weight.plain
    if weight.bias is not None and weight.input_scale is not None:
        magnitude = np.abs(weight.bias.astype(np.float64))
        floor = INT32_MARGIN * magnitude / INT32 / weight.input_scale
        if weight.plain.size == 1:
            floor = floor.max(keepdims=True)
        if floor.shape == weight.plain.shape:
            yield INT32_BIAS, np.maximum(weight.plain, floor)


def _weight_rules(
    ours: NDArray[np.float64], weight: Weight, rule: str
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """What a peer's scales may be, with the cause that it then is."""
    if rule == "fp8 inverted":
        yield DIFFERS_BY_RULE[rule], ours * (448.0 / 127.0) ** 2
        if weight.unfolded is not None:
            yield f"{UNFOLDED}; fp8 inverted", weight.unfolded * 448.0 / 127.0
        return
    if rule == "fp8 deviation":
        assert weight.facts.deviation is not None
        yield DIFFERS_BY_RULE[rule], np.array([weight.facts.deviation / E4M3_DEVIATION])
        return
    yield ONE_SCALE, np.array([_symmetric(weight.facts)])
    yield SAME_RULE, ours
    if weight.unfolded is not None:
        yield UNFOLDED, weight.unfolded


def of_theirs_alone(role: Role) -> Cause:
    """Why the peer alone quantizes an activation."""
    if role.product:
        return Cause("product of two activations: Bitworth leaves it alone unless asked")
    if not role.prepared:
        return Cause("no such value: it lies between an operation and what is folded into it")
    if role.head:
        return Cause("head: only scores of the output lie behind it, which Bitworth keeps in float")
    if role.site_output:
        return Cause("in front of an activation function or bias, behind which Bitworth quantizes")
    if not role.site_input:
        return Cause("no site: only operators without a weight read it")
    return Cause(UNKNOWN)


def of_ours_alone(role: Role) -> Cause:
    """Why Bitworth alone quantizes an activation."""
    if role.site_input and role.left_out:
        return Cause("the peer leaves out the operations that read it")
    if role.site_input:
        return Cause("the peer quantizes it elsewhere: behind a Reshape, a Transpose or a copy")
    if role.behind_site:
        return Cause("output of a site: the peer quantizes inputs alone")
    return Cause(UNKNOWN)
