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
        (Group("g", names=("stem*",), op_types=("Gemm",)), "'g' matches no site; loosen"),
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
