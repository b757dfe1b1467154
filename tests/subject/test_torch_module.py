"""What a PyTorch module's sites are, what they read, and what becomes of them in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from bitworth.subject.torch_export import export_onnx
from bitworth.subject.torch_module import (
    count_denormals,
    identity_sha256,
    is_pointwise,
    named_outputs,
    scan,
    to_tensors,
)
from tests.torch_nets import Net, net


@pytest.fixture
def inputs() -> dict[str, torch.Tensor]:
    return {"image": torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))}


def test_sites_in_the_order_in_which_they_run(inputs: Mapping[str, torch.Tensor]) -> None:
    found = scan(net().eval(), inputs)
    names = [site.node for site in found.sites]
    assert names[:3] == ["stem", "proj", "blocks.0.q"]
    assert names[-1] == "head"
    assert len(names) == 2 + 2 * 6 + 1
    assert all(site.id == f"{site.node}.weight" == site.weight for site in found.sites)
    by_name = {site.node: site for site in found.sites}
    assert [by_name[n].op_type for n in ("stem", "proj", "head")] == ["Conv", "Conv", "Linear"]
    assert by_name["proj"].pointwise
    assert not by_name["stem"].pointwise
    assert (by_name["blocks.0.up"].in_channels, by_name["blocks.0.up"].out_channels) == (32, 64)
    assert by_name["blocks.0.up"].rows == 64
    assert by_name["head"].rows == 1
    assert found.outputs == ("logits",)
    assert found.inputs == {"image": ((1, 3, 8, 8), "float32")}


def test_siblings_read_one_tensor(inputs: Mapping[str, torch.Tensor]) -> None:
    found = scan(net().eval(), inputs)
    assert found.siblings == tuple(tuple(f"blocks.{i}.{name}" for name in "qkv") for i in range(2))


class Odd(nn.Module):
    """One Linear called twice, one whose sibling has no bias, one that never runs, a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.with_bias, self.without = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.idle = nn.Linear(4, 4)
        self.table = nn.Embedding(7, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        x = self.twice(self.twice(x))
        return self.with_bias(x) + self.without(x) + self.table.weight[0], 3


def test_what_is_no_site_is_told_and_what_cannot_be_fused_is_no_sibling() -> None:
    found = scan(Odd().eval(), {"x": torch.randn(2, 4)})
    assert [site.node for site in found.sites] == ["twice", "with_bias", "without"]
    assert [call.module for call in found.calls] == ["twice", "twice", "with_bias", "without"]
    assert found.siblings == ()
    assert {(name, reason) for name, _, reason in found.uncovered} == {
        ("idle", "did not run"),
        ("table", "holds a weight and is no Linear or Conv"),
    }
    assert found.outputs == ("output_0",)


def test_the_identity_is_that_of_every_tensor() -> None:
    first = identity_sha256(net(), "source")
    assert identity_sha256(net(), "source") == first
    assert identity_sha256(net(), "other source") != first
    for name in ("head.bias", "scale"):
        changed = net()
        with torch.no_grad():
            changed.get_parameter(name).add_(1) if name != "scale" else changed.scale.add_(1)
        assert identity_sha256(changed, "source") != first, name
    assert identity_sha256(Net(width=64), "source") != first


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (torch.ones(2), ["output"]),
        ({"a": torch.ones(2), "b": 3}, ["a"]),
        ((torch.ones(2), None, torch.ones(1)), ["output_0", "output_2"]),
        ([torch.ones(2)], ["output_0"]),
        (SimpleNamespace(sample=torch.ones(2), _cache=torch.ones(1)), ["sample"]),
    ],
)
def test_outputs_by_name(result: Any, names: list[str]) -> None:
    assert list(named_outputs(result)) == names


def test_inputs_become_tensors_of_the_base() -> None:
    arrays = {
        "x": np.ones((2, 3), np.float32),
        "half": np.ones(2, ml_dtypes.bfloat16),
        "t": np.array([3], np.int64),
        "scalar": np.float32(2.0),
    }
    made = to_tensors(arrays, "cpu", torch.bfloat16)  # type: ignore[arg-type]
    assert {k: v.dtype for k, v in made.items()} == {
        "x": torch.bfloat16, "half": torch.bfloat16, "t": torch.int64, "scalar": torch.bfloat16,
    }  # fmt: skip
    assert made["scalar"].shape == ()


def test_denormal_weights_are_counted() -> None:
    assert count_denormals(torch.tensor([0.0, 1e-40, -1e-39, 1.0, 1.2e-38])) == 2
    assert count_denormals(torch.tensor([0, 1])) == 0


@pytest.mark.parametrize(
    ("conv", "expected"),
    [
        (nn.Conv2d(4, 8, 1), True),
        (nn.Conv1d(4, 8, 1), True),
        (nn.Conv2d(4, 8, 1, stride=2), False),
        (nn.Conv2d(4, 8, 1, padding=1), False),
        (nn.Conv2d(4, 8, 1, groups=2), False),
        (nn.Conv2d(4, 8, 3), False),
        (nn.Linear(4, 8), False),
    ],
)
def test_a_convolution_that_is_a_product(conv: nn.Module, expected: bool) -> None:
    assert is_pointwise(conv) is expected


def test_the_exported_model_has_the_same_sites(
    inputs: Mapping[str, torch.Tensor], tmp_path: Path
) -> None:
    """One recipe by names applies to every engine."""
    module = net().eval().requires_grad_(False)
    found = scan(module, inputs)
    sites = export_onnx(module, inputs, found.outputs, tmp_path / "net.onnx")
    assert sites == tuple(site.id for site in found.sites)
