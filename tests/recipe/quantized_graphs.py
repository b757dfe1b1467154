"""Graphs of one quantized operation, written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bitworth.recipe import FORMATS, PerBlock, PerChannel, Quantize, Site

_WEIGHT_TYPES = {"int8": TensorProto.INT8, "int4": TensorProto.INT4}


@dataclass(frozen=True)
class Case:
    """A site with what its graph needs beside it: the input's shape and the node's attributes."""

    site: Site
    x: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def conv(
    weight: tuple[int, ...], groups: int = 1, op_type: str = "Conv", **attributes: object
) -> Case:
    """A convolution; the weight as stored, 12 positions in each spatial dimension."""
    transposed = op_type == "ConvTranspose"
    site = Site("w", "n", op_type, "w", weight, int(transposed), 1, "x", "y", groups)
    channels = weight[0] if transposed else weight[1] * groups
    x = (1, channels, *([12] * (len(weight) - 2)))
    return Case(site, x, {"group": groups, **attributes})


def matmul(weight: tuple[int, ...], x: tuple[int, ...], left: bool = False) -> Case:
    """A MatMul with its weight on the right, or on the left."""
    rank = len(weight)
    axis = rank - 2 if left else rank - 1
    return Case(Site("w", "n", "MatMul", "w", weight, axis, 1 - int(left), "x", "y"), x)


def gemm(transposed: bool, biased: bool = False, **attributes: object) -> Case:
    """A Gemm of (4, 32) with 16 output channels."""
    weight = (16, 32) if transposed else (32, 16)
    axis = 0 if transposed else 1
    site = Site("w", "n", "Gemm", "w", weight, axis, 1, "x", "y", biased=biased)
    return Case(site, (4, 32), {"transB": int(transposed), **attributes})


def product() -> Case:
    """A product of two activations, as Q by K in an attention."""
    site = Site("@matmul:a/1", "n", "MatMul", "", (), 0, 1, "x", "y", second="z", scope="a")
    return Case(site, (1, 2, 8, 16))


CASES: dict[str, Case] = {
    "Conv 1d": conv((16, 16, 3)),
    "Conv 2d": conv((16, 16, 3, 3)),
    "Conv 3d": conv((16, 16, 3, 3, 3)),
    "Conv 1x1": conv((16, 16, 1, 1)),
    "Conv strided": conv((16, 16, 3, 3), strides=[2, 2]),
    "Conv dilated": conv((16, 16, 3, 3), dilations=[2, 2]),
    "Conv of an image": conv((16, 3, 3, 3)),
    "Conv of one channel": conv((16, 1, 3, 3)),
    "Conv of odd channels": conv((7, 5, 3, 3)),
    "Conv grouped": conv((16, 4, 3, 3), 4),
    "Conv grouped 3d": conv((16, 4, 3, 3, 3), 4),
    "Conv depthwise 1d": conv((16, 1, 3), 16),
    "Conv depthwise 2d": conv((16, 1, 3, 3), 16),
    "Conv depthwise twice": conv((32, 1, 3, 3), 16),
    "Conv depthwise 3d": conv((16, 1, 3, 3, 3), 16),
    "ConvTranspose 1d": conv((16, 16, 2), 1, "ConvTranspose", strides=[2]),
    "ConvTranspose 2d": conv((16, 16, 2, 2), 1, "ConvTranspose", strides=[2, 2]),
    "ConvTranspose 3d": conv((16, 16, 2, 2, 2), 1, "ConvTranspose", strides=[2, 2, 2]),
    "ConvTranspose grouped": conv((16, 4, 2, 2), 4, "ConvTranspose", strides=[2, 2]),
    "ConvTranspose depthwise": conv((16, 1, 2, 2), 16, "ConvTranspose", strides=[2, 2]),
    "Gemm": gemm(False),
    "Gemm transB": gemm(True),
    "Gemm alpha": gemm(False, alpha=0.5),
    "Gemm biased": gemm(False, biased=True),
    "Gemm transB biased": gemm(True, biased=True),
    "MatMul 2d": matmul((32, 16), (4, 32)),
    "MatMul 3d": matmul((32, 16), (2, 4, 32)),
    "MatMul of odd sizes": matmul((33, 7), (4, 33)),
    "MatMul batched": matmul((3, 32, 16), (3, 4, 32)),
    "MatMul left": matmul((16, 32), (32, 4), left=True),
    "MatMul left batched": matmul((3, 16, 32), (3, 32, 4), left=True),
    "product": product(),
}


def graph(
    case: Case, entry: Quantize, opset: int = 21, after: tuple[str, ...] = ()
) -> onnx.ModelProto:
    """``Q/DQ -> operation -> Q/DQ``, as the entry says, with constants in place of calibration.

    Operators ``after`` it (Add: of a bias, Relu, Clip: between 0 and 6) stand before the second
    Q/DQ, or behind it where the entry's placement is ``before_activation``.
    """
    return _Writer(case, entry, after).model(opset)


class _Writer:
    def __init__(self, case: Case, entry: Quantize, after: tuple[str, ...]) -> None:
        self.after = after
        self.case = case
        self.site = case.site
        self.entry = entry
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.inputs = {"x": case.x}
        if not self.site.weight:
            self.inputs["z"] = (*case.x[:-2], case.x[-1], case.x[-2])

    def model(self, opset: int) -> onnx.ModelProto:
        integers = self.entry.scheme == "dynamic" and self.site.op_type in ("MatMul", "Gemm")
        result = self._integer_product() if integers else self._float_product()
        output = self.entry.scheme == "static" and self.entry.placement != "input_only"
        early = self.entry.placement == "before_activation"
        if output and early:
            result = self._static(result, "o", 0.5)
        for op_type in self.after:
            result = self._follower(op_type, result)
        if output and not early:
            # Behind a Relu or Clip the range starts at 0.
            bounded = {"Relu", "Clip"} & set(self.after)
            result = self._static(result, "o", 6 / 255, lowest=bool(bounded))
        self._node("Identity", [result], "y")
        made = helper.make_graph(
            self.nodes,
            "g",
            [
                helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
                for n, s in self.inputs.items()
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            self.tensors,
        )
        return helper.make_model(
            made, opset_imports=[helper.make_opsetid("", opset)], ir_version=10
        )

    def _follower(self, op_type: str, value: str) -> str:
        more = []
        if op_type == "Add":
            channels = np.ones(self.site.out_channels, np.float32)
            more = [self._constant("bias", channels)]
        elif op_type == "Clip":
            bounds = {"low": 0, "high": 6}
            more = [self._constant(name, np.float32(v)) for name, v in bounds.items()]
        return self._node(op_type, [value, *more], f"f_{op_type}")

    def _float_product(self) -> str:
        names = [self._activation(name) for name in self.inputs]
        if self.site.weight:
            names.insert(self.site.weight_input, self._weight())
        if self.site.biased:
            channels = np.ones(self.site.out_channels, np.float32)
            names.append(self._constant("own_bias", channels))
        return self._node(self.site.op_type, names, "f", **self.case.attributes)

    def _integer_product(self) -> str:
        names, zeros, steps = [], [], []
        for name in self.inputs:
            out = [f"{name}_q", f"{name}_s", f"{name}_z"]
            self.nodes.append(helper.make_node("DynamicQuantizeLinear", [name], out))
            names, zeros, steps = [*names, out[0]], [*zeros, out[2]], [*steps, out[1]]
        if self.site.weight:
            turned = self.site.op_type == "Gemm" and self.site.weight_axis == 0
            shape = self.site.weight_shape[::-1] if turned else self.site.weight_shape
            place = self.site.weight_input
            names.insert(place, self._tensor("w", TensorProto.INT8, shape))
            zeros.insert(place, self._constant("w_z", np.zeros((), np.int8)))
            step = self._steps()
            left = place == 0 and step.ndim == 1
            steps.append(self._constant("w_s", step[:, None] if left else step))
        self._node("MatMulInteger", names + zeros, "i")
        self._node("Cast", ["i"], "c", to=TensorProto.FLOAT)
        return self._node("Mul", ["c", self._node("Mul", steps, "s")], "m")

    def _activation(self, name: str) -> str:
        if FORMATS[self.entry.format].weights_only or self.entry.scheme == "weight_only":
            return name
        if self.entry.scheme == "dynamic":
            parts = [f"{name}_q", f"{name}_s", f"{name}_z"]
            self.nodes.append(helper.make_node("DynamicQuantizeLinear", [name], parts))
            return self._node("DequantizeLinear", parts, f"{name}_d")
        return self._static(name, name, 0.05)

    def _static(self, value: str, name: str, step: float, lowest: bool = False) -> str:
        unsigned = self.entry.sign == "u8"
        dtype: Any = np.uint8 if unsigned else np.int8
        symmetric = self.entry.zero_point == "symmetric"
        if lowest:
            # As calibration finds it for what is never negative.
            zero = 0 if unsigned or symmetric else -128
        else:
            zero = {True: 128 * unsigned, False: 100 if unsigned else 7}[symmetric]
        axis: dict[str, int] = {}
        steps, zeros = np.float32(step), dtype(zero)
        if isinstance(self.entry.activations, PerChannel) and name in self.inputs:
            place = self.site.activation_axis % len(self.case.x)
            channels = self.case.x[place]
            # Scales that are all the same are one scale to an engine; a zero point is always 0.
            steps = np.linspace(step, 2 * step, channels, dtype=np.float32)
            zeros, axis = np.zeros(channels, dtype), {"axis": place}
        rest = [self._constant(f"{name}_s", steps), self._constant(f"{name}_z", zeros)]
        self._node("QuantizeLinear", [value, *rest], f"{name}_q", **axis)
        return self._node("DequantizeLinear", [f"{name}_q", *rest], f"{name}_d", **axis)

    def _steps(self) -> np.ndarray[Any, Any]:
        shape = list(self.site.weight_shape)
        if isinstance(self.entry.weights, PerBlock):
            axis = self.site.block_axis
            shape[axis] = -(-shape[axis] // self.entry.weights.size)
            return np.full(shape, 0.01, np.float32)
        if isinstance(self.entry.weights, PerChannel):
            return np.full(shape[self.site.weight_axis], 0.01, np.float32)
        return np.array(0.01, np.float32)

    def _weight(self) -> str:
        weights = self.entry.weights
        more: dict[str, int] = {}
        if isinstance(weights, PerBlock):
            more = {"axis": self.site.block_axis, "block_size": weights.size}
        elif isinstance(weights, PerChannel):
            more = {"axis": self.site.weight_axis}
        kind = _WEIGHT_TYPES[self.entry.format]
        stored = self._tensor("w", kind, self.site.weight_shape)
        parts = [stored, self._constant("w_s", self._steps())]
        if not isinstance(weights, PerBlock):
            # onnxruntime makes a QGemm only where the weight has a zero point.
            shape = self._steps().shape
            zeros = [0] * int(np.prod(shape))
            self.tensors.append(helper.make_tensor("w_z", kind, shape, zeros))
            parts.append("w_z")
        return self._node("DequantizeLinear", parts, "w_d", **more)

    def _tensor(self, name: str, kind: int, shape: tuple[int, ...]) -> str:
        limit = 7 if kind == TensorProto.INT4 else 100
        values = np.random.default_rng(0).integers(-limit, limit, shape)
        self.tensors.append(helper.make_tensor(name, kind, shape, values.ravel().tolist()))
        return name

    def _constant(self, name: str, value: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _node(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [output], output, **attributes))
        return output
