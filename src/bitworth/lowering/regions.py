"""Recognizes what follows an operation: its bias, and one activation function in any spelling."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from bitworth.subject.tensors import is_constant

# One node each, applied element by element; further inputs must be constant.
_NONLINEAR = (
    "Relu", "LeakyRelu", "PRelu", "ThresholdedRelu", "Clip", "Min", "Max", "Sigmoid", "HardSigmoid",
    "HardSwish", "Swish", "Gelu", "Tanh", "Elu", "Selu", "Celu", "Mish", "Softplus", "Softsign",
    "Erf", "Exp",
)  # fmt: skip
# What a function of several nodes is, by its nonlinear operators.
_SPELLED_WITH = {
    frozenset({"Erf"}): "Gelu", frozenset({"Tanh"}): "Gelu", frozenset({"Sigmoid"}): "Swish",
    frozenset({"HardSigmoid"}): "HardSwish", frozenset({"Clip"}): "HardSwish",
    frozenset({"Exp"}): "Swish", frozenset({"Softplus", "Tanh"}): "Mish",
}  # fmt: skip
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "Neg")
# The longest spelling met, Gelu by Tanh, has 9 nodes.
_LONGEST = 12


def bias_end(value: ir.Value) -> ir.Value:
    """Return the value behind the bias: ``value`` itself, or what one constant is added to it."""
    node = _only_consumer(value)
    if node is None or node.domain or node.op_type != "Add" or len(node.inputs) != 2:
        return value
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    return node.outputs[0] if is_constant(other) else value


@dataclass(frozen=True)
class Activation:
    """An activation function in a graph.

    Attributes:
        kind: the operator; for one written as several nodes ``Swish``, ``HardSwish``, ``Gelu``,
            ``Mish``, or ``Other``.
        end: the value behind it.
    """

    kind: str
    end: ir.Value


def activation_after(value: ir.Value) -> Activation | None:
    """Return the activation function that is applied to ``value``, if any.

    The function is a single node, or the smallest group of element-wise nodes that starts at
    ``value``, holds something nonlinear, and whose only way out is one value: x * Sigmoid(x),
    x * HardSigmoid(x), the Erf and Tanh spellings of Gelu, Relu6 spellings of HardSwish, Swish by
    Exp.
    """
    region: list[ir.Node] = []
    # Values of the region with uses that are not in it yet, in the order they appeared.
    open_values: list[ir.Value] = [value]
    inside: set[ir.Value] = {value}
    while len(region) < _LONGEST:
        node = _next_node(open_values, inside, region)
        if node is None:
            return None
        region.append(node)
        result = node.outputs[0]
        inside.add(result)
        open_values = [v for v in (*open_values, result) if not _is_used_up(v, region)]
        if open_values == [result] and any(n.op_type in _NONLINEAR for n in region):
            return Activation(_kind(region), _with_last_factor(result, region))
    return None


def _kind(region: list[ir.Node]) -> str:
    if len(region) == 1:
        return region[0].op_type
    nonlinear = frozenset(n.op_type for n in region if n.op_type in _NONLINEAR)
    return _SPELLED_WITH.get(nonlinear, "Other")


def _next_node(
    open_values: list[ir.Value], inside: set[ir.Value], region: list[ir.Node]
) -> ir.Node | None:
    """A node that may join: it reads open values and constants only."""
    for value in open_values:
        if value.is_graph_output():
            return None
        for node in value.consumers():
            if node not in region and node.graph is value.graph and _may_join(node, inside):
                return node
    return None


def _may_join(node: ir.Node, inside: set[ir.Value]) -> bool:
    if node.domain or len(node.outputs) != 1 or node.op_type not in _NONLINEAR + _ARITHMETIC:
        return False
    return all(v is None or v in inside or is_constant(v) for v in node.inputs)


def _is_used_up(value: ir.Value, region: list[ir.Node]) -> bool:
    consumers = value.consumers()
    if value.is_graph_output() or not consumers:
        return False
    return all(n in region for n in consumers)


def _with_last_factor(result: ir.Value, region: list[ir.Node]) -> ir.Value:
    """Include a constant factor that belongs to a function of several nodes, as Gelu's 0.5."""
    if len(region) == 1:
        return result
    node = _only_consumer(result)
    if node is None or node.domain or node.op_type not in ("Mul", "Div"):
        return result
    other = node.inputs[1] if node.inputs[0] is result else node.inputs[0]
    tensor = other.const_value if other is not None and is_constant(other) else None
    scalar = tensor is not None and tensor.size == 1
    # c / x is no factor.
    first = node.op_type == "Mul" or node.inputs[0] is result
    return node.outputs[0] if scalar and first else result


def _only_consumer(value: ir.Value) -> ir.Node | None:
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    node = next(iter(uses))[0]
    # What stands in a body of If, Loop or Scan is not what follows the value.
    return node if node.graph is value.graph else None
