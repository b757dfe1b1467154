"""Takes a model of several GB through a study's steps, in a process that reads its own peaks.

    python large_model.py lower FOLDER SIZE LAYERS
    python large_model.py run FOLDER SIZE

The first writes the model, prepares, calibrates and lowers it in FOLDER, the second runs what was
written; each prints what it found as one line of JSON. SIZE is the side of each square weight.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bitworth.calibration import observe
from bitworth.lowering.placement import observed_values
from bitworth.recipe import FORMATS, PER_CHANNEL, Quantize, Recipe
from bitworth.recipe.granularity import PerBlock
from bitworth.recipe.rules import preference
from bitworth.study.lowered_variant import scale_variant, write_lowered
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.sites import find_sites

CHANNELS = 8
#: Numbers written at a time.
CHUNK = 1 << 22
SAMPLES = 3
#: Layers that read their weight through a Transpose, as most exported models do; layer 2 is a Gemm
#: with transB.
TURNED = range(1, 1000, 2)
#: The layers that are lowered, after the convolution (site 0).
GROUPS = {"int8": slice(2, 5), "int4": slice(6, 8)}
RECIPE = Recipe(
    quantize=(
        Quantize("int8", "int8", weights=PER_CHANNEL),
        Quantize("int4", "int4", weights=PerBlock(128), scheme="weight_only"),
    )
)


def write_model(folder: Path, size: int, layers: int) -> Path:
    """Write a convolution and then square products, whose weights lie in a file beside the model.

    They are written in chunks: no more than one is ever in memory.
    """
    path, data = folder / "large.onnx", folder / "large.onnx.data"
    length = 4 * size * size
    block = np.random.default_rng(0).standard_normal(CHUNK, dtype=np.float32)
    block *= np.float32((2.0 / size) ** 0.5)
    with data.open("wb") as file:
        for layer in range(layers):
            for start in range(0, size * size, CHUNK):
                # Turned each time, so that no two weights are the same.
                turn = 7919 * (layer + 1) + start // CHUNK
                file.write(block[turn : turn + size * size - start].data)
                file.write(block[: min(turn, max(0, size * size - start - CHUNK + turn))].data)
    assert data.stat().st_size == layers * length
    weights = [f"layer{i}.weight" for i in range(layers)]
    kernel = np.random.default_rng(1).standard_normal((CHANNELS, 3, 1, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight"], ["c"], pads=[0, 1, 0, 1], name="conv"),
        helper.make_node("Flatten", ["c"], ["v0"], name="flatten"),
    ]
    for i, weight in enumerate(weights):
        gemm = {"transB": 1} if i == 2 else {}
        if i in TURNED:
            nodes.append(helper.make_node("Transpose", [weight], [f"turned{i}"], perm=[1, 0]))
            weight = f"turned{i}"
        inputs = [f"v{i}", weight]
        kind = "Gemm" if gemm else "MatMul"
        nodes.append(helper.make_node(kind, inputs, [f"p{i}"], name=f"layer{i}", **gemm))
        nodes.append(helper.make_node("Relu", [f"p{i}"], [f"v{i + 1}"], name=f"relu{i}"))
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 1, size // CHANNELS])],
        [helper.make_tensor_value_info(f"v{layers}", TensorProto.FLOAT, ["N", size])],
        [
            numpy_helper.from_array(kernel, "conv.weight"),
            *(_external(w, data.name, size, i * length) for i, w in enumerate(weights)),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def _external(name: str, location: str, size: int, offset: int) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[size, size])
    tensor.data_location = TensorProto.EXTERNAL
    where = {"location": location, "offset": offset, "length": 4 * size * size}
    for key, value in where.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def samples(size: int) -> Iterator[dict[str, NDArray[np.float32]]]:
    """A few samples of two rows each."""
    for i in range(SAMPLES):
        rng = np.random.default_rng((2, i))
        yield {"x": rng.standard_normal((2, 3, 1, size // CHANNELS), dtype=np.float32)}


@contextmanager
def step(name: str, peaks: dict[str, int]) -> Iterator[None]:
    """Note the largest resident size of the process, in bytes, during the block.

    The kernel's VmHWM: anonymous memory and pages of mapped files alike. It is set back first.
    """
    Path("/proc/self/clear_refs").write_text("5")
    yield
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            peaks[name] = 1024 * int(line.split()[1])


def lower(folder: Path, size: int, layers: int) -> dict[str, object]:
    """Write the model, and take it from its path to a lowered variant."""
    peaks: dict[str, int] = {}
    with step("write the model", peaks):
        path = write_model(folder, size, layers)
    with step("load", peaks):
        model = load(path)
    with step("prepare", peaks):
        prepared = prepare(model, FORMATS["int8"].onnx_opset)
    with step("sites", peaks):
        sites = find_sites(prepared).sites
    with step("calibrate", peaks):
        values = observed_values(prepared.model, sites)
        found = observe(prepared.model, values, samples(size), threads=2)
    with step("scales", peaks):
        groups = {name: sites[part] for name, part in GROUPS.items()}
        preferred = preference("onnxruntime", ())
        variant = scale_variant(
            prepared, sites, RECIPE, groups, found.statistics, "onnxruntime", preferred,
            # Packing is not what is tested here.
            ignore_rules=["onnxruntime-weight-only-transposed"],
        )  # fmt: skip
    with step("lower and save", peaks):
        write_lowered(variant, folder / "lowered.onnx", emulated=False)
    return {
        "peaks": peaks,
        "sites": len(sites),
        "samples": found.samples,
        "quantized": [entry.site.id for entry in variant.scaled.quantized],
        "largest": found.statistics[f"p{layers - 1}"].maximum,
    }


def run(folder: Path, size: int) -> dict[str, object]:
    """Run the lowered model on the samples; the largest output."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 2
    # Packed weights would be a second copy.
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnxruntime.InferenceSession(
        folder / "lowered.onnx", options, providers=["CPUExecutionProvider"]
    )
    outputs = [session.run(None, sample)[0] for sample in samples(size)]
    return {
        "finite": bool(all(np.isfinite(output).all() for output in outputs)),
        "largest": max(float(output.max()) for output in outputs),
    }


if __name__ == "__main__":
    action, given, *numbers = sys.argv[1:]
    act = {"lower": lower, "run": run}[action]
    print(json.dumps(act(Path(given), *map(int, numbers))))  # noqa: T201
