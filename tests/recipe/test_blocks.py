from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitworth.recipe import Site
from bitworth.recipe.blocks import blocks


def site(id_: str, node: str = "", op_type: str = "MatMul", scope: str = "") -> Site:
    return Site(id_, node or id_, op_type, "w", (8, 8), 0, 1, "x", "y", scope=scope)


def found(*ids: str) -> dict[str, int]:
    return {name: len(inside) for name, inside in blocks([site(i) for i in ids]).items()}


# By model: names as its export has them, and its blocks with the number of their sites.
BERT = [
    "embeddings.projection.weight",
    *[
        f"encoder.layer.{i}.{part}.weight"
        for i in range(3)
        for part in ("attention.self.query", "attention.self.key", "output.dense")
    ],
    "pooler.dense.weight",
]
VIT = [
    f"blocks.{i}.{part}.weight"
    for i in range(3)
    for part in ("attn.qkv", "attn.proj", "mlp.0", "mlp.2")
]
STAGES = [
    "stem.0.weight",
    *[f"stages.{i}.blocks.{j}.{p}.weight" for i in range(2) for j in range(2) for p in "ab"],
    *[f"stages.{i}.downsample.1.weight" for i in range(2)],
]
RESNET = [
    "conv1.weight",
    *[f"layer{i}.{j}.conv{k}.weight" for i in (1, 2) for j in (0, 1) for k in (1, 2)],
    "layer2.0.downsample.0.weight",
    "fc.weight",
]
MOBILENET = [
    "features.0.0.weight",
    *[f"features.{i}.conv.{j}.weight" for i in (1, 2, 3) for j in ("0.0", "1.0", "2")],
    "classifier.1.weight",
]
EFFICIENTNET = [
    *[f"features.1.0.block.{k}.weight" for k in ("0.0", "1.fc1", "1.fc2", "2.0")],
    *[
        f"features.{i}.{j}.block.{k}.weight"
        for i in (2, 3)
        for j in (0, 1)
        for k in ("0.0", "1.0", "2.fc1", "2.fc2", "3.0")
    ],
]
DIFFUSION = [
    f"down_blocks.{i}.attentions.{j}.transformer_blocks.0.{part}.weight"
    for i in (0, 1)
    for j in (0, 1)
    for part in ("attn1.to_q", "attn1.to_out.0", "attn2.to_q", "ff.net.0.proj", "ff.net.2")
]
MIXTURE = [
    f"layers.{i}.{part}.weight"
    for i in (0, 1)
    for part in ("attn.q", "attn.k", *[f"experts.{e}.{p}" for e in (0, 1, 2) for p in "ud"])
]
KERAS = [f"model/blocks_{i}/{part}/kernel" for i in (1, 2, 4) for part in ("expand", "project")]
VGG = [f"features.{i}.weight" for i in (0, 3, 6)]


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (BERT, {f"encoder.layer.{i}": 3 for i in range(3)}),
        (VIT, {f"blocks.{i}": 4 for i in range(3)}),
        (STAGES, {f"stages.{i}.blocks.{j}": 2 for i in (0, 1) for j in (0, 1)}),
        (RESNET, {"layer1.0": 2, "layer1.1": 2, "layer2.0": 3, "layer2.1": 2}),
        (MOBILENET, {"features.0": 1, "features.1": 3, "features.2": 3, "features.3": 3}),
        (
            EFFICIENTNET,
            {"features.1": 4} | {f"features.{i}.{j}": 5 for i in (2, 3) for j in (0, 1)},
        ),
        (
            DIFFUSION,
            # A list of one element is no depth.
            {f"down_blocks.{i}.attentions.{j}": 5 for i in (0, 1) for j in (0, 1)},
        ),
        (MIXTURE, {"layers.0": 8, "layers.1": 8}),
        (KERAS, {f"model.blocks_{i}": 2 for i in (1, 2, 4)}),
        (VGG, {f"features.{i}": 1 for i in (0, 3, 6)}),
    ],
)  # fmt: skip
def test_models(ids: list[str], names: dict[str, int]) -> None:
    assert found(*ids) == names


def test_the_node_tells_where_the_id_does_not() -> None:
    sites = [
        site(f"val_{i}{k}", f"/model/layers.{i}/{part}/MatMul")
        for i in (0, 1)
        for k, part in enumerate(("attn/q_proj", "attn/k_proj", "mlp/down"))
    ]
    assert list(blocks(sites)) == ["model.layers.0", "model.layers.1"]
    assert [len(b) for b in blocks(sites).values()] == [3, 3]


def test_shared_weights_lie_where_their_first_use_does() -> None:
    ids = ["layers.0.a.weight", "layers.0.b.weight", "layers.1.a.weight", "layers.1.b.weight"]
    assert found(*ids, "layers.1.a.weight#2") == {"layers.0": 2, "layers.1": 3}


def test_products_lie_in_the_block_of_their_attention() -> None:
    sites = [
        site(f"@matmul:bert.encoder.layer.{i}.attention/{n}", scope=f"bert.encoder.layer.{i}")
        for i in (0, 1)
        for n in (1, 2)
    ]
    assert {k: len(v) for k, v in blocks(sites).items()} == {
        "bert.encoder.layer.0": 2,
        "bert.encoder.layer.1": 2,
    }


def test_a_second_attention_of_one_name_lies_in_the_same_block() -> None:
    sites = [
        site(f"@matmul:layer.{i}{again}/{n}", scope=f"layer.{i}{again}")
        for i in (0, 1)
        for again in ("", "#2")
        for n in (1, 2)
    ]
    assert {k: len(v) for k, v in blocks(sites).items()} == {"layer.0": 4, "layer.1": 4}


def test_blocks_stand_in_the_order_of_the_graph() -> None:
    ids = [f"layers.{i}.{p}.weight" for i in (2, 10, 1) for p in "ab"]
    assert list(found(*ids)) == ["layers.2", "layers.10", "layers.1"]


@pytest.mark.parametrize(
    "ids",
    [
        ["conv2d_68.w_0", "conv2d_69.w_0", "linear_5.w_0"],  # paddle2onnx
        ["onnx::MatMul_12", "onnx::MatMul_13"],
        ["MatMul.3.weight", "MatMul.4.weight", "MatMul.9.weight"],  # counts operators
        ["fc1.weight", "fc2.weight"],
        ["0.weight", "2.weight"],  # no list around the index
        ["heads.0.a.weight", "heads.0.b.weight", "heads.1.a.weight", "heads.1.b.weight"],
        ["layers.0.a.weight"],  # one element is compared with nothing
        [],
    ],
)
def test_names_without_depth_are_refused(ids: list[str]) -> None:
    with pytest.raises(
        ValueError, match=r"hold no block index, .*select by names or where"
    ) as told:
        found(*ids)
    assert all(ids[0] in str(told.value) for _ in ids)
    assert "\n" not in str(told.value)


def test_real_names_without_depth() -> None:
    sites = [site("ConvTranspose.0.weight", op_type="ConvTranspose"), site("conv2d_3.w_0")]
    with pytest.raises(ValueError, match="hold no block index"):
        blocks([*sites, site("ConvTranspose.2.weight", op_type="ConvTranspose")])


@given(
    st.lists(st.integers(0, 99), min_size=2, max_size=12, unique=True),
    st.integers(2, 5),
    st.booleans(),
)
def test_every_site_of_a_block_is_in_it_once(indices: list[int], parts: int, slashes: bool) -> None:
    ids = [f"net.stack.{i}.part{p}.weight" for i in indices for p in range(parts)]
    outside = [site("stem.weight"), site("head.weight")]
    inside = [site(i.replace(".", "/") if slashes else i) for i in ids]
    got = blocks([outside[0], *inside, outside[1]])
    assert list(got) == [f"net.stack.{i}" for i in indices]
    assert [s for block in got.values() for s in block] == inside
