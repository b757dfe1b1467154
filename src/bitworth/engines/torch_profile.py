"""Layer times of a module from torch.profiler: CUPTI's kernels, or the CPU's operators.

A product of a site is known by the order of its calls and its shape: the profiler reports one
operator event for each product, in the order in which they ran, and the sites' modules run in the
order that the module's own code has. Where the two orders do not agree, a product has no site.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from bitworth.engines.base import EngineError, LayerTime
from bitworth.lowering.torch_layers import (
    EmulatedLinear,
    FusedFirst,
    FusedNext,
    LoweredLinear,
    PointwiseConv,
)
from bitworth.subject.torch_module import site_op

#: Operators that multiply by a weight, and the places of both sides among their inputs.
_PRODUCTS: Mapping[str, tuple[int, int]] = {
    "aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::linear": (0, 1),
    "aten::_addmm_activation": (1, 2), "aten::_scaled_mm": (0, 1), "aten::_scaled_mm_v2": (0, 1),
    "aten::_int_mm": (0, 1), "aten::convolution": (0, 1), "mkl::_mkl_linear": (0, 1),
    "mkldnn::_linear_pointwise": (0, 1), "mkldnn::_convolution_pointwise": (0, 1),
}  # fmt: skip
#: Those of them whose right side is stored (N, K, ...).
_STORED_FIRST = (
    "aten::linear", "aten::convolution", "mkldnn::_linear_pointwise", "mkl::_mkl_linear",
    "mkldnn::_convolution_pointwise",
)  # fmt: skip
_FORMATS = {"aten::_scaled_mm": "fp8_e4m3", "aten::_scaled_mm_v2": "fp8_e4m3",
            "aten::_int_mm": "int8"}  # fmt: skip
_TYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}
_ATTENTION = ("sdpa", "flash", "fmha", "attention")
_NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "softmax")


#: Layers that are no operator of the model.
COMPILED, OVERHEAD = "compiled pointwise code", "torch.compile's own work"


@dataclass(frozen=True)
class _Product:
    """A product that the profiler saw: operator, result's columns and summed length, kernel, ns."""

    op: str
    shape: tuple[int, int]
    kernel: str
    precision: str
    time_ns: float


def profile_calls(
    run: Callable[[], None], module: nn.Module, calls: int, device: str, compiled: bool
) -> list[LayerTime]:
    """Time of each layer in one of ``calls`` runs, after one that does not count.

    Args:
        run: runs the module once.
        module: the module.
        calls: profiled runs.
        device: cpu or cuda.
        compiled: whether parts of it are compiled, so that hooks do not see their modules.

    Raises:
        EngineError: the profiler reports nothing, or calls with other products than the first.
    """
    order = _call_order(run, module, compiled)
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    run()
    with profile(activities=kinds, record_shapes=True) as found:
        for _ in range(calls):
            run()
        if device == "cuda":
            torch.cuda.synchronize()
    events = list(found.events() or ())
    products = _products(events, device)
    layers = _mapped(list(products.values()), order, calls)
    layers += _others(events, products, calls, device)
    if not layers:
        raise EngineError("torch.profiler reports no layer")
    return layers


@dataclass(frozen=True)
class _Call:
    """One run of a module that is a product: the sites that it computes, columns and length."""

    sites: tuple[str, ...]
    shape: tuple[int, int]


def _call_order(run: Callable[[], None], module: nn.Module, compiled: bool) -> list[_Call]:
    """The products of one run in order.

    Found eagerly: a compiled region shows no modules to hooks.
    """
    order: list[_Call] = []
    hooks = []
    known: set[str] = set()
    for name, child in module.named_modules():
        call = _call(name, child)
        # What a fused module or a 1x1 convolution holds is the same product again.
        if call is not None and name.rpartition(".")[0] not in known:
            known.add(name)
            hooks.append(child.register_forward_pre_hook(_note(order, call)))
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return order


def _note(order: list[_Call], call: _Call) -> Callable[..., None]:
    def hook(module: nn.Module, given: Any) -> None:
        order.append(call)

    return hook


def _call(name: str, module: nn.Module) -> _Call | None:
    if isinstance(module, FusedNext):
        return None
    sites = module.names if isinstance(module, FusedFirst) else (name,)
    inner: Any = module.linear if isinstance(module, FusedFirst | PointwiseConv) else module
    if isinstance(inner, LoweredLinear | EmulatedLinear) or site_op(inner):
        weight = inner.weight
        return _Call(sites, (int(weight.shape[0]), int(weight[0].numel())))
    return None


def _products(events: list[Any], device: str) -> dict[int, _Product]:
    """The products among operator events, by the event's ``id``; none lies inside another."""
    found: dict[int, _Product] = {}
    for event in events:  # in order of start: what is around an event comes before it
        if not _is_inside(event, found):
            product = _product(event, device)
            if product is not None:
                found[id(event)] = product
    return found


def _product(event: Any, device: str) -> _Product | None:
    places = _PRODUCTS.get(event.name)
    if places is None or len(event.input_shapes) <= max(places):
        return None
    left, right = (event.input_shapes[i] for i in places)
    if len(left) < 2 or len(right) < 2 or (event.name == "aten::bmm" and right[0] != 1):
        return None  # a product of two activations
    if event.name in _STORED_FIRST:
        n, k = right[0], _size(right[1:])
    else:
        n, k = right[-1], right[-2]
    time_us, kernel = _time(event, device)
    if time_us <= 0:
        return None
    types = getattr(event, "input_dtypes", None) or ()
    told = _TYPES.get(str(types[places[0]]) if len(types) > places[0] else "", "")
    form = _FORMATS.get(event.name, told)
    return _Product(event.name, (int(n), int(k)), kernel, form, time_us * 1e3)


def _is_inside(event: Any, products: Mapping[int, _Product]) -> bool:
    """Whether a product's own event is around this one."""
    parent = event.cpu_parent
    while parent is not None:
        if id(parent) in products:
            return True
        parent = parent.cpu_parent
    return False


def _time(event: Any, device: str) -> tuple[float, str]:
    """Microseconds of an operator with all that it calls, and its longest kernel."""
    if device == "cpu":
        return float(event.cpu_time_total), event.name
    kernels = list(_kernels(event))
    longest = max(kernels, key=lambda kernel: kernel.duration, default=None)
    return sum(k.duration for k in kernels), longest.name if longest is not None else ""


def _kernels(event: Any) -> Iterator[Any]:
    yield from event.kernels
    for child in event.cpu_children:
        yield from _kernels(child)


def _size(shape: Any) -> int:
    size = 1
    for length in shape:
        size *= int(length)
    return size


def _mapped(products: list[_Product], order: list[_Call], calls: int) -> list[LayerTime]:
    """Products with the sites that they are, each over all calls."""
    per_call, odd = divmod(len(products), calls)
    if odd:
        raise EngineError(
            f"torch.profiler reports {len(products)} products in {calls} calls: calls that differ "
            "have no order in common, and the profile is not used"
        )
    first = products[:per_call]
    known: dict[int, _Call] = {}
    matcher = SequenceMatcher(
        None, [p.shape for p in first], [c.shape for c in order], autojunk=False
    )
    for ours, theirs, size in matcher.get_matching_blocks():
        known |= {ours + i: order[theirs + i] for i in range(size)}
    found = []
    for place, product in enumerate(first):
        sites = known[place].sites if place in known else ()
        times = [products[call * per_call + place].time_ns for call in range(calls)]
        found.append(
            LayerTime(
                name=sites[0] if sites else f"product {place}",
                op="Conv" if "conv" in product.op else "MatMul",
                kernel=product.kernel,
                precision=product.precision,
                time_ns=sum(times) / calls,
                origins=sites,
                format=product.precision,
            )
        )
    return _joined(found)


def _joined(layers: list[LayerTime]) -> list[LayerTime]:
    """A module that runs twice in a call is one layer."""
    found: dict[str, LayerTime] = {}
    for layer in layers:
        known = found.get(layer.name)
        if known is None:
            found[layer.name] = layer
        else:
            found[layer.name] = LayerTime(
                **{
                    **vars(layer),
                    "time_ns": known.time_ns + layer.time_ns,
                    "calls": known.calls + 1,
                }
            )
    return list(found.values())


def _others(
    events: list[Any], products: Mapping[int, _Product], calls: int, device: str
) -> list[LayerTime]:
    """Everything that is no product of a weight: kernels by name, or the CPU's operators."""
    totals: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for event in events:
        ours = id(event) in products
        if device == "cuda":
            if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:
                totals[event.name] += event.time_range.elapsed_us()
                counts[event.name] += 1
            for kernel in _kernels(event) if ours else ():
                totals[kernel.name] -= kernel.duration
                counts[kernel.name] -= 1
        elif not ours and not _is_inside(event, products) and event.self_cpu_time_total > 0:
            name = _told(event.name)
            totals[name] += event.self_cpu_time_total
            counts[name] += 1
    return [
        LayerTime(
            name=name,
            op=_kind(name),
            kernel=name,
            precision="",
            time_ns=total * 1e3 / calls,
            calls=counts[name] / calls,
        )
        for name, total in totals.items()
        if total > 0 and counts[name] > 0
    ]


def _told(name: str) -> str:
    """Events of torch.compile itself under two names: what it compiled, and what surrounds it."""
    if name.startswith("## Call CompiledFxGraph"):
        return COMPILED
    overhead = ("Torch-Compiled Region", "TorchDynamo", "Pregraph", "AOTDispatcher")
    return OVERHEAD if name.startswith(overhead) else name


def _kind(name: str) -> str:
    """An operator whose class a split of the time knows."""
    if name == COMPILED:
        return "Eltwise"
    low = name.lower()
    if any(word in low for word in _ATTENTION) and not low.startswith("triton"):
        return "Attention"
    if any(word in low for word in _NORMS):
        return "LayerNormalization"
    if "memcpy" in low or "memset" in low or "copy" in low:
        return "Copy"
    if low.startswith("triton_red") or low.startswith("triton_per"):
        return "ReduceSum"
    if low.startswith("triton_poi") or "elementwise" in low or low.startswith("cpp_fused"):
        return "Eltwise"
    return name.removeprefix("aten::")[:60]
