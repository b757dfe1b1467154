"""What holds for the repository as a whole."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "src" / "bitworth").rglob("*.py"))


def test_no_module_is_over_400_lines() -> None:
    long = {m.name: n for m in MODULES if (n := len(m.read_text().splitlines())) > 400}
    assert not long


def test_half_of_the_modules_are_within_150_lines() -> None:
    lengths = sorted(len(m.read_text().splitlines()) for m in MODULES)
    assert lengths[len(lengths) // 2] <= 150


def test_every_package_has_a_docstring() -> None:
    bare = [str(m) for m in MODULES if ast.get_docstring(ast.parse(m.read_text())) is None]
    assert not bare


#: What users of the library may rely on; a change here is a change of the public surface.
PUBLIC = {
    "bitworth": {"__version__"},
    "bitworth.recipe": {
        "FORMATS", "PER_CHANNEL", "PER_ROW", "PER_TENSOR", "Calibrator", "Format", "Granularity",
        "PerBlock", "PerChannel", "PerRow", "PerTensor", "Quantize", "Recipe", "Site",
        "format_named",
    },
    "bitworth.calibration": {
        "BYTE_BUDGET", "Calibration", "RangeAccumulator", "RangeStatistics", "ScaledSites",
        "UnusableScaleError", "activation_range", "activation_scale", "observe", "quantize_sites",
        "weight_scale",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_surface(name: str) -> None:
    module = importlib.import_module(name)
    assert set(getattr(module, "__all__", ["__version__"])) == PUBLIC[name]
    for public in PUBLIC[name]:
        assert hasattr(module, public)


def test_the_commands_need_no_extra() -> None:
    """PyTorch is imported where a module is studied, and nowhere before."""
    script = (
        "import sys, bitworth.cli.main, bitworth.engines.torch\n"
        "heavy = {'torch', 'safetensors', 'torchao', 'diffusers', 'vl_convert'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["recipe", "verdict", "record"])
def test_records_need_no_engine(package: str) -> None:
    """They are read on laptops with none of them installed."""
    script = (
        "import sys, importlib, pkgutil\n"
        f"package = importlib.import_module('bitworth.{package}')\n"
        "for m in pkgutil.iter_modules(package.__path__):\n"
        f"    importlib.import_module('bitworth.{package}.' + m.name)\n"
        "heavy = {'torch', 'onnx', 'onnx_ir', 'onnxscript', 'onnxruntime', 'openvino'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
