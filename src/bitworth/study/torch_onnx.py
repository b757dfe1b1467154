"""The ONNX model of a PyTorch study's subject, at the sizes of its first held-out sample."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitworth.errors import UserError
from bitworth.study.config import read_study_file
from bitworth.study.data_stage import dataset
from bitworth.study.torch_inputs import module_inputs
from bitworth.study.torch_process import check_installed
from bitworth.subject.torch_factory import factory_of, make_module


@dataclass(frozen=True)
class Exported:
    """An exported module.

    Attributes:
        path: the file.
        sites: ids of the sites that file and module share.
        missing: of the module's sites, those that the file has under no such id.
    """

    path: Path
    sites: tuple[str, ...]
    missing: tuple[str, ...]


def export_subject(study: Path, path: Path) -> Exported:
    """Export the module that ``study`` is about.

    Raises:
        UserError: the study's subject is no PyTorch module, torch is missing, or it is not
            exported.
    """
    config = read_study_file(study)
    if config.subject.torch is None:
        raise UserError(f"{study}: its subject is an ONNX model already: {config.subject.onnx}")
    check_installed()
    import torch

    from bitworth.subject.torch_export import export_onnx
    from bitworth.subject.torch_module import scan, to_tensors

    specs = module_inputs(config.data, study.parent)
    sample = next(iter(dataset(config.data, study.parent, specs, "holdout", 1))).inputs
    module = make_module(factory_of(config.subject.torch, study.parent)).to(torch.float32)
    inputs = to_tensors(sample, "cpu", torch.float32)
    found = scan(module, inputs)
    exported = export_onnx(module, inputs, found.outputs, path)
    ours = tuple(site.id for site in found.sites)
    return Exported(
        path,
        tuple(id_ for id_ in ours if id_ in exported),
        tuple(id_ for id_ in ours if id_ not in exported),
    )
