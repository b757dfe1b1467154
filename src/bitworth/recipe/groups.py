"""Named sets of sites."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bitworth.recipe.blocks import blocks
from bitworth.recipe.predicates import compile_predicate, what_there_is
from bitworth.recipe.site import Site

Sites = tuple[Site, ...]


@dataclass(frozen=True)
class Group:
    """Which sites a group holds: those that meet every condition given.

    Attributes:
        name: the group's name.
        names: glob patterns; a site's id or node name matches one of them.
        op_types: operator types.
        top_share: of the sites left in the end, the slowest that together take this share of their
            profiled time (0..1).
        regex: regular expressions; one is found in a site's id or node name.
        where: conditions on a site, all of which hold (see ``predicates``).
        first_blocks, last_blocks: the sites in so many blocks from the model's start or end (see
            ``blocks``); of both, either.
        exclude: glob patterns, or regular expressions after ``re:``; sites whose id or node name
            matches are taken out again.
        attention: whether the group holds products of two activations, which no other group does.
            Of an attention it holds all products or none: one that is chosen brings the others,
            one that is excluded takes them along.
    """

    name: str
    names: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    top_share: float | None = None
    regex: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    first_blocks: int | None = None
    last_blocks: int | None = None
    exclude: tuple[str, ...] = ()
    attention: bool = False


#: The group of all sites with weights; always defined.
ALL = Group("all")


def members(
    group: Group,
    sites: Sequence[Site],
    time_ns: Mapping[str, float],
    attention: Sequence[Site] = (),
) -> Sites:
    """The group's sites in graph order.

    Args:
        group: what to select.
        sites: all sites with weights.
        time_ns: profiled time by site id, for ``top_share``; a site without one counts as 0.
        attention: all products of two activations.

    Raises:
        ValueError: a condition that no site meets, or one that cannot be read; the message names
            the group and the condition.
    """
    pool = tuple(attention if group.attention else sites)
    try:
        return _members(group, pool, time_ns)
    except ValueError as error:
        raise ValueError(f"group '{group.name}': {error}") from None


def _members(group: Group, pool: Sites, time_ns: Mapping[str, float]) -> Sites:
    if group.attention and not pool:
        raise ValueError("the model has no product of two activations; leave the group out")
    chosen = pool
    for condition in (_of_types, _of_names, _of_regex, _where, _of_depth):
        kept = condition(group, pool)
        chosen = tuple(s for s in chosen if s.id in kept)
    dropped = _excluded(group, pool)
    if group.attention:
        chosen = _whole(chosen, pool)
        dropped = {s.id for s in _whole(tuple(s for s in pool if s.id in dropped), pool)}
    chosen = tuple(s for s in chosen if s.id not in dropped)
    if group.top_share is not None:
        chosen = _slowest(chosen, time_ns, group.top_share)
        chosen = _whole(chosen, pool) if group.attention else chosen
    if not chosen:
        raise ValueError("matches no site; loosen its conditions")
    return chosen


def _of_types(group: Group, pool: Sites) -> set[str]:
    known = {s.op_type for s in pool}
    for op_type in group.op_types:
        if op_type not in known:
            raise ValueError(
                f"op type '{op_type}' matches no site; "
                f"the model has {', '.join(sorted(known)) or 'no sites'}"
            )
    return {s.id for s in pool if not group.op_types or s.op_type in group.op_types}


def _of_names(group: Group, pool: Sites) -> set[str]:
    return _matching("pattern", group.names, [_glob(p) for p in group.names], pool)


def _of_regex(group: Group, pool: Sites) -> set[str]:
    return _matching("regex", group.regex, [_regex(p) for p in group.regex], pool)


def _where(group: Group, pool: Sites) -> set[str]:
    kept = {s.id for s in pool}
    for text in group.where:
        predicate = compile_predicate(text)
        met = {s.id for s in pool if predicate(s)}
        if not met:
            raise ValueError(f"where '{text}' holds for no site; {what_there_is(predicate, pool)}")
        kept &= met
    return kept


def _of_depth(group: Group, pool: Sites) -> set[str]:
    first, last = group.first_blocks, group.last_blocks
    if first is None and last is None:
        return {s.id for s in pool}
    for name, count in (("first_blocks", first), ("last_blocks", last)):
        if count is not None and count < 1:
            raise ValueError(f"{name} is {count}; give a whole number of at least 1")
    found = list(blocks(pool).values())
    ends = found[: first or 0] + (found[-last:] if last else [])
    return {s.id for block in ends for s in block}


def _excluded(group: Group, pool: Sites) -> set[str]:
    if not group.exclude:
        return set()
    tests = [_regex(p[3:]) if p.startswith("re:") else _glob(p) for p in group.exclude]
    return _matching("exclude", group.exclude, tests, pool)


def _matching(
    what: str, patterns: Sequence[str], tests: Iterable[Callable[[str], bool]], pool: Sites
) -> set[str]:
    """Ids of the sites that match one of the patterns; all where there is no pattern."""
    if not patterns:
        return {s.id for s in pool}
    kept: set[str] = set()
    for pattern, test in zip(patterns, tests, strict=True):
        met = {s.id for s in pool if test(s.id) or test(s.node)}
        if not met:
            example = f", such as '{pool[0].id}'" if pool else ""
            raise ValueError(
                f"{what} '{pattern}' matches no site; "
                f"it is matched against site ids and node names{example}"
            )
        kept |= met
    return kept


def _glob(pattern: str) -> Callable[[str], bool]:
    # A name with brackets in it, layers[0], matches itself too.
    return lambda name: name == pattern or fnmatchcase(name, pattern)


def _regex(pattern: str) -> Callable[[str], bool]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"regex '{pattern}' cannot be read ({error})") from None
    return lambda name: compiled.search(name) is not None


def _whole(chosen: Sites, pool: Sites) -> Sites:
    """All products of the attentions that one of ``chosen`` is part of."""
    scopes = {s.scope for s in chosen}
    return tuple(s for s in pool if s.scope in scopes)


def _slowest(sites: Sites, time_ns: Mapping[str, float], share: float) -> Sites:
    total = sum(time_ns.get(s.id, 0.0) for s in sites)
    kept: set[str] = set()
    reached = 0.0
    for site in sorted(sites, key=lambda s: (-time_ns.get(s.id, 0.0), s.id)):
        if total > 0 and reached >= share * total:
            break
        kept.add(site.id)
        reached += time_ns.get(site.id, 0.0)
    return tuple(s for s in sites if s.id in kept)
