"""Write a studied variant's model again, bit for bit, for a plain engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from bitworth.errors import UserError
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.rescaling import ChannelFactors
from bitworth.recipe import Recipe
from bitworth.recipe.consistency import engine_hint
from bitworth.record.names import AS_GIVEN
from bitworth.record.schema import Record, VariantFacts
from bitworth.study.config import subject_path
from bitworth.study.sections import SubjectConfig
from bitworth.study.site_facts import restored_site
from bitworth.study.variant_graph import at_opset, variant_graph
from bitworth.subject.denormals import flush_denormals
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import graph_sha256, prepare
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
        UserError: the subject is no ONNX model, the original is not at hand or not the one that
            was studied, the variant has no graph of its own, or the result is not bit-equal to
            what was studied.
    """
    if record.facts.subject.kind == "torch":
        raise UserError(
            f"variant '{variant.name}' is of a PyTorch module and has no ONNX graph; bitworth onnx "
            "exports the module itself"
        )
    if variant.source == "file":
        raise UserError(f"variant '{variant.name}' is the file {variant.file}; copy that file")
    hinted = variant.recipe is not None and engine_hint(variant.recipe.base) != "fp32"
    if variant.recipe is not None and hinted and not variant.sites:
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
    if variant.name == AS_GIVEN and graph_sha256(original.model) == variant.lowered_sha256:
        raise UserError(f"variant '{AS_GIVEN}' is the model that was studied; copy {path}")
    studied = record.facts.subject.prepared_sha256
    if variant.name != AS_GIVEN and graph_sha256(prepared.model) != studied:
        prepared = flush_denormals(prepared)  # else the hash of what is written would differ
    factors = [
        ChannelFactors(f.value, np.asarray(f.factors, dtype=np.float32)) for f in variant.rescaled
    ]
    recipe = variant.recipe or Recipe()
    # Nodes that calibration kept in fp32 are named in the record: no range is needed again.
    kept = tuple(node for node, _ in variant.kept)
    recipe = replace(recipe, keep_fp32=tuple(dict.fromkeys((*recipe.keep_fp32, *kept))))
    graph = variant_graph(
        prepared, find_sites(prepared).sites, recipe, variant.scalings, factors, None
    )
    graph = at_opset(graph, variant.opset or 0)
    quantized = [restored_site(graph.prepared, graph.sites[f.site], f) for f in variant.sites]
    lowered = (
        lower(graph.prepared, quantized, variant.everywhere) if quantized else graph.prepared.model
    )
    if graph_sha256(lowered) != variant.lowered_sha256:
        libraries = record.facts.environment.libraries
        raise UserError(
            f"{output}: would differ from what was studied, so it is not written; use the "
            f"record's versions (onnx {libraries.get('onnx')}, onnx-ir {libraries.get('onnx-ir')})"
        )
    save(lowered, output)


def _find_original(record: Record) -> Path:
    config = SubjectConfig.model_validate(record.facts.config["subject"])
    path = subject_path(config, Path())
    if not path.is_file():
        raise UserError(f"{path}: the studied model is not there; give it with --model")
    return path
