"""Exports a PyTorch module to ONNX under the names that its sites have."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bitworth.errors import UserError
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.sites import find_sites

if TYPE_CHECKING:
    import torch

#: That of int8 with a scale per channel, raised where torch's exporter starts.
OPSET = 18


def export_onnx(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    path: Path,
) -> tuple[str, ...]:
    """Write ``module``, at the sizes of ``inputs``, and return the ids of the sites in the file.

    torch.export captures it, so that initializers keep the parameters' names: a recipe by names
    applies to the file on every engine as to the module.

    Raises:
        UserError: torch cannot capture or export it.
    """
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                module, kwargs=dict(inputs), dynamo=True, opset_version=OPSET, verbose=False,
                input_names=list(inputs), output_names=list(outputs),
            )  # fmt: skip
            assert made is not None
            made.save(str(path))
    except Exception as error:  # many classes, of torch and of the user's code
        text = " ".join(str(error).split())[:300]
        raise UserError(
            f"{path}: torch.onnx.export refuses the module ({text}); mend what it names"
        ) from error
    return tuple(site.id for site in find_sites(prepare(load(path), OPSET)).sites)
