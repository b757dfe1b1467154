"""The torch engine on the CPU: plans, guards, options, profiles."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bitworth.engines.base import EngineError, EngineOptions, LoweredModel
from bitworth.engines.plan_file import plan_sha256
from bitworth.engines.torch import ENGINE, OPTIONS, gpu_formats
from bitworth.engines.torch_compile import Compiled, regions
from bitworth.engines.torch_profile import COMPILED, _mapped, _Product
from bitworth.engines.torch_runner import TorchRunner
from bitworth.lowering.torch_layers import LoweredLinear
from bitworth.lowering.torch_lower import write_lowered_module
from bitworth.lowering.torch_spec import TorchSpec, read_spec
from bitworth.study.config import check
from bitworth.subject.torch_factory import factory_of, source_sha256
from bitworth.subject.torch_module import scan
from tests.torch_nets import Block, net

pytestmark = pytest.mark.filterwarnings("ignore")
EAGER = EngineOptions(threads=1, extra={"compile": "eager"})
COMPILE = EngineOptions(threads=1)
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: none is here")
FACTORY = factory_of("tests.torch_nets:net", Path())


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {"image": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The net as it is, lowered to fp32."""
    path = tmp_path_factory.mktemp("torch") / "net.safetensors"
    module = net().eval().requires_grad_(False)
    found = scan(module, {"image": torch.zeros(1, 3, 8, 8)})
    spec = TorchSpec(FACTORY, source_sha256(FACTORY), "fp32", siblings=found.siblings)
    write_lowered_module(spec, module, {}, path)
    return path


def loaded(model: Path, options: EngineOptions, folder: Path) -> Any:
    """The model built, saved and loaded again, as a worker does."""
    plan = ENGINE.build(LoweredModel(model, "baseline"), options)
    plan.save(folder / "plan.bin")
    return ENGINE.open(folder / "plan.bin", "fp32", options).load()


def outputs(runner: Any, inputs: Mapping[str, Any]) -> Any:
    runner.bind(inputs)
    runner.run()
    return runner.outputs()["logits"]


def test_a_saved_plan_computes_what_the_module_does(
    model: Path, inputs: Mapping[str, Any], tmp_path: Path
) -> None:
    want = net().eval()(torch.from_numpy(inputs["image"]))["logits"].detach().numpy()
    runner = loaded(model, EAGER, tmp_path)
    assert np.allclose(outputs(runner, inputs), want, atol=1e-6)
    assert runner.precision() == "fp32"
    assert np.array_equal(runner.inputs()["image"], inputs["image"])
    fused = loaded(model, replace(EAGER, extra={"compile": "eager", "fuse": "on"}), tmp_path)
    assert np.allclose(outputs(fused, inputs), want, atol=1e-6)


def test_a_compiled_plan_computes_the_same_and_says_where_its_time_goes(
    model: Path, inputs: Mapping[str, Any], tmp_path: Path
) -> None:
    runner = loaded(model, COMPILE, tmp_path)
    want = net().eval()(torch.from_numpy(inputs["image"]))["logits"].detach().numpy()
    assert np.allclose(outputs(runner, inputs), want, atol=1e-5)
    samples = runner.time_block(4, 2)
    assert len(samples) == 4
    assert min(samples) > 0
    layers = runner.profile(2)
    mapped = {origin for layer in layers for origin in layer.origins}
    found = scan(net().eval(), {"image": torch.zeros(1, 3, 8, 8)})
    assert mapped == {site.node for site in found.sites}
    products = [layer for layer in layers if layer.origins]
    assert {layer.format for layer in products} == {"fp32"}
    assert {layer.op for layer in products} == {"MatMul", "Conv"}
    assert COMPILED in {layer.name for layer in layers}
    assert all(layer.time_ns > 0 for layer in layers)


def test_calls_with_different_products_give_no_profile() -> None:
    """Their time would be in no row, and every other row's share too large."""
    product = _Product("aten::mm", (4, 4), "gemm", "fp32", 10.0)
    with pytest.raises(EngineError, match="3 products in 2 calls"):
        _mapped([product] * 3, [], 2)
    assert sum(layer.time_ns for layer in _mapped([product] * 4, [], 2)) == 20.0


def test_the_same_model_gives_the_same_plan(model: Path, tmp_path: Path) -> None:
    hashes = set()
    for name in ("a", "b"):
        plan = ENGINE.build(LoweredModel(model, "baseline"), COMPILE)
        plan.save(tmp_path / name)
        hashes.add(plan_sha256(tmp_path / name))
        assert plan.size_bytes == (tmp_path / name).stat().st_size
    assert len(hashes) == 1
    assert plan.note.startswith("compiled by torch.compile")
    assert plan.layers().count("Linear") == 2 * 6 + 1
    other = replace(COMPILE, extra={"fuse": "on"})
    ENGINE.build(LoweredModel(model, "baseline"), other).save(tmp_path / "c")
    assert plan_sha256(tmp_path / "c") not in hashes
    assert read_spec(tmp_path / "c").options == (("fuse", "on"),)


def test_inputs_of_another_shape_are_bound_anew(
    model: Path, inputs: Mapping[str, Any], tmp_path: Path
) -> None:
    runner = loaded(model, EAGER, tmp_path)
    assert outputs(runner, inputs).shape == (1, 10)
    more = {"image": np.concatenate([inputs["image"]] * 3)}
    assert outputs(runner, more).shape == (3, 10)
    other = {"image": -inputs["image"]}
    first = outputs(runner, other)
    assert not np.array_equal(first, outputs(runner, inputs))


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"fuze": "on"}, "no option 'fuze'"),
        ({"fuse": "yes"}, "it takes on or off"),
        ({"compile": "aot"}, "blocks or whole or eager"),
    ],
)
def test_an_option_that_nothing_reads_is_refused(
    model: Path, extra: dict[str, str], told: str
) -> None:
    with pytest.raises(EngineError, match=told):
        ENGINE.build(LoweredModel(model, "baseline"), EngineOptions(threads=1, extra=extra))


def test_a_gpu_that_is_not_there_is_told(model: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    wanted = EngineOptions(threads=1, extra={"device": "cuda", "compile": "eager"})
    with pytest.raises(EngineError, match="no CUDA device here"):
        loaded(model, wanted, tmp_path)
    with pytest.raises(EngineError, match="mode hot is for a GPU"):
        loaded(model, replace(EAGER, mode="hot"), tmp_path)


def test_a_factory_that_changed_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    text = "import torch\ndef make():\n    return torch.nn.Linear(16, 16)\n"
    source.write_text(text)
    factory = factory_of("model.py:make", tmp_path)
    spec = TorchSpec(factory, "the hash of another source", "fp32")
    write_lowered_module(spec, torch.nn.Linear(16, 16), {}, tmp_path / "m.safetensors")
    with pytest.raises(EngineError, match=r"model\.py:make has changed"):
        loaded(tmp_path / "m.safetensors", EAGER, tmp_path)


def test_regions_are_the_members_of_the_outermost_lists() -> None:
    assert regions(net(), "blocks") == ("blocks.0", "blocks.1")
    assert regions(net(), "whole") == ("",)
    assert regions(nn.Linear(2, 2), "blocks") == ("",)
    # A list of lists runs nothing itself.
    nested = nn.ModuleList(nn.ModuleList(nn.Linear(2, 2) for _ in "ab") for _ in "ab")
    found = regions(nn.Sequential(nested), "blocks")
    assert found == ("0.0.0", "0.0.1", "0.1.0", "0.1.1")
    inner = nn.ModuleList(nn.Sequential(nn.ModuleList(Block(4) for _ in "ab")) for _ in "ab")
    assert regions(nn.Sequential(inner), "blocks") == ("0.0", "0.1")


class Breaking(nn.Module):
    """Its blocks print what they compute, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Printing() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Printing(nn.Module):
    """A block that cannot be one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return self.linear(x)


def test_a_graph_break_is_refused() -> None:
    compiled = Compiled(Breaking().eval(), "blocks", {})
    with pytest.raises(EngineError, match="has to be one graph"):
        compiled.run({"x": torch.ones(1, 4)})
    assert Compiled(Breaking().eval(), "eager", {}).run({"x": torch.ones(1, 4)}).shape == (1, 4)


class InTheBase(LoweredLinear):
    """A lowered module that quietly computes in the base precision."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.float() * self.weight_scale[:, None], self.bias)


def _one_lowered(kind: type[LoweredLinear]) -> nn.Module:
    module = nn.Sequential(nn.ModuleList(Block(16) for _ in range(2)))
    for block in module[0]:
        made = kind(
            (16, 16), True, "int8", dynamic=True, per_row=False, per_channel=True,
            base=torch.float32,
        )  # fmt: skip
        made.weight.zero_()
        made.weight_scale.fill_(1)
        made.bias.zero_()
        block.out = made
    return Chain(module[0]).eval().requires_grad_(False)


class Chain(nn.Module):
    """Blocks one after another."""

    def __init__(self, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_a_site_that_ran_in_the_base_precision_is_found() -> None:
    """It would be timed as if it were quantized, and look like a format that gains nothing."""
    x = {"x": torch.ones(1, 3, 16)}
    with torch.no_grad():
        honest = Compiled(_one_lowered(LoweredLinear), "blocks", {})
        honest.run(x)
        honest.check()
        torch._dynamo.reset()
        false = Compiled(_one_lowered(InTheBase), "blocks", {})
        false.run(x)
    with pytest.raises(EngineError, match="ran in the base precision"):
        false.check()


def test_what_compiles_while_it_is_timed_is_found() -> None:
    torch._dynamo.reset()
    compiled = Compiled(Chain(nn.ModuleList(Block(16) for _ in range(2))).eval(), "blocks", {})
    runner = TorchRunner(compiled, "fp32", "cpu", "host", graphed=False)
    runner.bind({"x": np.ones((1, 3, 16), np.float32)})
    assert len(runner.time_block(2)) == 2
    runner._inputs = {"x": torch.ones(1, 5, 16)}
    with pytest.raises(EngineError, match="compiled again while calls were timed"):
        runner.time_block(2)


@pytest.mark.parametrize(
    ("capability", "state"),
    [((8, 0), "emulated"), ((8, 9), "native"), ((9, 0), "native"), ((10, 0), "native")],
)
def test_fp8_is_native_from_ada_on(capability: tuple[int, int], state: str) -> None:
    found = gpu_formats(capability)
    assert found["fp8_e4m3"].state == found["fp8_e4m3 dynamic"].state == state
    assert found["nvfp4"].state == "emulated"


def test_what_this_machine_cannot_do_is_emulated() -> None:
    info = ENGINE.probe()
    if torch.cuda.is_available():
        assert "compute_capability" in info.details
        return
    assert info.formats["fp8_e4m3"].state == "emulated"
    assert info.formats["int8"].state == "native"


def test_every_option_is_documented() -> None:
    import bitworth.engines.torch as engine

    assert engine.__doc__ is not None
    assert all(f"    {name} " in engine.__doc__ for name in OPTIONS)


def test_the_document_shows_a_study_that_is_valid_and_every_option() -> None:
    text = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    config = check(tomllib.loads(block), Path("docs/torch.md"))
    assert config.subject.torch == "model.py:net"
    rows = text.split("## Options")[1].split("## Plans")[0]
    assert set(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)) == set(OPTIONS)


@GPU
@pytest.mark.parametrize("mode", ["host", "hot", "cold"])
def test_a_cuda_graph_gives_what_the_module_gives(
    model: Path, inputs: Mapping[str, Any], tmp_path: Path, mode: Any
) -> None:
    want = net().eval()(torch.from_numpy(inputs["image"]))["logits"].detach().numpy()
    runner = loaded(model, EngineOptions(threads=1, mode=mode), tmp_path)
    assert np.allclose(outputs(runner, inputs), want, atol=1e-4)
    other = {"image": -inputs["image"]}
    assert not np.allclose(outputs(runner, other), want, atol=1e-4)
    assert min(runner.time_block(5, 1 if mode == "cold" else 2)) > 0
    layers = runner.profile(2)
    assert {o for layer in layers for o in layer.origins} >= {"blocks.0.q", "blocks.1.down"}
