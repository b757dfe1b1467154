from __future__ import annotations

import pytest

from bitworth.recipe import Site
from bitworth.recipe.predicates import SITE_NAMES, compile_predicate, site_values, what_there_is


def conv(shape: tuple[int, ...], groups: int = 1, op_type: str = "Conv") -> Site:
    return Site("c", "n", op_type, "w", shape, int(op_type != "Conv"), 1, "x", "y", groups)


STEM = conv((32, 3, 7, 7))
POINT = conv((64, 32, 1, 1))
DEPTHWISE = conv((64, 1, 3, 3), 64)
GROUPED = conv((64, 16, 3, 3), 4)
LINE = conv((8, 8, 5))
UP = conv((32, 8, 2, 2), 2, "ConvTranspose")
GEMM = Site("g", "n", "Gemm", "w", (10, 20), 0, 1, "x", "y")
GEMM_PLAIN = Site("g", "n", "Gemm", "w", (20, 10), 1, 1, "x", "y")
MATMUL = Site("m", "n", "MatMul", "w", (3, 20, 10), 2, 1, "x", "y")
LEFT = Site("l", "n", "MatMul", "w", (10, 20), 0, 0, "x", "y")
PRODUCT = Site("@matmul:a/1", "n", "MatMul", "", (), 0, 1, "x", "y", second="z", scope="a")
ALL = (STEM, POINT, DEPTHWISE, GROUPED, LINE, UP, GEMM, GEMM_PLAIN, MATMUL, LEFT, PRODUCT)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("in_channels < 4", (STEM, DEPTHWISE, PRODUCT)),
        ("in_channels < 4 and has_weight", (STEM, DEPTHWISE)),
        ("out_channels % 16 != 0 and groups == 1", (LINE, GEMM, GEMM_PLAIN, MATMUL, LEFT)),
        ("depthwise", (DEPTHWISE,)),
        ("groups > 1 and not depthwise", (GROUPED, UP)),
        ("kernel == 1", (POINT,)),
        ("kernel > 1", (STEM, DEPTHWISE, GROUPED, LINE, UP)),
        ("kernel_area > 32", (STEM,)),
        ("weights > 2047", (STEM, POINT, GROUPED)),
        ("op_type in ('MatMul', 'Gemm') and rank == 3", (MATMUL,)),
        ("not has_weight", (PRODUCT,)),
        ("weight_on_left", (LEFT,)),
        ("weight_transposed", (GEMM,)),
        ("in_channels == 20 and out_channels == 10", (GEMM, GEMM_PLAIN, MATMUL, LEFT)),
        ("out_channels == 16", (UP,)),
        ("op_type == 'ConvTranspose'", (UP,)),
        ("rank >= 0", ALL),
    ],
)
def test_conditions(text: str, found: tuple[Site, ...]) -> None:
    predicate = compile_predicate(text)
    assert tuple(s for s in ALL if predicate(s)) == found


@pytest.mark.parametrize("site", ALL)
def test_every_site_has_every_name(site: Site) -> None:
    assert list(site_values(site)) == list(SITE_NAMES)


def test_what_is_no_property_is_named() -> None:
    with pytest.raises(ValueError, match="unknown name 'in_chanels'; did you mean 'in_channels'"):
        compile_predicate("in_chanels < 32")
    with pytest.raises(ValueError, match="divides by zero at site '@matmul:a/1'"):
        compile_predicate("out_channels / in_channels > 2")(PRODUCT)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("in_channels > 99", "in_channels is 1 to 32"),
        ("groups > 99 and rank > 9", "groups is 1 to 64; rank is 4"),
        ("op_type == 'Gemm'", "op_type is Conv"),
        ("kernel == 9", "kernel is 1x1, 3x3, 7x7"),
        ("depthwise and has_weight", "depthwise is False, True; has_weight is True"),
    ],
)
def test_what_there_is(text: str, told: str) -> None:
    assert what_there_is(compile_predicate(text), (STEM, POINT, DEPTHWISE)) == told
    assert what_there_is(compile_predicate(text), ()) == "the model has no sites"
