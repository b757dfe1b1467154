"""Writes decoder.onnx from trained weights.

    python -m examples.decoder.make_model weights.npz examples/decoder/decoder.onnx

Weights are stored in float16 behind a Cast, which halves the file; preparation folds the Cast.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from examples.decoder.model import CONTEXT, Decoder

SMALL = 1024


def main(weights: Path, output: Path) -> None:
    """Export with free batch and length, and check the result against torch."""
    with np.load(weights) as stored:
        state = {name: torch.from_numpy(stored[name].astype(np.float32)) for name in stored}
    model = Decoder().eval()
    model.load_state_dict(state)
    ids = torch.randint(256, (2, CONTEXT // 2), generator=torch.Generator().manual_seed(0))
    program = torch.onnx.export(
        model,
        (ids,),
        dynamo=True,
        opset_version=18,
        input_names=["ids"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=4096)},),
    )
    assert program is not None
    proto = program.model_proto
    stored_as_half(proto)
    without_notes(proto)
    onnx.checker.check_model(proto)
    onnx.save(proto, output)
    compare(model, output)


def without_notes(proto: onnx.ModelProto) -> None:
    """Keep of the exporter's notes the modules: the rest holds paths of the machine."""
    for node in proto.graph.node:
        kept = [p for p in node.metadata_props if p.key == "pkg.torch.onnx.name_scopes"]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    for holder in (proto, proto.graph, *proto.graph.value_info, *proto.graph.input):
        del holder.metadata_props[:]


def stored_as_half(proto: onnx.ModelProto) -> None:
    """Store large weights in float16, each behind a Cast to float32."""
    casts, renamed = [], {}
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and np.prod(tensor.dims) >= SMALL:
            name, array = tensor.name, numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16), name))
            renamed[name] = f"{name}/float"
            casts.append(helper.make_node("Cast", [name], [renamed[name]], f"{name}/Cast", to=1))
    for node in proto.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
    nodes = [*casts, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def compare(model: Decoder, path: Path) -> None:
    """Compare with torch at other sizes than those of the export."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch, length in ((1, 3), (3, CONTEXT)):
        ids = torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            expected = model(ids).numpy()
        got = session.run(None, {"ids": ids.numpy()})[0]
        error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
        print(f"batch {batch}, length {length}: relative L2 {error:.2g}")
        assert error < 1e-5


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
