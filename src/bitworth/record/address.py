"""Where a value stands in a record, and how it is written in text.

The text is a function of the record and the address alone: what renders a value and what checks
rendered text call the same ``shown``. An address is a JSON pointer (RFC 6901); one that ends in
``~#``, which no pointer does, stands for the key there and not for its value.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote, unquote

from pydantic import BaseModel

from bitworth.record.schema import Record

Form = Callable[[float], str]
_KEY = "~#"


def pointer(*path: str | int) -> str:
    """The JSON pointer (RFC 6901) of a path of keys and indices."""
    return "".join(f"/{str(p).replace('~', '~0').replace('/', '~1')}" for p in path)


def key_pointer(*path: str | int) -> str:
    """The address of the last key of ``path`` itself, such as a metric's name."""
    return pointer(*path) + _KEY


def written(address: str) -> str:
    """An address as rendered text carries it: percent-encoded, so that nothing in it ends that."""
    return quote(address, safe="/~#@:+")


def read(text: str) -> str:
    """The address that ``written`` wrote."""
    return unquote(text)


def resolve(record: BaseModel, address: str) -> object:
    """The value at a JSON pointer, as ``record.model_dump(mode="json")`` would hold it.

    The record is walked, not dumped, as its samples can be large.

    Raises:
        LookupError: nothing lies there.
    """
    tokens = [_unescape(t) for t in address.removesuffix(_KEY).split("/")[1:]]
    node: object = record
    for token in tokens:
        node = _step(node, token, address)
    return tokens[-1] if address.endswith(_KEY) else node


def shown(record: Record, address: str) -> str:
    """The text of the value at ``address``: scaled, rounded and with its unit.

    A list or an object is written as its size, a hash as its first 12 digits.

    Raises:
        LookupError: nothing lies there.
    """
    value = resolve(record, address)
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _form(record, address, value)(value)
    if isinstance(value, str):
        return clean(value[:12] if address.endswith("sha256") else value)
    if isinstance(value, (Mapping, Sequence)):
        return str(len(value))
    raise LookupError(f"{address}: an object is no value")


def clean(text: str) -> str:
    """One line without control or direction characters, whatever a record holds."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def metric_kind(record: Record, metric: str) -> str:
    """The metric's kind; empty for a metric that no variant has."""
    for cell in record.facts.cells:
        for variant in cell.variants:
            if variant.quality is not None and metric in variant.quality.metrics:
                return variant.quality.metrics[metric].kind
    return ""


def loss_unit(record: Record, metric: str) -> str:
    """What a metric's loss is written in: ``points``, ``%`` or its own unit, which is empty."""
    kind = metric_kind(record, metric)
    return "points" if kind in ("binary", "ratio") else "%" if kind == "perplexity" else ""


def _step(node: object, token: str, address: str) -> object:
    if isinstance(node, BaseModel) and token in type(node).model_fields:
        return getattr(node, token)
    if dataclasses.is_dataclass(node) and token in {f.name for f in dataclasses.fields(node)}:
        return getattr(node, token)
    if isinstance(node, Mapping):
        for key, value in node.items():
            if str(key) == token:
                return value
    elif (
        isinstance(node, Sequence)
        and not isinstance(node, str)
        and re.fullmatch(r"0|[1-9]\d*", token)
        and int(token) < len(node)
    ):
        return node[int(token)]
    raise LookupError(f"{address}: the record has nothing there")


def _unescape(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


def _form(record: Record, address: str, value: float) -> Form:
    metric = _metric(record, address)
    if metric is not None:
        return _metric_form(address, loss_unit(record, metric))
    for pattern, form in _FORMS:
        if pattern.search(address):
            return form
    return str if isinstance(value, int) else _four_digits


def _metric(record: Record, address: str) -> str | None:
    """The metric that a score, a loss or a limit belongs to."""
    if found := re.search(r"/(?:scores|resolvable_loss)/([^/]*)$", address):
        return _unescape(found[1])
    if found := re.match(r"(.*/losses/\d+)/(?:loss|low|high)$", address):
        return str(resolve(record, f"{found[1]}/metric"))
    if found := re.match(r"(.*/max_loss/\d+)/1$", address):
        return str(resolve(record, f"{found[1]}/0"))
    return None


def _metric_form(address: str, unit: str) -> Form:
    if "/losses/" in address:
        return _signed_points if unit else _signed
    if "/scores/" in address:
        return _percent_score if unit == "points" else _four_digits
    return _points if unit == "points" else _percent if unit else _four_digits


def _speedup(ratio: float) -> str:
    speed = 1 / ratio
    return f"{speed:.3f}" if speed < 10 else f"{speed:.1f}"


def _signed_points(loss: float) -> str:
    return _no_negative_zero(f"{loss * 100:+.2f}")


def _signed(loss: float) -> str:
    return _no_negative_zero(f"{loss:+.3g}")


def _no_negative_zero(text: str) -> str:
    return text[1:] if float(text) == 0 else text


def _percent_score(score: float) -> str:
    return f"{score * 100:.2f}%"


def _points(loss: float) -> str:
    return f"{loss * 100:.3g} points"


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.3g}%"


def _half_width(ratio: float) -> str:
    return f"±{ratio * 100:.1f}%" if ratio >= 0.001 else f"±{ratio * 100:.1g}%"


def _detectable(ratio: float) -> str:
    return _half_width(ratio - 1)


def _times(ratio: float) -> str:
    return f"{ratio:.3g}×" if ratio < 1000 else f"{ratio:.0f}×"


def _three_digits(value: float) -> str:
    return f"{value:.3g}"


def _four_digits(value: float) -> str:
    return f"{value:.4g}"


def _bytes(count: float) -> str:
    return _scaled(count, ("B", "kB", "MB", "GB", "TB"))


def _duration(ns: float) -> str:
    return _scaled(ns, ("ns", "µs", "ms", "s"))


def _scaled(value: float, units: Sequence[str]) -> str:
    step = 0
    # Three digits: 999.6 would be written as a thousand.
    while step < len(units) - 1 and abs(value) >= 999.5:
        value, step = value / 1000, step + 1
    digits = 0 if step == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {units[step]}"


_FORMS: tuple[tuple[re.Pattern[str], Form], ...] = (
    (re.compile(r"/(time|cycle)_ratio(_low|_high)?$"), _speedup),
    (re.compile(r"/(half_width|widened)_ratio$"), _half_width),
    (re.compile(r"/detectable_ratio$"), _detectable),
    (re.compile(r"/(plan_bytes_ratio|error_over_floor|clock_ratio|call_time_ratio)$"), _times),
    (re.compile(r"/(ceiling|expected)_speedup$"), _times),
    (re.compile(r"/(min_speedup|max_error_over_floor)$"), _four_digits),
    (re.compile(r"/(share_\w+|profile_coverage)$"), _percent),
    (re.compile(r"/((gap|coverage|reached)_ratio|(steal|others)_ratio\w*)$"), _percent),
    (re.compile(r"/timing/(eps|delta|precision|warmup_limit|drop_limit|power)$"), _percent),
    (re.compile(r"/(gate_)?alpha$"), _percent),
    (re.compile(r"(/|_)bytes$"), _bytes),
    (re.compile(r"_ns$"), _duration),
    (re.compile(r"/(rel_l2|max_rel_l2|max_abs|result_change)$"), _three_digits),
)
