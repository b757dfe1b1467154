"""How much a site computes and moves at given shapes: the matrix products that it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from bitworth.recipe.site import Site


@dataclass(frozen=True)
class SiteWork:
    """The matrix products that a site is, and the values that it reads and writes.

    A convolution is an implicit GEMM: a row for each output position, a column for each output
    channel of a group, summed over the input channels of a group and the kernel.

    Attributes:
        kind: ``conv``, ``gemm``, or ``depthwise``: no channels are summed, and it is no product.
        batch: independent products: groups of a convolution, leading dimensions of an attention.
        m, n, k: rows, columns, and what is summed over, of each.
        inputs, weights, outputs: elements read of the activations, of the weight, and written.
    """

    kind: Literal["conv", "gemm", "depthwise"]
    batch: int
    m: int
    n: int
    k: int
    inputs: int
    weights: int
    outputs: int

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k


def site_work(site: Site, shapes: Mapping[str, Sequence[int]]) -> SiteWork | None:
    """The work of ``site`` where its values have ``shapes``; None where one is not known.

    Args:
        site: what computes.
        shapes: by name of the value.
    """
    read, written = shapes.get(site.activation), shapes.get(site.output)
    other = shapes.get(site.second) if site.second else ()
    if read is None or written is None or other is None or 0 in (*read, *written, *other):
        return None
    inputs = prod(read) + (prod(other) if site.second else 0)
    weights = prod(site.weight_shape) if site.weight else 0
    batch, m, n, k = _product(site, read, written)
    kind: Literal["conv", "gemm", "depthwise"] = "gemm"
    if site.op_type in ("Conv", "ConvTranspose"):
        kind = "depthwise" if site.groups > 1 and site.in_channels == 1 else "conv"
    return SiteWork(kind, batch, m, n, k, inputs, weights, prod(written))


def _product(site: Site, read: Sequence[int], written: Sequence[int]) -> tuple[int, int, int, int]:
    if site.op_type == "Conv":
        kernel = prod(site.weight_shape[2:])
        rows = written[0] * prod(written[2:])
        return site.groups, rows, written[1] // site.groups, site.in_channels * kernel
    if site.op_type == "ConvTranspose":
        kernel = prod(site.weight_shape[2:])
        rows = read[0] * prod(read[2:])
        columns = site.out_channels // site.groups * kernel
        return site.groups, rows, columns, site.in_channels
    if site.weight and site.weight_input == 0:
        return prod(written[:-2]), written[-2], written[-1], read[-2]
    if site.weight and len(site.weight_shape) == 2:
        # One product of all rows: the weight is the same for each.
        return 1, prod(written[:-1]), written[-1], read[-1]
    return prod(written[:-2]), written[-2] if len(written) > 1 else 1, written[-1], read[-1]
