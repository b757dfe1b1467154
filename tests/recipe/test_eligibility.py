from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitworth.recipe import FORMATS, PER_CHANNEL, PER_TENSOR, PerBlock, Quantize, Site
from bitworth.recipe.consistency import natural_activations, natural_scheme, natural_weights
from bitworth.recipe.eligibility import ENTRY_NAMES, RULES, excluded, rule_against
from bitworth.recipe.expressions import compile_expression
from bitworth.recipe.predicates import SITE_NAMES
from bitworth.recipe.recipe import Scheme


def conv(shape: tuple[int, ...], groups: int = 1, op_type: str = "Conv") -> Site:
    return Site("c", "n", op_type, "w", shape, int(op_type != "Conv"), 1, "x", "y", groups)


def linear(op_type: str = "MatMul", inner: int = 64, outer: int = 32) -> Site:
    return Site("m", "n", op_type, "w", (inner, outer), 1, 1, "x", "y")


def product(scope: str, number: int) -> Site:
    id_ = f"@matmul:{scope}/{number}"
    return Site(id_, id_, "MatMul", "", (), 0, 1, "x", "y", second="z", scope=scope)


def natural(format_name: str, scheme: Scheme | None = None) -> Quantize:
    """The format as it is used unless something else is asked for."""
    return Quantize(
        "g",
        format_name,
        natural_weights(format_name),
        natural_activations(format_name),
        scheme or natural_scheme(format_name),
        sign="s8",
        zero_point="symmetric",
        placement="input_only" if scheme else "after_activation",
    )


PLAIN = conv((32, 64, 3, 3))
DEPTHWISE = conv((64, 1, 3, 3), 64)
SITES = (
    PLAIN, DEPTHWISE, conv((64, 16, 3, 3), 4), conv((32, 3, 3, 3)), conv((32, 20, 3, 3)),
    conv((32, 64, 7, 7)), conv((64, 32, 2, 2), 1, "ConvTranspose"), linear(), linear("Gemm"),
    linear(inner=40), product("a", 1),
)  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_a_rule_is_well_formed(rule: object) -> None:
    assert isinstance(rule, type(RULES[0]))
    assert set(rule.formats) <= set(FORMATS)
    assert set(rule.schemes) <= set(get_args(Scheme))
    assert rule.engines
    assert rule.reason
    assert "\n" not in rule.reason + rule.id
    assert compile_expression(rule.where, {**SITE_NAMES, **ENTRY_NAMES})
    # A rule that could never apply would be no rule.
    assert rule.formats
    assert rule.schemes


def test_ids_are_unique() -> None:
    assert len({r.id for r in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("entry", "site", "rule"),
    [
        # Scales of activation channels, where channels are summed.
        (Quantize("g", "int8", activations=PER_CHANNEL), PLAIN, "channels-summed"),
        (Quantize("g", "fp8_e4m3", activations=PER_CHANNEL), linear(), "channels-summed"),
        (Quantize("g", "fp8_e5m2", activations=PER_CHANNEL), product("a", 1), "channels-summed"),
        (Quantize("g", "int8", activations=PER_CHANNEL), DEPTHWISE, None),
        # Block formats.
        (natural("nvfp4"), linear(), None),
        (natural("mxfp8"), linear("Gemm"), None),
        (natural("nvfp4"), PLAIN, "block-operators"),
        (natural("mxfp8"), DEPTHWISE, "block-operators"),
        (natural("nvfp4"), product("a", 1), "block-operators"),
        (natural("mxfp8"), conv((64, 32, 2, 2), 1, "ConvTranspose"), "block-operators"),
        (natural("nvfp4"), linear(inner=40), "whole-blocks"),
        (natural("mxfp8"), linear(inner=48), "whole-blocks"),
        (natural("nvfp4"), linear(inner=48), None),
        # Scales at run time.
        (natural("int8", "dynamic"), linear(), None),
        (natural("int8", "dynamic"), product("a", 1), None),
        (natural("int8", "dynamic"), PLAIN, "dynamic-operators"),
        (natural("int8", "dynamic"), conv((4, 4, 2), 1, "ConvTranspose"), "dynamic-operators"),
        # Weights alone.
        (natural("int8", "weight_only"), product("a", 1), "no-weight"),
        (natural("int4"), product("a", 1), "no-weight"),
        (natural("int4"), PLAIN, None),
        (natural("int8"), product("a", 1), None),
        (natural("fp8_e4m3"), PLAIN, None),
    ],
)
def test_rules_of_every_engine(entry: Quantize, site: Site, rule: str | None) -> None:
    for engine in ("emulated", "mock"):
        found = rule_against(engine, site, entry)
        assert (found.id if found else None) == rule
    # An engine's own rules come on top.
    if rule is not None:
        for engine in ("onnxruntime", "openvino", "tensorrt"):
            assert rule_against(engine, site, entry) is not None


@pytest.mark.parametrize(
    ("format_name", "site", "rule"),
    [
        ("fp8_e4m3", PLAIN, None),
        ("fp8_e4m3", linear(), None),
        ("fp8_e4m3", product("a", 1), None),
        ("fp8_e4m3", DEPTHWISE, "tensorrt-fp8-grouped"),
        ("fp8_e5m2", conv((64, 16, 3, 3), 4), "tensorrt-fp8-grouped"),
        ("fp8_e4m3", conv((64, 16, 2, 2), 2, "ConvTranspose"), "tensorrt-fp8-grouped"),
        ("fp8_e4m3", conv((32, 3, 3, 3)), "tensorrt-fp8-stem"),
        ("fp8_e4m3", conv((32, 1, 3, 3)), "tensorrt-fp8-stem"),
        ("fp8_e4m3", conv((32, 20, 3, 3)), "tensorrt-fp8-channels"),
        ("fp8_e4m3", conv((20, 32, 3, 3)), "tensorrt-fp8-channels"),
        ("fp8_e4m3", conv((32, 64, 7, 7)), "tensorrt-fp8-kernel"),
        ("fp8_e4m3", conv((32, 64, 3, 3, 3)), None),
        ("int8", DEPTHWISE, None),
        ("int8", conv((32, 3, 7, 7)), None),
    ],
)
def test_rules_of_tensorrt(format_name: str, site: Site, rule: str | None) -> None:
    found = rule_against("tensorrt", site, natural(format_name))
    assert (found.id if found else None) == rule
    # They are its own: no CPU engine is held by them.
    assert rule is None or rule_against("emulated", site, natural(format_name)) is None


@pytest.mark.parametrize(
    ("sign", "zero_point", "kept"),
    [("s8", "symmetric", True), ("u8", "symmetric", False), ("s8", "asymmetric", False)],
)
def test_tensorrt_is_symmetric(sign: str, zero_point: str, kept: bool) -> None:
    entry = Quantize("g", "int8", sign=sign, zero_point=zero_point)  # type: ignore[arg-type]
    assert (rule_against("tensorrt", PLAIN, entry) is None) == kept


def test_a_format_for_weights_alone_is_that_whatever_the_scheme_says() -> None:
    for scheme in get_args(Scheme):
        entry = Quantize("g", "int4", PerBlock(32), scheme=scheme)
        found = rule_against("onnxruntime", PLAIN, entry)
        assert found is not None
        assert found.id == "onnxruntime-weight-only-operators"


def test_what_is_excluded_names_its_rule() -> None:
    pairs = [(s, natural("fp8_e4m3")) for s in (PLAIN, DEPTHWISE)]
    assert excluded("emulated", pairs) == {}
    named = [(Site(**{**s.__dict__, "id": f"s{i}"}), e) for i, (s, e) in enumerate(pairs)]
    assert list(excluded("tensorrt", named)) == ["s1"]
    assert excluded("tensorrt", named)["s1"].startswith("rule tensorrt-fp8-grouped: no optimized")


def test_a_rule_that_is_ignored_leaves_the_next_one() -> None:
    site, entry = conv((32, 3, 7, 7)), natural("fp8_e4m3")
    ids = ["tensorrt-fp8-stem", "tensorrt-fp8-channels", "tensorrt-fp8-kernel"]
    for i, expected in enumerate([*ids, None]):
        found = rule_against("tensorrt", site, entry, ids[:i])
        assert (found.id if found else None) == expected
        reason = excluded("tensorrt", [(site, entry)], ids[:i]).get(site.id)
        assert reason is None if expected is None else f"rule {expected}: " in str(reason)


SIGNED = Quantize("g", "int8", sign="s8", zero_point="symmetric", placement="input_only")
UNSIGNED = Quantize("g", "int8", sign="u8", zero_point="asymmetric", placement="input_only")


@pytest.mark.parametrize("bad", [(0,), (1,), (0, 1)])
def test_of_an_attention_all_products_are_left_out_or_none(bad: tuple[int, ...]) -> None:
    first = [product("a", n) for n in (1, 2)]
    other = [product("b", n) for n in (1, 2)]
    entries = [UNSIGNED if i in bad else SIGNED for i in range(2)]
    pairs = [*zip(first, entries, strict=True), *((s, SIGNED) for s in other), (PLAIN, UNSIGNED)]
    found = excluded("openvino", pairs)
    assert list(found) == ["@matmul:a/1", "@matmul:a/2"]
    assert all(reason.startswith("rule openvino-zero-point: ") for reason in found.values())
    assert excluded("openvino", [(s, SIGNED) for s in first + other]) == {}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=9),
    st.lists(st.booleans(), max_size=4),
)
def test_scopes_are_whole(products: list[tuple[str, bool]], weights: list[bool]) -> None:
    pairs = [
        (product(scope, i), UNSIGNED if bad else SIGNED) for i, (scope, bad) in enumerate(products)
    ]
    # A site with a weight has no scope, and takes no other along.
    pairs += [
        (Site(f"w{i}", "n", "ConvTranspose", "w", (8, 8, 2), 1, 1, "x", "y"),
         UNSIGNED if bad else SIGNED)
        for i, bad in enumerate(weights)
    ]  # fmt: skip
    found = excluded("openvino", pairs)
    hit = {scope for scope, bad in products if bad}
    expected = [s.id for s, e in pairs if s.scope in hit or (not s.scope and e is UNSIGNED)]
    assert list(found) == expected


@given(
    st.sampled_from(SITES),
    st.sampled_from([f.name for f in FORMATS.values() if f.role == "quantized"]),
    st.sampled_from(get_args(Scheme)),
    st.sampled_from([PER_TENSOR, PER_CHANNEL, PerBlock(16), PerBlock(32)]),
    st.sampled_from(["onnxruntime", "openvino", "tensorrt", "mock", "emulated"]),
)
def test_every_question_has_an_answer(
    site: Site, format_name: str, scheme: Scheme, weights: object, engine: str
) -> None:
    entry = Quantize("g", format_name, weights, scheme=scheme)  # type: ignore[arg-type]
    found = rule_against(engine, site, entry)
    assert found is None or found in RULES
    reason = excluded(engine, [(site, entry)]).get(site.id)
    assert reason == (found and f"rule {found.id}: {found.reason}")
