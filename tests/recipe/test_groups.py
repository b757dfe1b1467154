from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitworth.recipe import Site
from bitworth.recipe.groups import ALL, Group, members


def site(id_: str, op_type: str = "Conv", node: str = "") -> Site:
    return Site(id_, node or f"node/{id_}", op_type, id_, (8, 4), 0, 1, "x", "y")


SITES = (
    site("stem.weight"),
    site("block.0.ff.weight", "MatMul"),
    site("block.0.qkv.weight", "MatMul"),
    site("block.1.ff.weight", "MatMul", node="/block/1/ff/MatMul"),
    site("head.weight", "Gemm"),
)
IDS = tuple(s.id for s in SITES)


DEEP = (
    site("stem.weight"),
    *(site(f"layers.{i}.{part}.weight", "MatMul") for i in range(4) for part in ("q", "ff")),
    site("head.weight", "Gemm"),
)


def product(scope: str, number: int) -> Site:
    id_ = f"@matmul:{scope}/{number}"
    node = f"/{scope.replace('.', '/')}/MatMul_{number}"
    return Site(id_, node, "MatMul", "", (), 0, 1, "x", "y", second="z", scope=scope)


#: Three attentions of two products, and a product that is none's.
PRODUCTS = (
    *(product(f"layers.{i}.attention", n) for i in range(3) for n in (1, 2)),
    product("gate", 1),
)


def ids(group: Group, times: dict[str, float] | None = None) -> tuple[str, ...]:
    return tuple(s.id for s in members(group, SITES, times or {}))


def test_all() -> None:
    assert ids(ALL) == IDS


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("stem.weight",), (0,)),
        (("*.ff.*",), (1, 3)),
        (("block.?.qkv.weight",), (2,)),
        (("block.[1-9].*",), (3,)),
        (("/block/1/*",), (3,)),  # by the node's name
        (("node/*",), (0, 1, 2, 4)),
        (("head*", "stem*"), (0, 4)),  # in the graph's order
        (("*",), (0, 1, 2, 3, 4)),
    ],
)
def test_patterns(names: tuple[str, ...], found: tuple[int, ...]) -> None:
    assert ids(Group("g", names=names)) == tuple(IDS[i] for i in found)


def test_a_name_with_brackets_matches_itself() -> None:
    odd = (site("layers[0].weight"), site("layers0.weight"), site("@matmul:a/b*/1"))
    for one in odd:
        assert one in members(Group("g", names=(one.id,)), odd, {})
    assert members(Group("g", names=("layers[0].weight",)), odd, {}) == odd[:2]


def test_a_pattern_minds_case() -> None:
    with pytest.raises(ValueError, match="matches no site"):
        ids(Group("g", names=("STEM*",)))


def test_conditions_add_up() -> None:
    assert ids(Group("g", names=("block.*", "head*"), op_types=("MatMul", "Conv"))) == IDS[1:4]
    assert ids(Group("g", op_types=("Gemm", "Conv"))) == (IDS[0], IDS[4])


TIMES = dict(zip(IDS, (50.0, 20.0, 20.0, 10.0, 0.0), strict=True))


@pytest.mark.parametrize(
    ("share", "found"),
    [
        (0.01, (0,)),
        (0.5, (0,)),
        (0.51, (0, 2)) if IDS[2] < IDS[1] else (0.51, (0, 1)),  # of equals, the first by id
        (0.7, (0, 1)),
        (0.71, (0, 1, 2)),
        (0.9, (0, 1, 2)),
        (1.0, (0, 1, 2, 3)),  # nothing that takes no time
    ],
)
def test_the_slowest(share: float, found: tuple[int, ...]) -> None:
    assert ids(Group("g", top_share=share), TIMES) == tuple(IDS[i] for i in found)


def test_the_slowest_of_those_left() -> None:
    found = ids(Group("g", op_types=("MatMul",), top_share=0.6), TIMES)
    assert found == IDS[1:3]


def test_a_site_without_a_time_counts_as_none() -> None:
    assert ids(Group("g", top_share=1.0), {IDS[3]: 5.0}) == (IDS[3],)
    # Where no time is known at all, none is slower than another.
    assert ids(Group("g", top_share=0.5), {}) == IDS


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.floats(0.01, 1))
@settings(max_examples=50, deadline=None)
def test_a_share_is_reached_by_as_few_as_possible(times: list[int], share: float) -> None:
    sites = tuple(site(f"s{i}") for i in range(len(times)))
    by_id = {s.id: float(t) for s, t in zip(sites, times, strict=True)}
    chosen = members(Group("g", top_share=share), sites, by_id)
    total = sum(times)
    taken = sum(by_id[s.id] for s in chosen)
    assert list(chosen) == [s for s in sites if s in chosen]
    if total:
        assert taken >= share * total
        assert taken - min(by_id[s.id] for s in chosen) < share * total
        left = [by_id[s.id] for s in sites if s not in chosen]
        assert max(left, default=0) <= min(by_id[s.id] for s in chosen)


@pytest.mark.parametrize(
    ("group", "told"),
    [
        (Group("g", names=("stem*", "nowhere*")), "pattern 'nowhere.' matches no site; .*such as"),
        (
            Group("g", op_types=("Conv", "LSTM")),
            "op type 'LSTM' matches no site; .*Conv, Gemm",
        ),
        (Group("g", names=("stem*",), op_types=("Gemm",)), "'g': matches no site; loosen"),
        (Group("g", regex=("stem", "ff$")), r"regex 'ff\$' matches no site; .*such as"),
        (Group("g", regex=("ff(",)), r"regex 'ff\(' cannot be read"),
        (Group("g", where=("in_channels > 99",)), "where 'in_channels > 99' holds for no site; in"),
        (Group("g", where=("in_chanels > 9",)), "unknown name 'in_chanels'; did you mean"),
        (Group("g", exclude=("nowhere*",)), "exclude 'nowhere.' matches no site; .*such as"),
        (Group("g", exclude=("re:no(w|t)",)), "exclude 're:no.w.t.' matches no site"),
        (Group("g", exclude=("re:no(",)), r"regex 'no\(' cannot be read"),
        (Group("g", exclude=("*",)), "'g': matches no site; loosen"),
        (Group("g", first_blocks=0), "first_blocks is 0; give a whole number"),
        (Group("g", last_blocks=-1), "last_blocks is -1; give a whole number"),
        (Group("g", attention=True), "no product of two activations; leave the group out"),
    ],
)
def test_a_group_that_matches_nothing(group: Group, told: str) -> None:
    with pytest.raises(ValueError, match=told) as refused:
        ids(group)
    assert str(refused.value).startswith("group 'g'")
    assert "\n" not in str(refused.value)


def test_a_model_without_sites() -> None:
    for group, told in (
        (ALL, "matches no site"),
        (Group("g", names=("a",)), "pattern 'a'"),
        (Group("g", op_types=("Conv",)), "the model has no sites"),
    ):
        with pytest.raises(ValueError, match=told):
            members(group, (), {})


@pytest.mark.parametrize(
    ("regex", "found"),
    [
        (("stem",), (0,)),
        (("[.]ff[.]",), (1, 3)),
        (("^block[.][01]", "^head"), (1, 2, 3, 4)),
        (("^/block/1/.*MatMul$",), (3,)),  # by the node's name
        ((r"\d",), (1, 2, 3)),
        (("",), (0, 1, 2, 3, 4)),
    ],
)
def test_regular_expressions(regex: tuple[str, ...], found: tuple[int, ...]) -> None:
    assert ids(Group("g", regex=regex)) == tuple(IDS[i] for i in found)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (("op_type == 'MatMul'",), (1, 2, 3)),
        (("op_type != 'Gemm'", "in_channels == 4"), (0, 1, 2, 3)),
        (("weights == 32",), (0, 1, 2, 3, 4)),
    ],
)
def test_conditions_on_a_site(where: tuple[str, ...], found: tuple[int, ...]) -> None:
    sites = tuple(Site(s.id, s.node, s.op_type, s.id, (8, 4), 0, 1, "x", "y") for s in SITES)
    chosen = members(Group("g", where=where), sites, {})
    assert tuple(s.id for s in chosen) == tuple(IDS[i] for i in found)


@pytest.mark.parametrize(
    ("first", "last", "blocks"),
    [
        (1, None, (0,)),
        (2, None, (0, 1)),
        (None, 1, (3,)),
        (None, 3, (1, 2, 3)),
        (1, 1, (0, 3)),
        (3, 3, (0, 1, 2, 3)),
        (9, None, (0, 1, 2, 3)),
    ],
)
def test_depth(first: int | None, last: int | None, blocks: tuple[int, ...]) -> None:
    chosen = members(Group("g", first_blocks=first, last_blocks=last), DEEP, {})
    expected = [f"layers.{i}.{part}.weight" for i in blocks for part in ("q", "ff")]
    assert [s.id for s in chosen] == expected


def test_depth_and_a_name() -> None:
    chosen = members(Group("g", names=("*.ff.*",), last_blocks=2), DEEP, {})
    assert [s.id for s in chosen] == ["layers.2.ff.weight", "layers.3.ff.weight"]


def test_depth_where_names_hold_none() -> None:
    with pytest.raises(
        ValueError, match=r"group 'g': the model's names such as 'stem.weight' hold"
    ):
        members(Group("g", first_blocks=1), (SITES[0], SITES[4]), {})


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        (("stem*",), (1, 2, 3, 4)),
        (("re:[.]ff[.]",), (0, 2, 4)),
        (("*qkv*", "re:^head", "/block/1/*"), (0, 1)),
    ],
)
def test_exclusion(exclude: tuple[str, ...], left: tuple[int, ...]) -> None:
    assert ids(Group("g", exclude=exclude)) == tuple(IDS[i] for i in left)


def test_exclusion_comes_before_the_share_of_time() -> None:
    found = ids(Group("g", exclude=("stem*",), top_share=0.4), TIMES)
    assert found == IDS[1:2]
    # What is excluded need not be among what is chosen.
    assert ids(Group("g", names=("head*",), exclude=("stem*",))) == (IDS[4],)


def chosen_products(group: Group, times: dict[str, float] | None = None) -> tuple[int, ...]:
    found = members(group, SITES, times or {}, PRODUCTS)
    return tuple(PRODUCTS.index(s) for s in found)


def test_products_are_in_no_group_that_does_not_ask() -> None:
    assert members(ALL, SITES, {}, PRODUCTS) == SITES
    assert chosen_products(Group("g", attention=True)) == tuple(range(7))
    with pytest.raises(ValueError, match=r"'@matmul:.' matches no site"):
        members(Group("g", names=("@matmul:*",)), SITES, {}, PRODUCTS)


@pytest.mark.parametrize(
    ("group", "found"),
    [
        (Group("g", names=("*/2",), attention=True), range(6)),
        (Group("g", names=("@matmul:layers.1.attention/1",), attention=True), (2, 3)),
        (Group("g", regex=("MatMul_2$",), exclude=("*layers.1*/1",), attention=True), (0, 1, 4, 5)),
        (Group("g", exclude=("re:[.]0[.].*/2$",), attention=True), range(2, 7)),
        (Group("g", first_blocks=1, attention=True), (0, 1)),
        (Group("g", last_blocks=1, attention=True), (4, 5)),
        (Group("g", where=("not has_weight",), attention=True), range(7)),
    ],
)
def test_an_attention_is_chosen_whole(group: Group, found: tuple[int, ...]) -> None:
    assert chosen_products(group) == tuple(found)


def test_the_slowest_product_brings_its_attention() -> None:
    times = {PRODUCTS[3].id: 80.0, PRODUCTS[0].id: 20.0}
    assert chosen_products(Group("g", top_share=0.5, attention=True), times) == (2, 3)
    assert chosen_products(Group("g", top_share=0.9, attention=True), times) == (0, 1, 2, 3)


@given(st.sets(st.integers(0, 6), min_size=1), st.sets(st.integers(0, 6)))
def test_of_an_attention_all_or_none(named: set[int], excluded: set[int]) -> None:
    group = Group(
        "g",
        names=tuple(PRODUCTS[i].id for i in sorted(named)),
        exclude=tuple(PRODUCTS[i].id for i in sorted(excluded)),
        attention=True,
    )
    want = {PRODUCTS[i].scope for i in named} - {PRODUCTS[i].scope for i in excluded}
    if not want:
        with pytest.raises(ValueError, match="matches no site"):
            members(group, SITES, {}, PRODUCTS)
        return
    found = members(group, SITES, {}, PRODUCTS)
    assert found == tuple(s for s in PRODUCTS if s.scope in want)


def test_no_site_is_left_when_the_model_has_only_products() -> None:
    with pytest.raises(ValueError, match="matches no site"):
        members(ALL, (), {}, PRODUCTS)
