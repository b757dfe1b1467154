"""A model of several GB goes through a study's steps, in a process that watches its own memory.

    python large_model.py FOLDER SIZE LAYERS

Writes the model, prepares, calibrates and lowers it in FOLDER, and prints what each step took as
one line of JSON. SIZE is the side of each square weight.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bitworth.calibration import Calibration, observe
from bitworth.lowering.placement import observed_values
from bitworth.recipe import FORMATS, PER_CHANNEL, Quantize, Recipe
from bitworth.recipe.granularity import PerBlock
from bitworth.recipe.rules import preference
from bitworth.study.lowered_variant import scale_variant, write_lowered
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, prepare
from bitworth.subject.sites import SiteScan, find_sites

CHANNELS = 8
#: Numbers written at a time.
CHUNK = 1 << 22
SAMPLES = 3
#: Layers of the group that is lowered.
GROUP = 3
RECIPES = {
    "int8": Quantize("group", "int8", weights=PER_CHANNEL),
    "int4": Quantize("group", "int4", weights=PerBlock(128), scheme="weight_only"),
}


def write_model(folder: Path, size: int, layers: int) -> Path:
    """A convolution and then square products, all weights of these in a file beside the model.

    One product reads its weight through a Transpose and one is a Gemm with transB, as exporters
    write them. The weights are written in chunks: no more than one is ever in memory.
    """
    path, data = folder / "large.onnx", folder / "large.onnx.data"
    names = [f"layer{i}.weight" for i in range(layers)]
    with data.open("wb") as file:
        block = np.random.default_rng(0).standard_normal(CHUNK, dtype=np.float32)
        block *= np.float32((2.0 / size) ** 0.5)
        step = size * size
        for layer in range(layers):
            for start in range(0, step, CHUNK):
                # Turned by some numbers each time, so that no two weights are the same.
                turn = (7919 * (layer + 1) + start // CHUNK) % CHUNK
                chunk = np.concatenate([block[turn:], block[:turn]])
                file.write(chunk[: step - start].data)
    tensors = [_external(name, data.name, size, i) for i, name in enumerate(names)]
    kernel = np.random.default_rng(1).standard_normal((CHANNELS, 3, 1, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight"], ["c"], pads=[0, 1, 0, 1], name="conv"),
        helper.make_node("Flatten", ["c"], ["v0"], name="flatten"),
    ]
    for i, name in enumerate(names):
        weight = name
        if i == 1:
            nodes.append(helper.make_node("Transpose", [name], ["turned"], perm=[1, 0], name="t"))
            weight = "turned"
        gemm = {"transB": 1} if i == 2 else {}
        kind = "Gemm" if gemm else "MatMul"
        nodes.append(helper.make_node(kind, [f"v{i}", weight], [f"p{i}"], name=f"layer{i}", **gemm))
        nodes.append(helper.make_node("Relu", [f"p{i}"], [f"v{i + 1}"], name=f"relu{i}"))
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 1, size // CHANNELS])],
        [helper.make_tensor_value_info(f"v{layers}", TensorProto.FLOAT, ["N", size])],
        [onnx.numpy_helper.from_array(kernel, "conv.weight"), *tensors],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def _external(name: str, location: str, size: int, index: int) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[size, size])
    tensor.data_location = TensorProto.EXTERNAL
    length = 4 * size * size
    for key, value in (("location", location), ("offset", index * length), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


class Watch:
    def __init__(self) -> None:
        self.steps: dict[str, dict[str, float]] = {}
        self.peak: dict[str, int] = {}
        threading.Thread(target=self._poll, daemon=True).start()

    def _poll(self) -> None:
        while True:
            for k, v in _status().items():
                self.peak[k] = max(self.peak.get(k, 0), v)
            time.sleep(0.01)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        Path("/proc/self/clear_refs").write_text("5")
        self.peak = {}
        began, cpu = time.monotonic(), time.process_time()
        yield
        after = _status()
        self.steps[name] = {"s": round(time.monotonic() - began, 1), "cpu": round(time.process_time() - cpu, 1),
            "hwm": after["VmHWM"] >> 20, "anon_peak": self.peak.get("RssAnon", 0) >> 20, "file_peak": self.peak.get("RssFile", 0) >> 20,
            "anon": after["RssAnon"] >> 20, "file": after["RssFile"] >> 20}
        print(name, self.steps[name], flush=True)


def _status() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {
        name: 1024 * int(fields[name].split()[0])
        for name in ("VmHWM", "VmRSS", "RssAnon", "RssFile")
    }


def main(folder: Path, size: int, layers: int) -> None:
    watch = Watch()
    with watch.step("write"):
        path = write_model(folder, size, layers)
    with watch.step("load"):
        model = load(path)
    with watch.step("prepare"):
        prepared = prepare(model, FORMATS["int8"].onnx_opset)
    with watch.step("sites"):
        scan = find_sites(prepared)
    print([(s.id, s.op_type, s.weight_shape) for s in scan.sites][:4], len(scan.sites))
    with watch.step("observe"):
        found = observe(
            prepared.model, observed_values(prepared.model, scan.sites),
            _samples(size), threads=2,
        )
    chosen = scan.sites[1 : 1 + GROUP]
    for name, entry in RECIPES.items():
        with watch.step(f"{name} scales"):
            v = scale_variant(prepared, scan.sites, Recipe(quantize=(entry,)), {"group": chosen}, found.statistics, "onnxruntime", preference("onnxruntime", ()))
        print(len(v.scaled.quantized), v.scaled.left_out, v.scaled.dead)
        out = folder / f"{name}.onnx"
        with watch.step(f"{name} write"):
            write_lowered(v, out, False)
        print([f"{p.name} {p.stat().st_size>>20}" for p in folder.iterdir()])
        for p in folder.glob(f"{name}*"):
            p.unlink()
    print(json.dumps(watch.steps))


def _samples(size):
    for i in range(SAMPLES):
        yield {"x": np.random.default_rng((2, i)).standard_normal((2, 3, 1, size // CHANNELS), dtype=np.float32)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
