"""A graph of matrix products, each on its own, to be timed layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

#: Elements of one operand or result at most; rows beyond are left out: the rate stays.
MOST_ELEMENTS = 1 << 24


@dataclass(frozen=True, order=True)
class Product:
    """(m by k) times (k by n), as a MatMul or as a convolution with a kernel of one element.

    Engines have other kernels for the two, and other rates.
    """

    kind: Literal["gemm", "conv"]
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        """Kind and sizes, as a node's name."""
        return f"{self.kind}_{self.m}x{self.n}x{self.k}"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(m, k), or (1, k, height, width) with m positions."""
        if self.kind == "gemm":
            return self.m, self.k
        height = next(h for h in range(int(self.m**0.5), 0, -1) if self.m % h == 0)
        return 1, self.k, height, self.m // height

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(m, n), or (1, n, height, width)."""
        return (self.m, self.n) if self.kind == "gemm" else (1, self.n, *self.input_shape[2:])

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(k, n), or (n, k, 1, 1)."""
        return (self.k, self.n) if self.kind == "gemm" else (self.n, self.k, 1, 1)


def held(product: Product) -> Product:
    """The product with as many rows as its operands may have elements."""
    rows = max(1, MOST_ELEMENTS // max(product.n, product.k))
    return Product(product.kind, min(product.m, rows), product.n, product.k)


def product_graph(products: Sequence[Product], opset: int) -> onnx.ModelProto:
    """A node for each product, named after it, each with an input, a weight and an output."""
    rng = np.random.default_rng(0)
    nodes, inputs, outputs, weights = [], [], [], []
    for p in products:
        weight = rng.standard_normal(p.weight_shape, dtype=np.float32) * np.float32(p.k**-0.5)
        weights.append(numpy_helper.from_array(weight, f"{p.name}_w"))
        inputs.append(
            helper.make_tensor_value_info(f"{p.name}_x", TensorProto.FLOAT, p.input_shape)
        )
        outputs.append(
            helper.make_tensor_value_info(f"{p.name}_y", TensorProto.FLOAT, p.output_shape)
        )
        names = own_names(p)
        read = [f"{p.name}_x", f"{p.name}_w"]
        if p.kind == "gemm":
            nodes.append(helper.make_node("MatMul", read, [f"{p.name}_y"], name=p.name))
            continue
        # Behind a Relu, which engines fuse, a convolution's result is rounded; an output of the
        # graph is a head, and stays in float.
        nodes += [
            helper.make_node("Conv", read, [names[1]], name=p.name),
            helper.make_node("Relu", [names[1]], [names[3]], name=names[2]),
            helper.make_node("Neg", [names[3]], [f"{p.name}_y"], name=f"{p.name}_neg"),
        ]
    graph = helper.make_graph(nodes, "products", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def own_names(product: Product) -> tuple[str, str, str, str]:
    """Names by which a layer is known to compute a product: its nodes and values in order."""
    name = product.name
    return name, f"{name}_p", f"{name}_relu", f"{name}_r"


def product_inputs(products: Sequence[Product]) -> dict[str, NDArray[np.float32]]:
    """Normal random numbers for each input of ``product_graph``."""
    rng = np.random.default_rng(1)
    return {f"{p.name}_x": rng.standard_normal(p.input_shape, dtype=np.float32) for p in products}
