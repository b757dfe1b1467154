"""Random graphs: what holds for any of them, under any recipe."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bitworth.calibration.scales import smallest_scale
from bitworth.engines.cpu import has_int8_dot
from bitworth.engines.registry import engine_named
from bitworth.errors import UserError
from bitworth.lowering.emulate import emulate
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.scaling import DynamicScale, QuantizedSite, TensorScale
from bitworth.measurement.workers import WorkerFailed
from bitworth.recipe import FORMATS, PER_CHANNEL, PER_TENSOR, Quantize
from bitworth.recipe.consistency import fault, onnx_fault, support_key
from bitworth.recipe.granularity import PerBlock
from bitworth.recipe.recipe import Placement, Sign, WeightRange, ZeroPoint
from bitworth.study.cell_stage import CHECK_SLACK
from bitworth.study.lowered_variant import LoweredVariant
from bitworth.subject.saving import serialize

from .bounds import Bounded, output_bounds, site_excess
from .graphs import Choose, RandomGraph, random_graph
from .tools import EMULATION, Array, Case, Engines, case, recipe_for, run_exact

#: No run differs from another: a failure is the product's, not the dice's. A graph follows from one
#: number, which a failure names, and which is not worth shrinking.
settled = settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
seeds = st.integers(0, 2**32 - 1)


def random_recipe(choose: Choose) -> Quantize:
    """An entry that does not contradict itself: format, granularity, scheme, sign, placement."""
    quantized = [f.name for f in FORMATS.values() if f.role == "quantized"]
    while True:
        entry = recipe_for(choose(["int8", "int8", *quantized]))
        if FORMATS[entry.format].block is None:
            entry = replace(entry, weights=choose([PER_CHANNEL, PER_TENSOR, PerBlock(2)]))
        entry = replace(
            entry, scheme=choose([entry.scheme, entry.scheme, "weight_only", "dynamic"])
        )
        if entry.format == "int8":
            entry = replace(entry, weight_range=choose(get_args(WeightRange)))
        if entry.format == "int8" and entry.scheme == "static":
            entry = replace(
                entry, sign=choose(get_args(Sign)), zero_point=choose(get_args(ZeroPoint))
            )
        if entry.scheme == "static":
            entry = replace(entry, placement=choose(get_args(Placement)))
            if choose([True, False, False]):
                # A scale a channel is for the operation that reads it.
                entry = replace(entry, activations=PER_CHANNEL, placement="input_only")
        if fault(entry) is None and onnx_fault(entry) is None:
            return entry


def prepared_case(graph: RandomGraph, folder: Path) -> Case:
    """Prepared and calibrated on the very sample that is tested, so that nothing clips."""
    return case(graph.write(folder / "graph.onnx"), [graph.sample], 13)


def some_sites(subject: Case, choose: Choose) -> list[Any]:
    sites = [s for s in subject.scan.sites if choose([True, True, True, False])]
    return sites or list(subject.scan.sites)


@settled
@given(seed=seeds)
def test_nothing_quantized_is_bit_equal(tmp_path_factory: Any, seed: int) -> None:
    graph = random_graph(random.Random(seed).choice)
    subject = prepared_case(graph, tmp_path_factory.mktemp("graph"))
    prepared = subject.prepared.model
    want = run_exact(serialize(prepared), graph.sample)
    for model in (lower(subject.prepared, []), emulate(subject.prepared, [])):
        got = run_exact(serialize(model), graph.sample)
        assert got.keys() == want.keys()
        assert all(np.array_equal(got[name], want[name]) for name in want)
    given_ = run_exact(graph.model.SerializeToString(), graph.sample)
    for name, value in given_.items():
        assert want[name].dtype == value.dtype
        unit = 2e-2 if value.dtype == np.float16 else 1e-5
        largest = float(np.abs(value.astype(np.float64)).max(initial=0.0))
        assert np.allclose(want[name], value, rtol=unit, atol=unit * max(largest, 1e-3))


def check_scales(subject: Case, variant: LoweredVariant) -> None:
    """Scales are what the recipe says of this sample: the bound is computed from them."""
    statistics = subject.calibration.statistics
    model = variant.graph.prepared.model
    for q in variant.scaled.quantized:
        entry = variant.entries[q.site.id]
        tensor = model.graph.initializers[q.site.weight].const_value
        assert tensor is not None
        if isinstance(q.activation, TensorScale) and q.activation.axis is None:
            found = statistics[q.site.activation]
            low, high = min(found.minimum, 0.0), max(found.maximum, 0.0)
            reach = 255.0 if entry.zero_point == "asymmetric" else 127.0
            if entry.format != "int8":
                reach = FORMATS[entry.format].largest
            elif entry.sign in ("u8", "by_range") and low == 0:
                reach = 255.0
            span = high - low if entry.zero_point == "asymmetric" else max(-low, high)
            if span > 0:
                assert float(q.activation.scale) == pytest.approx(span / reach, rel=0.01)
        weight = q.weight
        if weight is not None and weight.block is None and weight.scale_storage == "float":
            magnitude = np.abs(tensor.numpy().astype(np.float64))
            axis = q.site.weight_axis if entry.weights == PER_CHANNEL else None
            others = tuple(i for i in range(magnitude.ndim) if i != axis)
            amax = magnitude.max() if axis is None else magnitude.max(axis=others)
            limit = weight.limit or FORMATS[entry.format].largest
            alive = amax > 0
            scale = np.asarray(weight.scale, np.float64)
            assert scale.shape == np.shape(amax)
            wanted = np.maximum(np.asarray(amax) / limit, smallest_scale(q.site.dtype))
            assert np.allclose(scale[alive], wanted[alive], rtol=0.01)


def within(got: dict[str, Array], bounds: dict[str, Bounded], slack: float = 0.0) -> bool:
    """Whether every element of every output is as near to the float value as its bound says."""
    for name, bound in bounds.items():
        want = bound.value.astype(np.float64)
        least = 1e-5 * float(np.abs(want).max(initial=0.0))
        off = np.abs(got[name].astype(np.float64) - want)
        if not (off <= bound.error + least + slack).all():  # a NaN is not
            return False
    return True


@settled
@given(seed=seeds)
def test_any_recipe_stays_within_the_bound(tmp_path_factory: Any, seed: int) -> None:
    """Unoptimized, the lowered and the emulated graph are as near as their scales allow."""
    choose: Choose = random.Random(seed).choice
    graph = random_graph(choose)
    subject = prepared_case(graph, tmp_path_factory.mktemp("graph"))
    variant = subject.scaled(random_recipe(choose), some_sites(subject, choose))
    prepared, quantized = variant.graph.prepared, variant.scaled.quantized
    check_scales(subject, variant)
    bounds = output_bounds(prepared, quantized, graph.sample)
    emulated = emulate(prepared, quantized)
    assert within(run_exact(serialize(emulated), graph.sample), bounds)
    if (lowered := written(variant)) is not None:
        assert within(run_exact(serialize(lowered), graph.sample), bounds)
        excess = site_excess(prepared, lowered, quantized, graph.sample)
        assert max(excess.values(), default=0.0) <= 1.0


def written(variant: LoweredVariant) -> ir.Model | None:
    """The lowered graph, where ONNX has a form for it that onnxruntime reads exactly."""
    entries = variant.scaled.quantized
    blocks = [q.activation for q in entries if isinstance(q.activation, DynamicScale)]
    if any(scale.block is not None for scale in blocks):
        with pytest.raises(UserError, match="ONNX has no"):
            lower(variant.graph.prepared, entries)
        return None
    model = lower(variant.graph.prepared, entries)
    wide = any(q.weight is not None and q.weight.limit is None for q in entries)
    dynamic = any(n.op_type == "MatMulInteger" for n in model.graph)
    # onnxruntime 1.32 reads no DequantizeLinear of opset 23 and above, and its MatMulInteger
    # saturates where the CPU has no 8-bit dot product.
    if model.opset_imports[""] >= 23 or (dynamic and wide and not has_int8_dot()):
        return None
    return model


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_any_recipe_runs_in_every_engine(
    engine: str, engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It loads and runs as a study would run it, and no wrong result passes for a right one.

    Right is what is within the bound and one quantization step (an engine moves Q/DQ over
    Transpose and the like). Anything else has to be caught by the check that voids a variant: an
    error of twice the unoptimized one and 1%, or a value that is not finite.
    """
    seen: Counter[str] = Counter()
    formats = engine_named(engine).probe().formats

    @settled
    @given(seed=seeds)
    def every(seed: int) -> None:
        choose: Choose = random.Random(seed).choice
        graph = random_graph(choose)
        subject = prepared_case(graph, tmp_path_factory.mktemp("graph"))
        recipe = random_recipe(choose)
        while formats[support_key(recipe.format, recipe.scheme)].state != "native":
            recipe = random_recipe(choose)
        variant = subject.scaled(recipe, some_sites(subject, choose), engine)
        prepared, quantized = variant.graph.prepared, variant.scaled.quantized
        if not quantized or (model := written(variant)) is None:
            seen["nothing to run"] += 1
            return
        got = engines.attempt(engine, model, graph.sample)
        if isinstance(got, WorkerFailed):
            # A recorded result. In fp32 there is none.
            assert got.kind == "refused"
            assert any(q.site.dtype == "float16" for q in quantized), str(got)
            seen["refused"] += 1
            return
        bounds = output_bounds(prepared, as_run(engine, quantized), graph.sample)
        if within(got, bounds, largest_step(quantized)):
            seen["within"] += 1
            return
        exact = run_exact(serialize(model), graph.sample)
        assert is_caught(got, exact, bounds), recipe
        seen["caught"] += 1

    every()
    assert seen["within"] > 2 * (seen["caught"] + seen["refused"])


def as_run(engine: str, quantized: Sequence[QuantizedSite]) -> list[QuantizedSite]:
    """The sites as the engine computes them: MatMulNBits quantizes its activations itself."""
    own = engine == "onnxruntime"
    return [
        replace(q, activation=DynamicScale("uint8")) if own and q.activation is None else q
        for q in quantized
    ]


def largest_step(quantized: Sequence[QuantizedSite]) -> float:
    scales = [s for q in quantized for s in (q.activation, q.output) if isinstance(s, TensorScale)]
    return max(
        (float(np.max(s.scale)) for s in scales if s.storage in ("int8", "uint8")), default=0
    )


def is_caught(got: dict[str, Array], exact: dict[str, Array], bounds: dict[str, Bounded]) -> bool:
    """Whether the check of a study voids these outputs."""

    def error(outputs: dict[str, Array]) -> float:
        errors = []
        for name, bound in bounds.items():
            want = bound.value.astype(np.float64)
            off = outputs[name].astype(np.float64) - want
            if not np.isfinite(off).all():
                return np.inf
            norm = float(np.linalg.norm(want))
            errors.append(float(np.linalg.norm(off)) / norm if norm else 0.0)
        return max(errors)

    return error(got) > 2 * error(exact) + CHECK_SLACK


#: What can go wrong with one site: its name, and the change to its lowered nodes.
Mutation = Callable[[ir.Model, ir.Node, int], bool]


def _initializer(model: ir.Model, value: ir.Value | None, change: Callable[[Array], Array]) -> None:
    """Give one node an initializer of its own with other numbers."""
    assert value is not None
    assert value.const_value is not None
    array = change(value.const_value.numpy())
    value.const_value = ir.tensor(array.astype(value.const_value.numpy().dtype), name=value.name)
    del model


def _dequantize(node: ir.Node, index: int) -> ir.Node | None:
    value = node.inputs[index]
    producer = value.producer() if value is not None else None
    found = producer is not None and producer.op_type == "DequantizeLinear"
    return producer if found else None


def _scaled(role: str, factor: float) -> Mutation:
    def mutate(model: ir.Model, node: ir.Node, weight_input: int) -> bool:
        index = weight_input if role == "weight" else 1 - weight_input
        found = _dequantize(node, index)
        if found is None:
            return False
        _initializer(model, found.inputs[1], lambda a: a * factor)
        return True

    return mutate


def _wrong_axis(model: ir.Model, node: ir.Node, weight_input: int) -> bool:
    """The axis beside the right one; where sizes differ, onnxruntime refuses it instead."""
    found = _dequantize(node, weight_input)
    if found is None or "axis" not in found.attributes:
        return False
    axis = found.attributes["axis"].as_int()
    stored = found.inputs[0]
    assert stored is not None
    assert stored.shape is not None
    other = axis - 1 if axis > 0 else axis + 1
    if stored.shape[other] != stored.shape[axis]:
        return False
    found.attributes["axis"] = ir.AttrInt64("axis", other)
    return True


def _zero_point(model: ir.Model, node: ir.Node, weight_input: int) -> bool:
    """Quantized around one zero point, dequantized around another."""
    found = _dequantize(node, 1 - weight_input)
    zero = found.inputs[2] if found is not None else None
    if found is None or zero is None or zero.const_value is None:
        return False
    array = zero.const_value.numpy()
    moved = array.astype(np.int64) + (20 if int(array) < 64 else -20)
    name = f"{zero.name}/moved"
    value = ir.Value(
        name=name, shape=zero.shape, type=zero.type,
        const_value=ir.tensor(moved.astype(array.dtype), name=name),
    )  # fmt: skip
    if name in model.graph.initializers:
        return False
    model.graph.register_initializer(value)
    found.replace_input_with(2, value)
    return True


MUTATIONS: dict[str, Mutation] = {
    "activation scale times 10": _scaled("activation", 10.0),
    "activation scale over 10": _scaled("activation", 0.1),
    "weight scale times 10": _scaled("weight", 10.0),
    "weight scale over 10": _scaled("weight", 0.1),
    "wrong axis": _wrong_axis,
    "zero point off": _zero_point,
}


def mutants(kind: str, seed: int, folder: Path) -> Iterator[tuple[str, float]]:
    """Site and largest excess over the bounds of every graph that is wrong in one place."""
    choose: Choose = random.Random(seed).choice
    graph = random_graph(choose, float32=True)
    subject = prepared_case(graph, folder)
    recipe = recipe_for("int8", sign=choose(["s8", "u8"]), zero_point="asymmetric")
    variant = subject.scaled(replace(recipe, placement="input_only"), engine=EMULATION)
    prepared, quantized = variant.graph.prepared, variant.scaled.quantized
    for q in quantized:
        if not subject.calibration.statistics[q.site.activation].amax:
            continue
        model = lower(prepared, quantized)
        node = next(n for n in model.graph if n.name == q.site.node)
        if not MUTATIONS[kind](model, node, q.site.weight_input):
            continue
        yield q.site.id, max(site_excess(prepared, model, quantized, graph.sample).values())


@pytest.mark.parametrize("kind", MUTATIONS)
def test_a_wrong_scale_or_axis_breaks_the_bound(kind: str, tmp_path: Path) -> None:
    """The bound is tight: one scale off by a factor of 10, or one wrong axis, is beyond it."""
    found = [m for seed in range(12) for m in mutants(kind, seed, tmp_path)]
    assert len(found) >= (4 if kind == "wrong axis" else 15)
    missed = [(site, excess) for site, excess in found if excess <= 1.0]
    assert not missed
