"""A small language of conditions over named values: ``in_channels < 32 and not depthwise``."""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

#: What a value is. ``sizes`` are several numbers: a comparison holds when it holds for each of
#: them and there is one.
Kind = Literal["number", "text", "condition", "sizes", "list"]
Values = Mapping[str, Any]
Compute = Callable[[Values], Any]

_MAX_TEXT, _MAX_NODES, _MAX_DEPTH = 400, 120, 20
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: lambda a, b: bool(a < b),
    ast.LtE: lambda a, b: bool(a <= b),
    ast.Gt: lambda a, b: bool(a > b),
    ast.GtE: lambda a, b: bool(a >= b),
    ast.Eq: lambda a, b: bool(a == b),
    ast.NotEq: lambda a, b: bool(a != b),
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """A checked condition over named values.

    Attributes:
        text: as it was written.
        names: the names it uses, in order.
    """

    text: str
    names: tuple[str, ...]
    _compute: Compute = field(repr=False, compare=False)

    def holds(self, values: Values) -> bool:
        """Whether it holds; ``values`` has every name it uses.

        Raises:
            ValueError: it divides by zero.
        """
        try:
            return bool(self._compute(values))
        except ZeroDivisionError:
            raise ValueError(f"condition '{self.text}' divides by zero") from None


def compile_expression(text: str, names: Mapping[str, Kind]) -> Expression:
    """Return the condition over the values called ``names`` that ``text`` is.

    Known are those names, numbers, quoted text, ``True`` and ``False``; ``<``, ``<=``, ``>``,
    ``>=``, ``==``, ``!=`` (chained too), ``in`` and ``not in`` a list of constants; ``and``,
    ``or``, ``not``; ``+ - * / // %``; parentheses. Nothing is evaluated but these.

    Raises:
        ValueError: anything else, an unknown name (with the nearest known one), text compared
            with a number, or an expression that is no condition or too long.
    """
    if len(text) > _MAX_TEXT:
        raise ValueError(
            f"condition '{text[:40]}...' has over {_MAX_TEXT} characters; split it in two"
        )
    try:
        with warnings.catch_warnings():
            # Python warns of what it would rather see written otherwise; here that is an error.
            warnings.simplefilter("error")
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(
            f"condition '{text}' cannot be read; write it like 'in_channels < 32'"
        ) from None
    if sum(1 for _ in ast.walk(tree)) > _MAX_NODES:
        raise ValueError(f"condition '{text}' has over {_MAX_NODES} parts; split it in two")
    context = _Context(text.strip(), names)
    compute = _part("condition", tree, context, 0)
    used = dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name))
    return Expression(text, tuple(used), compute)


@dataclass(frozen=True)
class _Context:
    text: str
    names: Mapping[str, Kind]

    def refusal(self, node: ast.expr, why: str) -> ValueError:
        part = ast.get_source_segment(self.text, node) or self.text
        return ValueError(f"condition '{self.text}': '{part}' {why}")


def _part(kind: Kind, node: ast.expr, context: _Context, depth: int) -> Compute:
    """The function that ``node`` is, which must be of ``kind``."""
    found, compute = _compile(node, context, depth)
    if found != kind:
        raise context.refusal(node, f"is a {found} where a {kind} is needed")
    return compute


def _compile(node: ast.expr, context: _Context, depth: int) -> tuple[Kind, Compute]:
    """The kind of ``node`` and the function that it is; every part has a kind known beforehand,
    so that what fails for one site fails for all.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"condition '{context.text}' is nested too deep; simplify it")
    depth += 1
    match node:
        case ast.Constant() | ast.Tuple() | ast.List():
            return _constant(node, context)
        case ast.Name(id=name):
            return _name(name, context)
        case ast.BoolOp(op=op, values=values):
            parts = [_part("condition", v, context, depth) for v in values]
            join = all if isinstance(op, ast.And) else any
            return "condition", lambda v: join(part(v) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            condition = _part("condition", inner, context, depth)
            return "condition", lambda v: not condition(v)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            positive = _part("number", inner, context, depth)
            return "number", lambda v: -positive(v)
        case ast.BinOp(op=sign, left=left, right=right) if type(sign) in _ARITHMETIC:
            act = _ARITHMETIC[type(sign)]
            a, b = _part("number", left, context, depth), _part("number", right, context, depth)
            return "number", lambda v: act(a(v), b(v))
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [left, *others]
            pairs = [
                _comparison(op, sides[i], sides[i + 1], context, depth) for i, op in enumerate(ops)
            ]
            return "condition", lambda v: all(pair(v) for pair in pairs)
    raise context.refusal(node, "is not understood")


def _constant(node: ast.expr, context: _Context) -> tuple[Kind, Compute]:
    match node:
        case ast.Constant(value=bool(truth)):
            return "condition", lambda _: truth
        case ast.Constant(value=int(number)):
            return "number", lambda _: number
        case ast.Constant(value=float(number)):
            return "number", lambda _: number
        case ast.Constant(value=str(word)):
            return "text", lambda _: word
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            if elements and all(isinstance(e, ast.Constant) for e in elements):
                members = tuple(_constant(e, context)[1]({}) for e in elements)
                return "list", lambda _: members
    raise context.refusal(node, "is not understood")


def _name(name: str, context: _Context) -> tuple[Kind, Compute]:
    if name not in context.names:
        near = get_close_matches(name, context.names, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(context.names)}"
        raise ValueError(f"condition '{context.text}': unknown name '{name}'; {hint}")
    return context.names[name], lambda values: values[name]


def _comparison(
    op: ast.cmpop, left: ast.expr, right: ast.expr, context: _Context, depth: int
) -> Compute:
    (kind, a), (other, b) = _compile(left, context, depth), _compile(right, context, depth)
    if isinstance(op, ast.In | ast.NotIn) and other == "list" and kind in ("number", "text"):
        if any(isinstance(member, str) != (kind == "text") for member in b({})):
            raise context.refusal(right, f"is compared with a {kind}")
        wanted = isinstance(op, ast.In)
        return lambda v: (a(v) in b(v)) == wanted
    compare = _COMPARE.get(type(op))
    ordered = not isinstance(op, ast.Eq | ast.NotEq)
    if compare is None or (ordered and kind in ("text", "condition")):
        raise context.refusal(left, "cannot be compared like this")
    if (kind, other) == ("sizes", "number"):
        return _of_each(op, lambda v: [(size, b(v)) for size in a(v)])
    if (kind, other) == ("number", "sizes"):
        return _of_each(op, lambda v: [(a(v), size) for size in b(v)])
    if kind != other or kind in ("list", "sizes"):
        raise context.refusal(right, f"is a {other} and compared with a {kind}")
    return lambda v: compare(a(v), b(v))


def _of_each(op: ast.cmpop, pairs: Callable[[Values], list[tuple[Any, Any]]]) -> Compute:
    """A comparison with several sizes; ``!=`` is the opposite of ``==``."""
    compare = _COMPARE[ast.Eq if isinstance(op, ast.NotEq) else type(op)]
    negated = isinstance(op, ast.NotEq)

    def holds(values: Values) -> bool:
        found = pairs(values)
        return (bool(found) and all(compare(a, b) for a, b in found)) != negated

    return holds
