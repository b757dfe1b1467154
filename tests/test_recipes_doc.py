"""Every study section in docs/recipes.md runs as it stands."""

from __future__ import annotations

import io
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from rich.console import Console

from bitworth.recipe import FORMATS
from bitworth.record.schema import VariantFacts
from bitworth.study.cell_run import CellRun
from bitworth.study.config import read_study_file
from bitworth.study.preparation import prepare_study
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.workspace import Workspace
from bitworth.subject.onnx_model import load

DOCUMENT = Path(__file__).parents[1] / "docs" / "recipes.md"
BLOCKS = re.findall(r"^```toml\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)

STEM = """
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, stem.weight)
    b = Relu (a)
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 64> (b, mix.weight)
    d = Relu (c)
    shape = Constant <value_ints = [0, 64, -1]> ()
    e = Reshape (d, shape)
    h0 = Transpose <perm = [0, 2, 1]> (e)
"""
LAYER = """
    n{i} = LayerNormalization <axis = -1> (h{i}, layers.{i}.norm1.weight, layers.{i}.norm1.bias)
    q{i} = MatMul (n{i}, layers.{i}.q_proj.weight)
    k{i} = MatMul (n{i}, layers.{i}.k_proj.weight)
    v{i} = MatMul (n{i}, layers.{i}.v_proj.weight)
    kt{i} = Transpose <perm = [0, 2, 1]> (k{i})
    s{i} = MatMul (q{i}, kt{i})
    p{i} = Softmax <axis = -1> (s{i})
    y{i} = MatMul (p{i}, v{i})
    o{i} = MatMul (y{i}, layers.{i}.o_proj.weight)
    r{i} = Add (h{i}, o{i})
    m{i} = LayerNormalization <axis = -1> (r{i}, layers.{i}.norm2.weight, layers.{i}.norm2.bias)
    u{i} = MatMul (m{i}, layers.{i}.up_proj.weight)
    g{i} = Relu (u{i})
    w{i} = MatMul (g{i}, layers.{i}.down_proj.weight)
    h{j} = Add (r{i}, w{i})
"""
INPUTS = """
import numpy as np

def _samples(count, seed, split):
    for i in range(count):
        x = np.random.default_rng((seed, split, i)).standard_normal((1, 3, 4, 4))
        yield {"x": x.astype(np.float32)}, None

def calibration(count, seed):
    return _samples(count, seed, 0)

def holdout(count, seed):
    return _samples(count, seed, 1)
"""
HEAD = """
version = 1
[subject]
name = "small"
onnx = "model.onnx"
[data]
source = "inputs.py"
calibration_samples = 3
holdout_samples = 3
[[cell]]
engine = "mock"
threads = 1
options = { script = SCRIPT }
[policy]
max_rel_l2 = 0.5
[timing]
budget_minutes = 0.001
min_sessions = 2
max_sessions = 2
"""


def weights() -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> NDArray[np.float32]:
        scale = 1 / np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0])
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    found = {"stem.weight": normal(64, 3, 3, 3), "mix.weight": normal(64, 1, 3, 3)}
    for i in range(2):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            found[f"layers.{i}.{name}.weight"] = normal(64, 64)
        found[f"layers.{i}.up_proj.weight"] = normal(64, 128)
        found[f"layers.{i}.down_proj.weight"] = normal(128, 64)
        for norm in ("norm1", "norm2"):
            found[f"layers.{i}.{norm}.weight"] = 1 + normal(64)
            found[f"layers.{i}.{norm}.bias"] = normal(64)
    return found | {"head.weight": normal(64, 8)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recipes")
    layers = "".join(LAYER.format(i=i, j=i + 1) for i in range(2))
    text = f"""
<ir_version: 8, opset_import: ["" : 17]>
small (float[N, 3, H, W] x) => (float[N, T, 8] logits) {{
    {STEM} {layers}
    logits = MatMul (h2, head.weight)
}}
"""
    # The parser takes no dots in names.
    model = onnx.parser.parse_model(re.sub(r"(?<=[a-z0-9])\.(?=[a-z0-9])", "__", text))
    for node in model.graph.node:
        node.input[:] = [name.replace("__", ".") for name in node.input]
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights().items())
    onnx.save(model, root / "model.onnx")
    (root / "inputs.py").write_text(INPUTS)
    return root


def test_the_document_shows_every_format() -> None:
    variants = [v for block in BLOCKS for v in tomllib.loads(block).get("variant", ())]
    assert {v["format"] for v in variants} == FORMATS.keys() - {"fp32"}
    assert all(f"`{name}`" in DOCUMENT.read_text() for name in FORMATS if name != "fp32")


@pytest.mark.parametrize(
    "block", BLOCKS, ids=lambda text: tomllib.loads(text)["variant"][0]["name"]
)
def test_a_block_of_the_document_runs(block: str, folder: Path, tmp_path: Path) -> None:
    script = json.dumps({"base_ns": 2e6, "sigma": 0.001})
    study = folder / f"{BLOCKS.index(block)}.toml"
    study.write_text(HEAD.replace("SCRIPT", json.dumps(script)) + block)
    config = read_study_file(study)
    request = StudyRequest(config, folder, tmp_path, "bitworth study")
    reporter = Reporter(Console(file=io.StringIO()), quiet=True)
    workspace = Workspace(tmp_path / "work")
    original = load(folder / config.subject.onnx)
    # All of a study but its timing, which is the same for every recipe.
    cell = CellRun(prepare_study(request, original, workspace, reporter), config.cell[0], "cell")
    cell.prepare()
    variants = {v.name: v for v in cell.variants if v.name != "baseline"}
    assert len(variants) >= len(tomllib.loads(block)["variant"])
    for variant in variants.values():
        check(variant)


def check(variant: VariantFacts) -> None:
    assert variant.state in ("measured", "emulated"), f"{variant.name}: {variant.reason}"
    assert variant.recipe is not None
    assert bool(variant.sites) == bool(variant.recipe.quantize), variant.name
    assert variant.quality is not None
    (found,) = variant.quality.outputs.values()
    # Something was rounded, and what came out is still the model's, even of 4-bit activations.
    assert found.rel_l2 is not None
    assert found.rel_l2 > 0 or variant.recipe.base == "bf16", variant.name
    assert found.cosine is not None
    assert found.cosine > 0.8, f"{variant.name}: {found.cosine}"
