"""One quantizable operation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Site:
    """One quantizable operation with its weight, or the product of two activations.

    Attributes:
        id: stable identity: the initializer's name; ``#2``, ``#3`` for later consumers of the same
            initializer in topological order; ``@matmul:<scope>/<n>`` for a product of two
            activations.
        node: name of the operation's node in the prepared graph (unique there).
        op_type: ONNX operator: Conv, ConvTranspose, Gemm, MatMul; of a PyTorch module Linear, Conv
            or ConvTranspose.
        weight: name of the weight initializer in the prepared graph; empty for a product of two
            activations, whose other weight fields mean nothing.
        weight_shape: shape of the weight as stored.
        weight_axis: axis of the weight that holds the output channels.
        weight_input: index of the weight among the node's inputs (1, or 0 for ``W @ x``).
        activation: name of the value that is the activation input.
        output: name of the value that the operation writes.
        groups: groups of a convolution, else 1.
        dtype: element type of the weight, lower case: ``float32``, ``float16``, ``bfloat16``.
        second: of a product of two activations, the name of the other one (input 1; ``activation``
            is input 0).
        scope: of a product of two activations, the attention that it is part of; products of one
            attention share it.
        biased: whether the node adds a bias: its third input.
        becomes_gemm: whether engines that join a MatMul with the constant that is added behind it
            can make a Gemm of this one.
        rows: of a PyTorch module, rows of its product in one call: elements of the activation over
            those that are summed; 0: not known.
        pointwise: whether a convolution is a product of matrices: one tap, stride 1, no padding.
    """

    id: str
    node: str
    op_type: str
    weight: str
    weight_shape: tuple[int, ...]
    weight_axis: int
    weight_input: int
    activation: str
    output: str
    groups: int = 1
    dtype: str = "float32"
    second: str = ""
    scope: str = ""
    biased: bool = False
    becomes_gemm: bool = False
    rows: int = 0
    pointwise: bool = False

    @property
    def activation_axis(self) -> int:
        """Axis of the activation that holds the channels: 1 for convolutions, else the last."""
        if self.op_type in ("Conv", "ConvTranspose"):
            return 1
        return -2 if self.weight_input == 0 else -1

    @property
    def block_axis(self) -> int:
        """Axis of the weight, as stored, along which products are summed."""
        if self.op_type in ("Conv", "ConvTranspose"):
            return 1 - self.weight_axis
        rank = len(self.weight_shape)
        return rank - 2 if self.weight_axis == rank - 1 else rank - 1

    @property
    def depthwise(self) -> bool:
        """Whether each channel is convolved alone, so that none are summed."""
        return self.op_type == "Conv" and self.groups > 1 and self.in_channels == 1

    @property
    def in_channels(self) -> int:
        """Input channels of one group, from the weight's shape."""
        if self.op_type == "ConvTranspose":
            return self.weight_shape[0] // self.groups
        if self.op_type == "Conv":
            return self.weight_shape[1]
        if len(self.weight_shape) == 2:
            return self.weight_shape[1 - self.weight_axis]
        return self.weight_shape[-1 if self.weight_input == 0 else -2]

    @property
    def out_channels(self) -> int:
        """Output channels over all groups, from the weight's shape."""
        if self.op_type == "ConvTranspose":
            return self.weight_shape[1] * self.groups
        return self.weight_shape[self.weight_axis]
