"""Named sets of sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bitworth.recipe.site import Site


@dataclass(frozen=True)
class Group:
    """Which sites a group holds: those that meet every condition given.

    Attributes:
        name: the group's name.
        names: glob patterns; a site's id or node name matches one of them.
        op_types: operator types.
        top_share: of the sites left, the slowest that together take this share of their profiled
            time (0..1).
    """

    name: str
    names: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    top_share: float | None = None


#: The group of all sites; always defined.
ALL = Group("all")


def members(group: Group, sites: Sequence[Site], time_ns: Mapping[str, float]) -> tuple[Site, ...]:
    """The group's sites in graph order.

    Args:
        group: what to select.
        sites: all sites.
        time_ns: profiled time by site id, for ``top_share``; a site without one counts as 0.

    Raises:
        ValueError: a pattern or an operator type matches no site; the message names it.
    """
    chosen = tuple(sites)
    if group.op_types:
        known = {s.op_type for s in sites}
        for op_type in group.op_types:
            if op_type not in known:
                raise ValueError(
                    f"group '{group.name}': op type '{op_type}' matches no site; "
                    f"the model has {', '.join(sorted(known)) or 'no sites'}"
                )
        chosen = tuple(s for s in chosen if s.op_type in group.op_types)
    if group.names:
        for pattern in group.names:
            if not any(_matches(pattern, s) for s in sites):
                example = f", such as '{sites[0].id}'" if sites else ""
                raise ValueError(
                    f"group '{group.name}': pattern '{pattern}' matches no site; "
                    f"patterns are matched against site ids and node names{example}"
                )
        chosen = tuple(s for s in chosen if any(_matches(p, s) for p in group.names))
    if group.top_share is not None:
        chosen = _slowest(chosen, time_ns, group.top_share)
    if not chosen:
        raise ValueError(f"group '{group.name}' matches no site; loosen its conditions")
    return chosen


def _matches(pattern: str, site: Site) -> bool:
    # A name with brackets in it, layers[0], matches itself too.
    return pattern in (site.id, site.node) or any(
        fnmatchcase(name, pattern) for name in (site.id, site.node)
    )


def _slowest(
    sites: tuple[Site, ...], time_ns: Mapping[str, float], share: float
) -> tuple[Site, ...]:
    total = sum(time_ns.get(s.id, 0.0) for s in sites)
    kept: set[str] = set()
    reached = 0.0
    for site in sorted(sites, key=lambda s: (-time_ns.get(s.id, 0.0), s.id)):
        if total > 0 and reached >= share * total:
            break
        kept.add(site.id)
        reached += time_ns.get(site.id, 0.0)
    return tuple(s for s in sites if s.id in kept)
