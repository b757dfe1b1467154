"""Depth: which of a model's repeated blocks a site lies in, from its name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bitworth.recipe.site import Site

_NUMBERED = re.compile(r"(?P<name>.*[^\d_])_(?P<index>\d+)")
# Lists whose members run side by side: they are no depth.
_PARALLEL = ("experts", "heads", "branches")
_Path = tuple[str, ...]


@dataclass(frozen=True)
class _Place:
    """One index in a site's path: ``stages.2`` or ``stages.2.blocks.5``.

    Attributes:
        container: the path of the list that it indexes.
        element: the path up to and with the index.
        inside: the path behind it.
    """

    container: _Path
    element: _Path
    inside: _Path


def blocks(sites: Sequence[Site]) -> dict[str, tuple[Site, ...]]:
    """The model's blocks in graph order, each with its sites; sites outside blocks are in none.

    A path is cut at dots and slashes (``encoder.layer.0.query.weight``,
    ``/encoder/layer.0/query/MatMul``); it is that of the site's id, or of its node where the id
    holds no index. An index is a whole number between two parts, or at the end of one that is not
    the last module (``blocks_4``). A block is the path up to an index of a list of comparable
    elements: two of its elements share the names of at least two sites inside them. Of nested ones
    it is the innermost: ``stages.2.blocks.5``, but not ``blocks.5.mlp.0``, whose elements are
    single layers; what is in ``stages.2`` and in none of its blocks is in none. Where no list is
    like that, each element of a list of single layers is a block.

    Raises:
        ValueError: no name holds such an index.
    """
    paths = {site.id: _places(site) for site in sites}
    for shared in (2, 1):
        lists = _comparable((p for places in paths.values() for p in places), shared)
        found: dict[_Path, list[Site]] = defaultdict(list)
        for site in sites:
            inner = [p for p in paths[site.id] if p.container in lists]
            if inner:
                found[inner[-1].element].append(site)
        around = {element[:i] for element in found for i in range(len(element))}
        if found:
            return {".".join(e): tuple(found[e]) for e in found if e not in around}
    example = f" such as '{sites[0].id}'" if sites else ""
    raise ValueError(
        f"the model's names{example} hold no block index, as 'layers.0.query' would; select by "
        "names or where"
    )


def _places(site: Site) -> list[_Place]:
    # A product's id is its scope and a number; other ids may end with the number of a consumer.
    scope, _, number = site.id.removeprefix("@matmul:").rpartition("/")
    named = (*_cut(scope), number) if site.scope else _cut(site.id)
    return list(_indices(named, site.op_type)) or list(_indices(_cut(site.node), site.op_type))


def _cut(name: str) -> _Path:
    return tuple(part for part in re.split(r"[./]", name.partition("#")[0]) if part)


def _indices(path: _Path, op_type: str) -> Iterator[_Place]:
    """The indices of a path; its last part, the parameter or the operator, is none."""
    for i, part in enumerate(path[:-1]):
        numbered = _NUMBERED.fullmatch(part) if i < len(path) - 2 else None
        if part.isdecimal() and i > 0:
            around = path[:i]
        elif numbered:
            around = (*path[:i], numbered["name"])
        else:
            continue
        # MatMul.3 counts operators of the graph, not modules.
        if around[-1] not in (op_type, *_PARALLEL):
            yield _Place(around, path[: i + 1], path[i + 1 :])


def _comparable(places: Iterable[_Place], shared: int) -> set[_Path]:
    """Lists of which two elements share at least ``shared`` names inside."""
    lists: Mapping[_Path, dict[_Path, set[_Path]]] = defaultdict(lambda: defaultdict(set))
    for place in places:
        lists[place.container][place.element].add(place.inside)
    return {c for c, elements in lists.items() if _alike(list(elements.values()), shared)}


def _alike(elements: list[set[_Path]], shared: int) -> bool:
    distinct = {frozenset(e) for e in elements}
    if len(distinct) < len(elements) and any(
        len(d) >= shared and elements.count(set(d)) > 1 for d in distinct
    ):
        return True
    kinds = list(distinct)
    return any(len(a & b) >= shared for i, a in enumerate(kinds) for b in kinds[i + 1 :])
