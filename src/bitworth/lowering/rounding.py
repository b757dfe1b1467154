"""Rounds exactly to narrow float formats with fp32 operators of ONNX, which every runtime has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from bitworth.lowering.scaling import StorageType
from bitworth.lowering.weave import Scope

_FLOAT_DIGITS = 24  # significant bits of fp32


@dataclass(frozen=True)
class FloatGrid:
    """The finite numbers of a binary float format.

    Attributes:
        name: for the names of constants.
        digits: significant bits, the leading one included.
        smallest_exponent: of the smallest normal number; below it the steps stay equal.
        largest: largest finite magnitude.
    """

    name: str
    digits: int
    smallest_exponent: int
    largest: float

    @property
    def splitter(self) -> float:
        """Veltkamp's factor: 2**s + 1 where s significant bits of fp32 are to go."""
        return 2.0 ** (_FLOAT_DIGITS - self.digits) + 1.0

    @property
    def smallest_normal(self) -> float:
        """Smallest normal number."""
        return 2.0**self.smallest_exponent

    @property
    def rounder(self) -> float:
        """Number whose fp32 neighbours are one subnormal step of this format apart."""
        step = self.smallest_exponent - (self.digits - 1)
        return 1.5 * 2.0 ** (step + _FLOAT_DIGITS - 1)


# OCP 8-bit floating point specification (OFP8) 1.0; Microscaling formats (MX) specification 1.0.
E4M3 = FloatGrid("e4m3", 4, -6, 448.0)
E5M2 = FloatGrid("e5m2", 3, -14, 57344.0)
E2M1 = FloatGrid("e2m1", 2, 0, 6.0)
GRIDS: Mapping[StorageType, FloatGrid] = MappingProxyType(
    {"fp8_e4m3": E4M3, "fp8_e5m2": E5M2, "fp4_e2m1": E2M1}
)
_HALVES = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 3.3895313892515355e38}


@dataclass
class Arithmetic:
    """Collects the nodes of a computation in fp32.

    Attributes:
        scope: the graph that the nodes are for.
        name: what node names begin with.
        nodes: so far, in order; not yet in the graph.
    """

    scope: Scope
    name: str
    nodes: list[ir.Node] = field(default_factory=list)

    def op(
        self,
        op_type: str,
        *inputs: ir.Value,
        attributes: Sequence[ir.Attr] = (),
        dtype: ir.DataType = ir.DataType.FLOAT,
        shape: ir.Shape | None = None,
    ) -> ir.Value:
        """Add a node and return its output, shaped as the first input unless told otherwise."""
        node = self.scope.node(op_type, inputs, inputs[0], self.name, attributes, dtype=dtype)
        output = node.outputs[0]
        if shape is not None:
            output.shape = shape
        self.nodes.append(node)
        return output

    def cast(self, x: ir.Value, to: ir.DataType) -> ir.Value:
        """Add a Cast."""
        return self.op("Cast", x, attributes=[ir.AttrInt64("to", to.value)], dtype=to)

    def constant(self, kind: str, number: float) -> ir.Value:
        """Return an fp32 scalar that all nodes of the graph share; ``kind`` names it."""
        wanted = np.array(number, dtype=np.float32)
        found = self.scope.graph.initializers.get(kind)
        # A graph may have the name for something else.
        if found is not None and found.const_value is not None:
            array = found.const_value.numpy()
            if array.dtype == wanted.dtype and array.shape == () and array == wanted:
                return found
        return self.scope.initializer(kind, ir.tensor(wanted))

    def own(self, kind: str, array: ArrayLike) -> ir.Value:
        """Return an initializer of this computation alone, of the array's own type."""
        return self.scope.initializer(f"{self.name}/{kind}", ir.tensor(np.asarray(array)))


def round_to_grid(a: Arithmetic, x: ir.Value, grid: FloatGrid) -> ir.Value:
    """Return ``x``, fp32, rounded half to even to ``grid``, saturating; infinities saturate too.

    Equal to ml_dtypes and to QuantizeLinear for every fp32 number; a NaN stays one; a zero may lose
    its sign. Veltkamp's splitting (Dekker, "A floating-point technique for extending the available
    precision", 1971) rounds normal numbers; adding and subtracting a large number rounds the
    subnormal ones. With s = x held to the subnormal range: split(x) + (rounded(s) - split(s)).
    Where x is normal, s is a power of two, and the bracket is 0. Where it is not, s is x, and split
    cancels. For formats of up to 12 significant bits whose largest number times ``grid.splitter``
    is finite in fp32.
    """
    x = _clip(a, x, grid, "largest", grid.largest)
    small = _clip(a, x, grid, "smallest_normal", grid.smallest_normal)
    rounder = a.constant(f"{grid.name}/rounder", grid.rounder)
    on_grid = a.op("Sub", a.op("Add", small, rounder), rounder)
    normal = _split(a, x, grid)
    return a.op("Add", normal, a.op("Sub", on_grid, _split(a, small, grid)))


def round_to_half(
    a: Arithmetic, x: ir.Value, dtype: ir.DataType, *, saturate: bool = False
) -> ir.Value:
    """Return ``x``, fp32, rounded half to even to FLOAT16 or BFLOAT16, as fp32 again.

    Two Casts: onnxruntime's are exact for both, and as fast as two additions. Numbers beyond the
    largest become infinite, as in a graph of that type, or the largest with ``saturate``. A zero
    keeps its sign.

    Raises:
        KeyError: another type.
    """
    largest = _HALVES[dtype]
    if saturate:
        low, high = (
            a.constant(f"{dtype.name.lower()}/{sign}largest", number)
            for sign, number in (("-", -largest), ("", largest))
        )
        x = a.op("Clip", x, low, high)
    return a.cast(a.cast(x, dtype), ir.DataType.FLOAT)


def power_of_two_below(a: Arithmetic, x: ir.Value) -> ir.Value:
    """Return the largest power of two that is not above ``x``: fp32, positive and finite.

    Splitting to one significant bit rounds to the nearest power of two, which is halved where it is
    too large. Large numbers are shrunk first, so that the splitter does not overflow.
    """
    large = a.op("Greater", x, a.constant("power/large", 2.0**60), dtype=ir.DataType.BOOL)
    one = a.constant("power/one", 1.0)
    shrink = a.op("Where", large, a.constant("power/shrink", 2.0**-64), one)
    shrunk = a.op("Mul", x, shrink)
    scaled = a.op("Mul", shrunk, a.constant("power/splitter", 2.0 ** (_FLOAT_DIGITS - 1) + 1.0))
    near = a.op("Sub", scaled, a.op("Sub", scaled, shrunk))
    above = a.op("Greater", near, shrunk, dtype=ir.DataType.BOOL)
    below = a.op("Mul", near, a.op("Where", above, a.constant("power/half", 0.5), one))
    return a.op("Div", below, shrink)


def _split(a: Arithmetic, x: ir.Value, grid: FloatGrid) -> ir.Value:
    scaled = a.op("Mul", x, a.constant(f"{grid.name}/splitter", grid.splitter))
    return a.op("Sub", scaled, a.op("Sub", scaled, x))


def _clip(a: Arithmetic, x: ir.Value, grid: FloatGrid, kind: str, largest: float) -> ir.Value:
    low = a.constant(f"{grid.name}/-{kind}", -largest)
    return a.op("Clip", x, low, a.constant(f"{grid.name}/{kind}", largest))
