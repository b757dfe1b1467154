"""What a PyTorch module takes, as the study's data shows it: a module does not say."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bitworth.errors import UserError
from bitworth.study.sections import DataConfig
from bitworth.subject.data_module import open_module
from bitworth.subject.onnx_model import InputSpec


def module_inputs(config: DataConfig, folder: Path) -> tuple[InputSpec, ...]:
    """Names and types of the inputs, with every size free.

    Raises:
        UserError: no data given, or none that can be read.
    """
    if config.random_inputs:
        if not config.shapes:
            raise UserError(
                "data.shapes: random inputs of a PyTorch module need the shape of each argument of "
                "its forward; add shapes = { x = [1, 3, 224, 224] }"
            )
        return tuple(
            InputSpec(name, config.dtypes.get(name, "float32"), _free(len(shape)))
            for name, shape in config.shapes.items()
        )
    if config.source is not None:
        stream = open_module(folder / config.source, "holdout", config.holdout_samples, config.seed)
        first = next(stream(), None)
        if first is None:
            raise UserError(f"{config.source}: holdout yields no sample; yield at least one")
        return tuple(
            InputSpec(name, np.asarray(value).dtype.name, _free(np.ndim(value)))
            for name, value in first.inputs.items()
        )
    if config.holdout is None:
        raise UserError(
            "data.holdout: no data; name an .npz (keys are the arguments of the module's forward) "
            "or a source, or set random_inputs to time only"
        )
    return _of_file(folder / config.holdout)


def _of_file(path: Path) -> tuple[InputSpec, ...]:
    try:
        with np.load(path, allow_pickle=False) as data:
            return tuple(
                InputSpec(name, data[name].dtype.name, _free(data[name].ndim))
                for name in data.files
                if name != "target"
            )
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable .npz file ({error})") from None


def _free(rank: int) -> tuple[None, ...]:
    return (None,) * rank
