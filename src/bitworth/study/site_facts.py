"""What was done to each site, as the record holds it, and back again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bitworth.calibration import weight_scale
from bitworth.calibration.bias_steps import with_room_for_bias
from bitworth.lowering.scaling import (
    ActivationScale,
    DynamicScale,
    QuantizedSite,
    ScaleStorage,
    StorageType,
    TensorScale,
)
from bitworth.recipe import PER_CHANNEL, PER_TENSOR, Quantize, Site
from bitworth.recipe.granularity import Granularity, PerBlock
from bitworth.record.site_facts import QuantizedSiteFact, ScaleFact
from bitworth.subject.prepare import PreparedModel

NO_WEIGHT = "none"


def site_facts(
    quantized: Iterable[QuantizedSite], entries: dict[str, Quantize]
) -> tuple[QuantizedSiteFact, ...]:
    """The record's form of quantized sites.

    Args:
        quantized: the sites.
        entries: the recipe's entry of each, by site id.
    """
    return tuple(
        QuantizedSiteFact(
            site=q.site.id,
            format=entries[q.site.id].format,
            weight_granularity=_granularity(q.weight),
            weight_limit=None if q.weight is None else q.weight.limit,
            activation=_scale_fact(q.activation),
            output_value=q.output_value,
            output=_scale_fact(q.output),
            second=_scale_fact(q.second),
            compute=q.compute,
        )
        for q in quantized
    )


def restored_site(prepared: PreparedModel, site: Site, fact: QuantizedSiteFact) -> QuantizedSite:
    """The quantized site that a fact was made from, its weight's scales computed again.

    Args:
        prepared: the graph that it was lowered in.
        site: the fact's site in that graph.
        fact: what was done to it.
    """
    return QuantizedSite(
        site=site,
        weight=None if fact.weight_granularity == NO_WEIGHT else _weight(prepared, site, fact),
        activation=_scale(fact.activation),
        output_value=fact.output_value,
        output=_static(fact.output),
        second=_scale(fact.second),
        compute=fact.compute,
    )


def _granularity(scale: TensorScale | None) -> str:
    if scale is None:
        return NO_WEIGHT
    if scale.block is not None:
        return f"block {scale.block}"
    return "per_tensor" if scale.axis is None else "per_channel"


def _weight(prepared: PreparedModel, site: Site, fact: QuantizedSiteFact) -> TensorScale:
    tensor = prepared.model.graph.initializers[site.weight].const_value
    assert tensor is not None
    weights: Granularity = PER_CHANNEL if fact.weight_granularity == "per_channel" else PER_TENSOR
    if fact.weight_granularity.startswith("block "):
        weights = PerBlock(int(fact.weight_granularity.removeprefix("block ")))
    entry = Quantize(
        group=site.id,
        format=fact.format,
        weights=weights,
        sign="s8",
        zero_point="symmetric",
        weight_range="reduced" if fact.weight_limit else "full",
    )
    scale, activation = weight_scale(tensor.numpy(), site, entry), _scale(fact.activation)
    if activation is None:
        return scale
    return with_room_for_bias(prepared.model, site, scale, activation)


def _scale_fact(scale: ActivationScale | None) -> ScaleFact | None:
    if scale is None:
        return None
    if isinstance(scale, DynamicScale):
        return ScaleFact(
            storage=scale.storage,
            scale=None,
            zero_point=0,
            dynamic=True,
            block=scale.block,
            scale_storage=scale.scale_storage,
            tensor_scale=scale.tensor_scale,
        )
    # A float32 is a float64 exactly, so the record holds the scale bit for bit.
    channels = scale.axis is not None
    return ScaleFact(
        storage=scale.storage,
        scale=None if channels else float(scale.scale),
        zero_point=scale.zero_point,
        scales=tuple(float(s) for s in scale.scale) if channels else None,
        axis=scale.axis,
    )


def _scale(fact: ScaleFact | None) -> ActivationScale | None:
    if fact is None or not fact.dynamic:
        return _static(fact)
    scale_storage: ScaleStorage = fact.scale_storage  # type: ignore[assignment]
    return DynamicScale(_storage(fact), fact.block, scale_storage, fact.tensor_scale)


def _static(fact: ScaleFact | None) -> TensorScale | None:
    if fact is None:
        return None
    numbers = fact.scale if fact.scales is None else fact.scales
    scale = np.asarray(numbers, dtype=np.float32)
    return TensorScale(_storage(fact), scale, fact.zero_point, fact.axis)


def _storage(fact: ScaleFact) -> StorageType:
    storage: StorageType = fact.storage  # type: ignore[assignment]
    return storage
