from __future__ import annotations

import pytest

from bitworth.engines.base import LayerTime
from bitworth.measurement.profile import MappedLayer, map_layers, profile_fault
from bitworth.recipe import Site

#: x -> conv1 -> relu1 -> conv2 -> add (with relu1) -> act -> matmul -> softmax; gate on the side
UPSTREAM = {
    "conv1": ("x", "w1", "b1"),
    "relu1": ("c1",),
    "conv2": ("r1", "w2"),
    "gate": ("c2",),
    "mul": ("c2", "g"),
    "add": ("c2", "r1"),
    "matmul": ("m", "w3"),
    "softmax": ("mm",),
}
PRODUCERS = {
    "c1": "conv1",
    "r1": "relu1",
    "c2": "conv2",
    "g": "gate",
    "m": "mul",
    "s": "add",
    "mm": "matmul",
    "y": "softmax",
}


def site(name: str, op_type: str = "Conv") -> Site:
    return Site(f"{name}.weight", name, op_type, "w", (4, 4), 0, 1, "x", "y")


SITES = (site("conv1"), site("conv2"), site("matmul", "MatMul"))


def layer(op: str, *origins: str, ns: float = 1.0) -> LayerTime:
    return LayerTime("layer", op, "kernel", "f32", ns, origins)


@pytest.mark.parametrize(
    ("found", "sites"),
    [
        (layer("Conv", "conv1"), ["conv1.weight"]),
        (layer("Conv", "c1"), ["conv1.weight"]),  # named after its output
        (layer("Convolution", "conv1", "relu1"), ["conv1.weight"]),
        (layer("FusedConv", "relu1"), ["conv1.weight"]),  # only the swallowed activation is named
        (layer("FusedConv", "r1"), ["conv1.weight"]),
        (layer("Convolution", "conv1", "conv2"), ["conv1.weight", "conv2.weight"]),
        (layer("Convolution", "c1", "conv1"), ["conv1.weight"]),  # twice the same
        (layer("MatMul", "softmax"), ["matmul.weight"]),
        (layer("Conv", "mul"), ["conv2.weight"]),  # c2 * gate(c2): two paths, one site
        (layer("Conv", "add"), []),  # conv2 and conv1 behind it: nobody knows which
        (layer("Relu", "relu1"), []),  # computes no site
        (layer("Add", "s"), []),
        (layer("Conv", "x"), []),  # an input of the graph
        (layer("Conv", "conv1_fused_by_hand"), []),
        (layer("Conv"), []),
    ],
)
def test_which_sites_a_layer_computes(found: LayerTime, sites: list[str]) -> None:
    (mapped,) = map_layers([found], SITES, PRODUCERS, UPSTREAM)
    assert mapped == MappedLayer(found, tuple(sites))


def test_a_search_that_is_cut_short_finds_nothing() -> None:
    """One site is near, another lies behind more operations than are looked at."""
    upstream = {"join": ("v0", "c1"), "conv1": ("x",), "conv2": ("x",)}
    producers = {"c1": "conv1", "v40": "conv2"}
    for i in range(40):
        upstream[f"n{i}"] = (f"v{i + 1}",)
        producers[f"v{i}"] = f"n{i}"
    for order in (("v0", "c1"), ("c1", "v0")):
        upstream["join"] = order
        (mapped,) = map_layers([layer("Conv", "join")], SITES, producers, upstream)
        assert mapped.sites == ()


def test_a_graph_with_a_cycle_of_names_ends() -> None:
    upstream = {"a": ("vb",), "b": ("va",)}
    (mapped,) = map_layers([layer("Conv", "a")], SITES, {"va": "a", "vb": "b"}, upstream)
    assert mapped.sites == ()


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ([], "no layer"),
        ([1.0, -2.0], "-2 ns for layer 'layer'"),
        ([float("nan")], "nan ns"),
        ([float("inf")], "inf ns"),
        ([0.0, 0.0], "no time for any of 2 layers"),
    ],
)
def test_a_profile_that_cannot_be_used_says_why(times: list[float], told: str) -> None:
    assert told in profile_fault([layer("Conv", ns=time) for time in times])


def test_a_profile_with_some_layers_of_no_time_is_used() -> None:
    assert profile_fault([layer("Conv", ns=1.0), layer("Reshape", ns=0.0)]) == ""
