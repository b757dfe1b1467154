"""Whether quantized sites belong to a graph, and whether their scales can be used in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from ml_dtypes import bfloat16
from numpy.typing import DTypeLike

from bitworth.errors import UserError
from bitworth.lowering.scaling import ActivationScale, DynamicScale, QuantizedSite, TensorScale

_FLOATS: Mapping[str, DTypeLike] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": bfloat16,
}


def check_sites(quantized: Sequence[QuantizedSite], nodes: Mapping[str, ir.Node]) -> None:
    """Check every site against the graph with these nodes, and every scale against its type.

    Raises:
        UserError: a scale is not finite and positive in the type that it is stored in.
        ValueError: a site that the graph has not, one given twice, scales whose shape, axis or kind
            cannot belong to their tensor.
    """
    for entry in quantized:
        _check_site(entry, nodes)
        _check_weight(entry)
        for scale in (entry.activation, entry.second, entry.output):
            if scale is not None:
                _check_activation(scale, entry)
    if len({q.site.node for q in quantized}) != len(quantized):
        raise ValueError("a site is given twice")


def _check_site(entry: QuantizedSite, nodes: Mapping[str, ir.Node]) -> None:
    site = entry.site
    node = nodes.get(site.node)
    if node is None or node.op_type != site.op_type:
        raise ValueError(f"the graph has no {site.op_type} node '{site.node}' (site '{site.id}')")
    if site.weight and entry.second is not None:
        raise ValueError(f"site '{site.id}' has a weight, and so no second activation")
    if not site.weight and entry.weight is not None:
        raise ValueError(f"site '{site.id}' is a product of two activations: it has no weight")
    if (entry.output_value is None) != (entry.output is None):
        raise ValueError(f"site '{site.id}': an output needs both its value and its scale")
    if entry.compute is not None and entry.compute not in _FLOATS:
        raise ValueError(f"site '{site.id}': cannot compute in '{entry.compute}'")


def _check_weight(entry: QuantizedSite) -> None:
    site, scale = entry.site, entry.weight
    if scale is None:
        return
    shape = site.weight_shape
    if scale.axis is None:
        fits = np.size(scale.scale) == 1 and scale.block is None
    elif scale.block is None:
        fits = np.shape(scale.scale) == (shape[scale.axis],)
    else:
        axis = scale.axis % len(shape)
        blocks = -(-shape[axis] // scale.block)
        fits = np.shape(scale.scale) == (*shape[:axis], blocks, *shape[axis + 1 :])
    if not fits:
        raise ValueError(
            f"site '{site.id}': scales of shape {np.shape(scale.scale)} do not fit its weight of "
            f"shape {shape} (axis {scale.axis}, block {scale.block})"
        )
    _check_numbers(scale, site.id, {entry.compute or site.dtype})


def _check_activation(scale: ActivationScale, entry: QuantizedSite) -> None:
    site = entry.site
    if isinstance(scale, DynamicScale):
        return
    if scale.limit is not None:
        raise ValueError(f"site '{site.id}': a limit is for weights only")
    if scale.block is not None:
        raise ValueError(f"site '{site.id}': blocks of an activation have no static scales")
    if scale.axis is None and np.size(scale.scale) != 1:
        raise ValueError(f"site '{site.id}': several scales of an activation need their axis")
    if scale.axis is not None and np.ndim(scale.scale) != 1:
        raise ValueError(f"site '{site.id}': scales along an axis are a vector")
    _check_numbers(scale, site.id, {site.dtype, entry.compute or site.dtype})


def _check_numbers(scale: TensorScale, id_: str, dtypes: set[str]) -> None:
    if (scale.tensor_scale is None) != (scale.scale_storage != "fp8_e4m3"):
        raise ValueError(f"site '{id_}': E4M3 scales, and only they, stand under a tensor's scale")
    if scale.scale_storage != "float":
        # Two-level and power-of-two scales are multiplied in fp32, whatever the graph's type.
        dtypes = {"float32"}
    for dtype in sorted(dtypes):
        with np.errstate(over="ignore", under="ignore"):
            # Checked after the cast: a scale that is fine in fp32 can vanish in fp16.
            numbers = np.asarray(scale.scale, dtype=np.float32) * np.float32(
                1.0 if scale.tensor_scale is None else scale.tensor_scale
            )
            used = numbers.astype(_FLOATS[dtype]).astype(np.float64)
        # Nothing is divided by the E4M3 scales of a weight: a block of zeros may have a zero.
        least = -1.0 if scale.scale_storage == "fp8_e4m3" else 0.0
        if not (np.isfinite(used) & (used > least)).all():
            raise UserError(
                f"site '{id_}': a scale is not finite and positive in {dtype}; leave the site out"
            )
