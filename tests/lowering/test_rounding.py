from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import DTypeLike, NDArray

from bitworth.lowering.rounding import (
    E2M1,
    E4M3,
    E5M2,
    Arithmetic,
    FloatGrid,
    power_of_two_below,
    round_to_grid,
    round_to_half,
)
from bitworth.lowering.weave import Scope
from bitworth.subject.saving import serialize

Floats = NDArray[np.float32]
Step = Callable[[Arithmetic, ir.Value], ir.Value]

GRIDS = [
    pytest.param(E4M3, ml_dtypes.float8_e4m3fn, id="e4m3"),
    pytest.param(E5M2, ml_dtypes.float8_e5m2, id="e5m2"),
    pytest.param(E2M1, ml_dtypes.float4_e2m1fn, id="e2m1"),
]
HALVES = [
    pytest.param(ir.DataType.FLOAT16, np.float16, id="float16"),
    pytest.param(ir.DataType.BFLOAT16, ml_dtypes.bfloat16, id="bfloat16"),
]
TORCH = json.loads((Path(__file__).parent / "data" / "torch_rounding.json").read_text())


def identity() -> ir.Model:
    text = '<ir_version: 9, opset_import: ["" : 19]> g (float[N] x) => (float[N] y)'
    return ir.from_proto(onnx.parser.parse_model(text + "{ y = Identity(x) }"))


def through(step: Step, x: Floats, level: str = "ORT_DISABLE_ALL") -> Floats:
    """Run one computation in onnxruntime."""
    model = identity()
    (last,) = model.graph
    arithmetic = Arithmetic(Scope.of(model), "chain")
    result = step(arithmetic, model.graph.inputs[0])
    model.graph.insert_before(last, arithmetic.nodes)
    last.replace_input_with(0, result)
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(serialize(model), options, ["CPUExecutionProvider"])
    y: Floats = session.run(None, {"x": x})[0]
    return y


def rounded(x: Floats, grid: FloatGrid, level: str = "ORT_DISABLE_ALL") -> Floats:
    return through(lambda a, v: round_to_grid(a, v, grid), x, level)


def by_ml_dtypes(x: Floats, dtype: DTypeLike, largest: float) -> Floats:
    with np.errstate(over="ignore"):
        stored = np.clip(x, -largest, largest).astype(dtype)
    return stored.astype(np.float32)


def points(bits: int, dtype: DTypeLike) -> Floats:
    """Every finite number of a format, in order."""
    codes = np.arange(2**bits, dtype=np.uint8 if bits <= 8 else np.uint16).view(dtype)
    values = codes.astype(np.float32)
    return np.unique(values[np.isfinite(values)])


def with_ties(x: Floats) -> Floats:
    """Numbers, the ties between them, and the float32 neighbours of both."""
    middle = ((x[1:].astype(np.float64) + x[:-1]) / 2).astype(np.float32)
    x = np.concatenate([x, middle])
    sides = [np.nextafter(x, np.float32(end)) for end in (np.inf, -np.inf)]
    return np.concatenate([x, *sides])


@pytest.mark.parametrize(("grid", "dtype"), GRIDS)
@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_every_code_and_tie(grid: FloatGrid, dtype: DTypeLike, level: str) -> None:
    codes = points(4 if grid is E2M1 else 8, dtype)
    assert codes[-1] == grid.largest
    beyond = np.float32(grid.largest) * np.array([1.01, 1.1, 1.25, 1.5, 2, 1e5], np.float32)
    extremes = np.array([0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, np.inf, -np.inf], np.float32)
    x = np.concatenate([with_ties(codes), beyond, -beyond, extremes])
    assert np.array_equal(rounded(x, grid, level), by_ml_dtypes(x, dtype, grid.largest))
    assert np.array_equal(rounded(codes, grid), codes)


@pytest.mark.parametrize(("grid", "dtype"), GRIDS)
def test_every_mantissa(grid: FloatGrid, dtype: DTypeLike) -> None:
    # Normal numbers round alike in every binade. Around the smallest normal number the two ways of
    # rounding meet, and below it each binade has a step less.
    mantissas = np.arange(0, 2**23, 5, dtype=np.uint32)
    for exponent in range(grid.smallest_exponent - grid.digits - 1, grid.smallest_exponent + 2):
        x = (mantissas | np.uint32((exponent + 127) << 23)).view(np.float32)
        assert np.array_equal(rounded(x, grid), by_ml_dtypes(x, dtype, grid.largest))


@pytest.mark.parametrize(("grid", "dtype"), GRIDS)
def test_any_float(grid: FloatGrid, dtype: DTypeLike) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    assert np.array_equal(rounded(x, grid), by_ml_dtypes(x, dtype, grid.largest))
    assert np.isnan(rounded(np.array([np.nan], np.float32), grid)).all()


def test_e2m1_by_its_specification() -> None:
    """Independent of ml_dtypes: OCP MX 1.0, table 5, and IEEE 754's half to even."""
    codes = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]
    x = with_ties(np.array([float(c) for c in codes], np.float32))
    x = np.abs(x[np.abs(x) <= 6])

    def nearest(value: float) -> float:
        gaps = [abs(Fraction(value) - code) for code in codes]
        best = [i for i, gap in enumerate(gaps) if gap == min(gaps)]
        return float(codes[best[0] if len(best) == 1 or best[0] % 2 == 0 else best[1]])

    assert rounded(x, E2M1).tolist() == [nearest(float(v)) for v in x]
    assert rounded(-x, E2M1).tolist() == [-nearest(float(v)) for v in x]


@pytest.mark.parametrize(
    ("grid", "name"), [(E4M3, "float8_e4m3fn"), (E5M2, "float8_e5m2")], ids=["e4m3", "e5m2"]
)
def test_torch_differs_beyond_the_largest_alone(grid: FloatGrid, name: str) -> None:
    """torch 2.14 saturates E4M3 as we do; of E5M2 it makes an infinity of what rounds beyond."""
    found = TORCH["formats"][name]
    x = np.frombuffer(bytes.fromhex(found["inputs"]), "<f4")
    values = np.frombuffer(bytes.fromhex(found["values"]), "<f4")
    theirs = values[np.frombuffer(bytes.fromhex(found["stored"]), np.uint8)]
    ours = rounded(x, grid)
    infinite = np.isinf(theirs)
    assert np.array_equal(ours[~infinite], theirs[~infinite], equal_nan=True)
    assert infinite.any() == (grid is E5M2)
    assert (np.abs(x[infinite]) >= 61440).all()  # half a step above 57344
    assert np.array_equal(ours[infinite], np.copysign(57344, theirs[infinite]))


@pytest.mark.parametrize(("kind", "dtype"), HALVES)
@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_half_precision(kind: ir.DataType, dtype: DTypeLike, saturate: bool, level: str) -> None:
    codes = points(16, dtype)
    random = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    edges = np.array([-0.0, np.inf, -np.inf, np.nan, 65519.99, 65520, 3.4e38], np.float32)
    with np.errstate(over="ignore"):
        x = np.concatenate([with_ties(codes), random.view(np.float32), edges])
    y = through(lambda a, v: round_to_half(a, v, kind, saturate=saturate), x, level)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = x.astype(dtype).astype(np.float32)
    if saturate:
        wanted = np.clip(wanted, -codes[-1], codes[-1])
    assert np.array_equal(y, wanted, equal_nan=True)
    known = ~np.isnan(x)
    assert np.array_equal(np.signbit(y[known]), np.signbit(x[known]))


def test_half_precision_is_two_types() -> None:
    with pytest.raises(KeyError):
        through(lambda a, v: round_to_half(a, v, ir.DataType.FLOAT8E5M2), np.ones(1, np.float32))


def test_powers_of_two() -> None:
    """Every binade, subnormal ones too, at its ends and between; every mantissa of one."""
    exponents = np.arange(-149, 128)
    ones = np.ldexp(1.0, exponents).astype(np.float32)
    x = [ones, np.nextafter(ones, np.float32(np.inf)), np.nextafter(ones, np.float32(0))]
    x += [(ones * np.float32(f)) for f in (1.25, 1.4999999, 1.5, 1.5000001, 1.75)]
    x.append((np.arange(0, 2**23, 3, dtype=np.uint32) | np.uint32(127 << 23)).view(np.float32))
    flat = np.concatenate(x)
    flat = flat[flat > 0]
    wanted = np.ldexp(1.0, np.frexp(flat)[1] - 1).astype(np.float32)
    assert np.array_equal(through(power_of_two_below, flat), wanted)


def test_constants_are_shared_unless_the_name_is_taken() -> None:
    def twice(a: Arithmetic, v: ir.Value) -> ir.Value:
        return round_to_grid(a, round_to_grid(a, v, E4M3), E4M3)

    x = with_ties(points(8, ml_dtypes.float8_e4m3fn))
    model = identity()
    a = Arithmetic(Scope.of(model), "chain")
    twice(a, model.graph.inputs[0])
    assert len(model.graph.initializers) == 6

    def taken(a: Arithmetic, v: ir.Value) -> ir.Value:
        a.scope.initializer("e4m3/largest", ir.tensor(np.float32(3)))
        a.scope.initializer("e4m3/splitter", ir.tensor(np.ones(2, np.float32)))
        return twice(a, v)

    assert np.array_equal(through(taken, x), through(twice, x))
