"""``bitworth gemm``: products alone, by the rules of any study."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Bitworth = Callable[..., Any]
SHORT = ("--budget", "0.02", "--threads", "1")


def test_every_product_in_every_format(bitworth: Bitworth, tmp_path: Path) -> None:
    done = bitworth(
        "gemm", "--shapes", "16x8x8,4x8x16", "--formats", "int8,int4", "--engine", "mock", *SHORT,
        "--output", tmp_path / "kept", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert [(r["m"], r["n"], r["k"], r["format"]) for r in rows] == [
        (16, 8, 8, "int8"), (16, 8, 8, "int4"), (4, 8, 16, "int8"), (4, 8, 16, "int4"),
    ]  # fmt: skip
    for row in rows:
        assert row["evidence_for_a_model"] == "estimated"
        assert row["time_ratio"] is not None or row["reason"] or row["verdict"] == "void"
    assert len(list((tmp_path / "kept").rglob("*.html"))) == 2


def test_a_product_on_a_real_engine(bitworth: Bitworth) -> None:
    done = bitworth("gemm", "--shapes", "64x64x64", "--engine", "onnxruntime", *SHORT)
    assert done.code == 0, done.err
    assert "int8" in done.out
    assert "no bound" in done.out


def test_the_products_of_a_model(bitworth: Bitworth, tiny: Path) -> None:
    done = bitworth(
        "gemm", "--model", tiny, "--shape", "x=16,4", "--engine", "mock", *SHORT, "--json"
    )
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert [(r["m"], r["n"], r["k"]) for r in rows] == [(16, 6, 4), (16, 3, 6)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "either --shapes or --model"),
        (("--shapes", "4x4"), "MxNxK"),
        (("--shapes", "4x4x4", "--formats", "int7"), "--formats int7: unknown; known: "),
        (("--shapes", "4x4x4", "--formats", ","), "name at least one"),
        (("--shapes", "4x4x4", "--engine", "abacus"), "--engine abacus: unknown"),
    ],
)
def test_what_cannot_be_timed_is_refused(
    bitworth: Bitworth, arguments: tuple[str, ...], told: str
) -> None:
    done = bitworth("gemm", *arguments)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert told in done.err
