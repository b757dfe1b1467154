"""Weight scales at which a bias can be stored as int32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bitworth.calibration.scales import smallest_scale, usable_scale
from bitworth.lowering.scaling import ActivationScale, TensorScale
from bitworth.recipe.site import Site

# onnxruntime 1.32 stores the bias of an operation between quantized tensors as int32, in steps of
# the product of both scales, and lets it overflow (microsoft/onnxruntime#22020). Half of the range:
# a step is then far below the rounding of a float bias.
_LARGEST = 2.0**30


def with_room_for_bias(
    model: ir.Model, site: Site, weight: TensorScale, activation: ActivationScale
) -> TensorScale:
    """Return ``weight`` with each scale raised under which the site's bias would overflow.

    Nothing is lost: the products of such a channel are below the last bit of its bias. A channel of
    zeros, whose scale means nothing, gets the one at which its bias is finest: under a scale of 1 a
    bias is rounded to whole steps of the activation.

    Args:
        model: the prepared graph, for the bias and the weight.
        site: whose weight it is.
        weight: int8, one scale or one a channel; any other is returned as it is.
        activation: the scale of its activation; one that is dynamic, or one a channel, leaves
            ``weight`` as it is.
    """
    bias = _bias(model, site)
    if bias is None or weight.storage != "int8" or weight.block is not None:
        return weight
    if not isinstance(activation, TensorScale) or activation.axis is not None:
        return weight
    least = bias / (float(activation.scale) * _LARGEST)
    dead = _dead(model, site)
    if weight.axis is None:
        least, dead = np.asarray(least.max()), np.asarray(dead.all())
    wanted = np.where(dead & (least > 0.0), least, np.maximum(weight.scale, least))
    usable = np.maximum(wanted, smallest_scale(site.dtype))
    return replace(weight, scale=usable_scale(usable, 1.0, site.dtype))


def _bias(model: ir.Model, site: Site) -> NDArray[np.float64] | None:
    """Largest magnitude of the bias for each index of the weight's axis; None: not known."""
    node = next((n for n in model.graph if n.name == site.node), None)
    value = node.inputs[2] if node is not None and len(node.inputs) > 2 else None
    if node is None or value is None or value.const_value is None:
        return None
    size = np.abs(value.const_value.numpy().astype(np.float64))
    size *= abs(node.attributes.get_float("beta", 1.0))
    if site.op_type == "ConvTranspose":
        # Groups share a scale.
        return np.asarray(size.reshape(site.groups, -1).max(axis=0))
    if size.ndim > 1:
        # A Gemm's bias may differ from row to row.
        size = np.asarray(size.reshape(-1, size.shape[-1]).max(axis=0))
    return np.broadcast_to(size, (site.weight_shape[site.weight_axis],))


def _dead(model: ir.Model, site: Site) -> NDArray[np.bool_]:
    """Which indices of the weight's axis hold nothing but zeros."""
    tensor = model.graph.initializers[site.weight].const_value
    assert tensor is not None
    others = tuple(i for i in range(len(site.weight_shape)) if i != site.weight_axis)
    return np.asarray(~tensor.numpy().any(axis=others))
