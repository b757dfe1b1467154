"""The implicit GEMM of each kind of site, against onnxruntime's own shapes."""

from __future__ import annotations

import pytest

from bitworth.recipe import Site
from bitworth.subject.work import SiteWork, site_work


def site(op_type: str, shape: tuple[int, ...], axis: int, groups: int = 1, place: int = 1) -> Site:
    return Site("w", "n", op_type, "w", shape, axis, place, "x", "y", groups)


PRODUCT = Site("@matmul:a/1", "n", "MatMul", "", (), 0, 1, "x", "y", second="z", scope="a")


@pytest.mark.parametrize(
    ("found", "shapes", "expected"),
    [
        # 3x3 convolution, 8 to 16 channels, 2 images of 10x12 out.
        (
            site("Conv", (16, 8, 3, 3), 0),
            {"x": (2, 8, 12, 14), "y": (2, 16, 10, 12)},
            (1, 240, 16, 72),
        ),
        # Depthwise: a product of one column for each channel.
        (
            site("Conv", (8, 1, 3, 3), 0, 8),
            {"x": (1, 8, 5, 5), "y": (1, 8, 5, 5)},
            (8, 25, 1, 9),
        ),
        (
            site("ConvTranspose", (8, 4, 2, 2), 1),
            {"x": (1, 8, 6, 6), "y": (1, 4, 12, 12)},
            (1, 36, 16, 8),
        ),
        (site("Gemm", (16, 32), 0), {"x": (4, 32), "y": (4, 16)}, (1, 4, 16, 32)),
        (site("MatMul", (32, 16), 1), {"x": (2, 5, 32), "y": (2, 5, 16)}, (1, 10, 16, 32)),
        (
            site("MatMul", (3, 32, 16), 2),
            {"x": (3, 4, 32), "y": (3, 4, 16)},
            (3, 4, 16, 32),
        ),
        (
            site("MatMul", (16, 32), 0, place=0),
            {"x": (2, 32, 7), "y": (2, 16, 7)},
            (2, 16, 7, 32),
        ),
        (PRODUCT, {"x": (2, 4, 9, 8), "z": (2, 4, 8, 9), "y": (2, 4, 9, 9)}, (8, 9, 9, 8)),
    ],
)
def test_the_product_that_a_site_is(
    found: Site, shapes: dict[str, tuple[int, ...]], expected: tuple[int, ...]
) -> None:
    work = site_work(found, shapes)
    assert work is not None
    assert (work.batch, work.m, work.n, work.k) == expected
    assert work.operations == 2 * expected[0] * expected[1] * expected[2] * expected[3]


def test_elements_are_those_that_are_moved() -> None:
    conv = site("Conv", (16, 8, 3, 3), 0)
    work = site_work(conv, {"x": (2, 8, 12, 14), "y": (2, 16, 10, 12)})
    assert work == SiteWork("conv", 1, 240, 16, 72, 2 * 8 * 12 * 14, 16 * 8 * 9, 2 * 16 * 10 * 12)


@pytest.mark.parametrize("shapes", [{}, {"x": (1, 32)}, {"x": (0, 32), "y": (0, 16)}])
def test_unknown_shapes_have_no_work(shapes: dict[str, tuple[int, ...]]) -> None:
    assert site_work(site("MatMul", (32, 16), 1), shapes) is None
