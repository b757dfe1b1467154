from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

MakeModel = Callable[..., ir.Model]


@pytest.fixture(scope="session")
def chain() -> MakeModel:
    """Build x -> op -> op ...: values v0, v1, ...; a MatMul takes the next weight (w0, w1, ...)."""

    def build(
        ops: Sequence[str],
        shape: Sequence[int | str],
        weights: Sequence[NDArray[np.generic]] = (),
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Model:
        kind = ir.TensorType(dtype)
        value = ir.Value(name="x", type=kind, shape=ir.Shape(shape))
        inputs, nodes = [value], []
        initializers: list[ir.Value] = []
        for index, op in enumerate(ops):
            operands = [value]
            if op == "MatMul":
                name = f"w{len(initializers)}"
                array = weights[len(initializers)]
                initializers.append(
                    ir.Value(
                        name=name,
                        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                        shape=ir.Shape(array.shape),
                        const_value=ir.Tensor(array, name=name),
                    )
                )
                operands.append(initializers[-1])
            node = ir.node(op, operands, name=f"n{index}")
            value = node.outputs[0]
            value.name, value.type = f"v{index}", kind
            nodes.append(node)
        graph = ir.Graph(
            inputs, [value], nodes=nodes, initializers=initializers, opset_imports={"": 17},
            name="chain",
        )  # fmt: skip
        return ir.Model(graph, ir_version=9)

    return build
