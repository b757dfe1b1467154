"""Write a studied variant's model again, bit for bit, for a plain engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bitworth.calibration import weight_scale
from bitworth.errors import UserError
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.scaling import QuantizedSite, StorageType, TensorScale
from bitworth.recipe import PER_CHANNEL, PER_TENSOR, Quantize, Site
from bitworth.record.schema import QuantizedSiteFact, Record, ScaleFact, VariantFacts
from bitworth.study.config import SubjectConfig, subject_path
from bitworth.subject.denormals import flush_denormals
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, graph_sha256, prepare
from bitworth.subject.saving import save
from bitworth.subject.sites import find_sites


def find_variant(record: Record, name: str, engine: str | None) -> tuple[str, VariantFacts]:
    """The variant called ``name`` and its engine.

    Raises:
        UserError: no such variant, or several engines have it with different recipes.
    """
    found = [
        (cell.engine, variant)
        for cell in record.facts.cells
        for variant in cell.variants
        if variant.name == name and engine in (None, cell.engine)
    ]
    engines = [cell.engine for cell in record.facts.cells]
    if engine is not None and engine not in engines:
        raise UserError(f"--engine {engine}: not in the record; it has: {', '.join(engines)}")
    if not found:
        names = dict.fromkeys(v.name for c in record.facts.cells for v in c.variants)
        raise UserError(f"no variant '{name}' in the record; it has: {', '.join(names)}")
    if len({variant.lowered_sha256 for _, variant in found}) > 1:
        raise UserError(
            f"variant '{name}' differs between {', '.join(engines)}; name one with --engine"
        )
    return found[0]


def export_variant(record: Record, variant: VariantFacts, model: Path | None, output: Path) -> None:
    """Lower the variant from the record's recipe and scales, and check that it is the studied one.

    Args:
        record: the study.
        variant: one of its variants.
        model: the original model; None to look where the study found it.
        output: file to write.

    Raises:
        UserError: the original is not at hand or not the one that was studied, the variant has no
            graph of its own, or the result is not bit-equal to what was studied.
    """
    if variant.source == "file":
        raise UserError(f"variant '{variant.name}' is the file {variant.file}; copy that file")
    if variant.recipe is not None and variant.recipe.base != "fp32":
        raise UserError(
            f"variant '{variant.name}' is the baseline's graph under the engine's precision hint "
            f"{variant.recipe.base}; export 'baseline' and set that hint"
        )
    if variant.lowered_sha256 is None:
        raise UserError(f"variant '{variant.name}' has no graph: {variant.reason}")
    path = model or _find_original(record)
    original = load(path)
    if original.identity_sha256 != record.facts.subject.sha256:
        raise UserError(f"{path}: is not the model that was studied (its hash differs)")
    prepared = prepare(original, record.facts.subject.prepared_opset)
    if variant.name != "as given" and _was_flushed(record):
        prepared = flush_denormals(prepared)
    sites = {s.id: s for s in find_sites(prepared).sites}
    quantized = tuple(_restored(prepared, sites[f.site], f, variant) for f in variant.sites)
    lowered = lower(prepared, quantized) if quantized else prepared.model
    if graph_sha256(lowered) != variant.lowered_sha256:
        libraries = record.facts.environment.libraries
        raise UserError(
            f"{output}: would differ from what was studied, so it is not written; use the "
            f"record's versions (onnx {libraries.get('onnx')}, onnx-ir {libraries.get('onnx-ir')})"
        )
    save(lowered, output)


def _restored(
    prepared: PreparedModel, site: Site, fact: QuantizedSiteFact, variant: VariantFacts
) -> QuantizedSite:
    tensor = prepared.model.graph.initializers[site.weight].const_value
    assert tensor is not None
    entry = Quantize(
        group=variant.name,
        format=fact.format,
        weights=PER_CHANNEL if fact.weight_granularity == "per_channel" else PER_TENSOR,
        sign="s8",
        zero_point="symmetric",
        weight_range="reduced" if fact.weight_limit else "full",
    )
    return QuantizedSite(
        site=site,
        weight=weight_scale(tensor.numpy(), site, entry),
        activation=_scale(fact.activation),
        output_value=fact.output_value,
        output=None if fact.output is None else _scale(fact.output),
    )


def _scale(fact: ScaleFact) -> TensorScale:
    storage: StorageType = fact.storage  # type: ignore[assignment]
    return TensorScale(storage, np.asarray(fact.scale, dtype=np.float32), fact.zero_point)


def _was_flushed(record: Record) -> bool:
    return any(v.name == "as given" for c in record.facts.cells for v in c.variants)


def _find_original(record: Record) -> Path:
    config = SubjectConfig.model_validate(record.facts.config["subject"])
    path = subject_path(config, Path())
    if not path.is_file():
        raise UserError(f"{path}: the studied model is not there; give it with --model")
    return path
