"""Conditions on a site: ``in_channels < 32 and not depthwise``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from bitworth.recipe.expressions import Expression, Kind, compile_expression
from bitworth.recipe.site import Site

#: What can be asked of a site. Numbers of a product of two activations are 0: it has no weight.
SITE_NAMES: Mapping[str, Kind] = {
    "op_type": "text",
    "in_channels": "number",  # of one group, as Site has them
    "out_channels": "number",
    "groups": "number",
    "weights": "number",  # elements of the weight
    "rank": "number",  # dimensions of the weight
    "kernel": "sizes",  # the spatial dimensions, all compared; none but in convolutions
    "kernel_area": "number",  # their product, 1 where there is none
    "depthwise": "condition",
    "has_weight": "condition",
    "weight_on_left": "condition",  # W @ x
    "weight_transposed": "condition",  # a Gemm's weight is stored (out, in)
    "biased": "condition",  # a third input: the bias of a convolution or a Gemm
    "becomes_gemm": "condition",  # a MatMul and the constant added behind it, of fixed shape
    "rows": "number",  # of the product in one call, 0 where it is not known
    "pointwise": "condition",  # a convolution that is a product of matrices
}


def site_values(site: Site) -> dict[str, Any]:
    """What ``SITE_NAMES`` are for ``site``."""
    weighted = bool(site.weight)
    shape = site.weight_shape if weighted else ()
    kernel = shape[2:] if site.op_type in ("Conv", "ConvTranspose") else ()
    return {
        "op_type": site.op_type,
        "in_channels": site.in_channels if weighted else 0,
        "out_channels": site.out_channels if weighted else 0,
        "groups": site.groups,
        "weights": prod(shape) if weighted else 0,
        "rank": len(shape),
        "kernel": kernel,
        "kernel_area": prod(kernel),
        "depthwise": weighted and site.depthwise,
        "has_weight": weighted,
        "weight_on_left": weighted and site.weight_input == 0,
        "weight_transposed": weighted and site.op_type == "Gemm" and site.weight_axis == 0,
        "biased": site.biased,
        "becomes_gemm": site.becomes_gemm,
        "rows": site.rows,
        "pointwise": site.pointwise,
    }


@dataclass(frozen=True)
class Predicate:
    """A condition on a site.

    Attributes:
        expression: the condition.
    """

    expression: Expression

    def __call__(self, site: Site) -> bool:
        """Whether ``site`` meets it.

        Raises:
            ValueError: it divides by zero at this site.
        """
        try:
            return self.expression.holds(site_values(site))
        except ValueError as error:
            raise ValueError(f"{error} at site '{site.id}'") from None


def compile_predicate(text: str) -> Predicate:
    """Return the condition on a site that ``text`` is, in the names of ``SITE_NAMES``.

    Raises:
        ValueError: see ``expressions.compile_expression``.
    """
    return Predicate(compile_expression(text, SITE_NAMES))


def what_there_is(predicate: Predicate, sites: Sequence[Site]) -> str:
    """What the sites have of what ``predicate`` asks for: ``in_channels is 3 to 512``."""
    values = [site_values(site) for site in sites]
    parts = (
        f"{name} is {_span([v[name] for v in values])}"
        for name in predicate.expression.names
        if values
    )
    return "; ".join(parts) or "the model has no sites"


def _span(found: Iterable[Any]) -> str:
    distinct = set(found)
    if all(isinstance(v, int) and not isinstance(v, bool) for v in distinct):
        low, high = min(distinct), max(distinct)
        return str(low) if low == high else f"{low} to {high}"
    words = {"x".join(map(str, v)) or "none" if isinstance(v, tuple) else str(v) for v in distinct}
    return ", ".join(sorted(words))
