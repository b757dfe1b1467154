"""What lowering did to the sites of a variant, as a record holds it."""

from __future__ import annotations

from pydantic import Field

from bitworth.record.part import Part


class ScaleFact(Part):
    """How one activation is quantized; a weight's scales follow from the weight, not stored."""

    storage: str
    scale: float | None = Field(description="None: one a channel, or found at run time")
    zero_point: int
    scales: tuple[float, ...] | None = Field(default=None, description="one for each channel")
    axis: int | None = Field(default=None, description="that of the channels")
    dynamic: bool = Field(default=False, description="scales are taken at run time")
    block: int | None = Field(default=None, description="elements that share a scale")
    scale_storage: str = "float"
    tensor_scale: float | None = Field(default=None, description="the number above E4M3 scales")


class QuantizedSiteFact(Part):
    """What lowering did to one site."""

    site: str
    format: str
    weight_granularity: str = Field(description="per_tensor, per_channel, block N, or none")
    weight_limit: int | None
    activation: ScaleFact | None = Field(description="None: left alone")
    output_value: str | None
    output: ScaleFact | None
    second: ScaleFact | None = Field(default=None, description="of a product of two activations")
    compute: str | None = Field(default=None, description="type it computes in, if not the base")


class RescaledFact(Part):
    """A value whose channels were divided by factors, and its consumers' weights multiplied."""

    value: str
    factors: tuple[float, ...]
