"""Bitworth's side: one pass over the samples, then a file for each variant."""

from __future__ import annotations

from benchmarks.calibration.job import Job, OurRun, Stopwatch, VariantCost
from benchmarks.calibration.memory import forget_peak, peak_bytes, resident_bytes
from benchmarks.calibration.pairs import GROUPS, chosen
from benchmarks.calibration.samples import read_samples
from benchmarks.calibration.written import quantized_weights
from bitworth.calibration import observe
from bitworth.engines.cpu import isa
from bitworth.lowering.placement import observed_values
from bitworth.recipe import FORMATS
from bitworth.recipe.rules import preference
from bitworth.study.lowered_variant import scale_variant, write_lowered
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.sites import find_sites

#: Whose rules leave out sites: none of onnxruntime's, as quantize_static has none either.
RULES_OF = "emulated"


def run(job: Job) -> OurRun:
    """Calibrate once and write every variant, as a study does.

    Each peak is that of the whole process during one part: what the parts before left behind is in
    it.
    """
    baseline = resident_bytes()
    peaks: dict[str, int] = {}
    forget_peak()
    clock = Stopwatch()
    prepared = prepare(load(job.model), FORMATS["int8"].onnx_opset)
    sites = find_sites(prepared).sites
    shared = {"load and prepare": clock.lap()}
    found = observe(
        prepared.model,
        observed_values(prepared.model, sites),
        read_samples(job.samples, job.input, job.shape, job.count),
        threads=job.threads,
    )
    shared["one pass over the samples"] = clock.lap()
    peaks["one pass"] = peak_bytes()
    groups = {name: [site for site in sites if site.op_type in ops] for name, ops in GROUPS.items()}
    preferred = preference("onnxruntime", isa())
    variants = {}
    for number, pair in enumerate(chosen(job.pairs)):
        forget_peak()
        clock.lap()
        variant = scale_variant(
            prepared, sites, pair.recipe, groups, found.statistics, RULES_OF, preferred
        )
        scales = clock.lap()
        path = job.folder / f"{number}.onnx"
        write_lowered(variant, path, emulated=False)
        write = clock.lap()
        name = pair.entry.calibrator.name
        peaks[name] = max(peaks.get(name, 0), peak_bytes())
        variants[pair.name] = VariantCost(scales, write, quantized_weights(path))
        path.unlink()
    return OurRun(job.count, baseline, peaks, shared, variants)
