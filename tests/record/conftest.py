"""A realistic record from synthetic samples, through the schema and ``derive``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bitworth.recipe import PER_TENSOR, Calibrator, Quantize, Recipe
from bitworth.record.make import make_record as record_of
from bitworth.record.profile_facts import LayerFact, ProfileFacts
from bitworth.record.schema import (
    CellFacts,
    DataFacts,
    EnvironmentFacts,
    Facts,
    MetricValues,
    NotRun,
    OptimizationCheck,
    OutputError,
    PlanFacts,
    QualityFacts,
    Record,
    SiteFact,
    SplitFacts,
    SubjectFacts,
    Tensor,
    VariantFacts,
)
from bitworth.record.site_facts import QuantizedSiteFact, ScaleFact
from bitworth.record.timing_facts import SessionFacts, TimingJob
from bitworth.verdict import Policy, TimingRules, session_schedule, sig6

N = 200
HASH = "0123456789abcdef" * 4
#: Time over the baseline's, by variant that is timed.
RATIOS = {
    "int8 all": 0.62,
    "int8 MatMul": 0.985,
    "int8 tail": 0.9995,
    "int8 wide": 1.31,
    "int8 broken": 0.55,
}
#: Lines lost of N, and gained.
FLIPS = {"int8 all": (9, 1), "int8 MatMul": (1, 0), "int8 tail": (0, 0), "int8 wide": (4, 2),
         "int8 broken": (150, 0), "fp8 all": (3, 2)}  # fmt: skip


def _quality(name: str, rename: Callable[[str], str], evidence: str = "measured") -> QualityFacts:
    generator = np.random.default_rng(sum(map(ord, name)))
    read = (np.arange(N) % 11 != 0).astype(float)
    edits = np.where(read == 1, 0.0, 1.0 + np.arange(N) % 3)
    lost, gained = FLIPS.get(name, (0, 0))
    right, wrong = np.flatnonzero(read == 1), np.flatnonzero(read == 0)
    for index in generator.permutation(right)[:lost]:
        read[index], edits[index] = 0.0, 2.0
    for index in generator.permutation(wrong)[:gained]:
        read[index], edits[index] = 1.0, 0.0
    error = 1e-7 if name == "baseline" else 0.01 + 0.002 * lost
    lengths: NDArray[np.float64] = 8.0 + np.arange(N) % 5
    return QualityFacts.model_validate(
        {
            "evidence": evidence,
            "n": N,
            "outputs": {
                "logits": OutputError(
                    rel_l2=sig6(error), cosine=sig6(1 - error**2 / 2),
                    sqnr_db=sig6(-20 * float(np.log10(error))), max_abs=sig6(10 * error),
                    non_finite=0,
                )
            },
            "metrics": {
                rename("line accuracy"): MetricValues(
                    kind="binary", better="higher", values=tuple(read.tolist())
                ),
                rename("character errors"): MetricValues(
                    kind="ratio", better="lower", values=tuple(edits.tolist()),
                    denominators=tuple(lengths.tolist()),
                ),
            },
        }
    )  # fmt: skip


def _plan(ratio: float, precision: str = "fp32") -> PlanFacts:
    return PlanFacts(
        bytes=round(20_345_678 * ratio), sha256=HASH, build_ns=1_234_567_890,
        layers={"Conv": 2, "MatMul": 1}, precision=precision,
    )  # fmt: skip


def _int8(name: str, rename: Callable[[str], str], sign: Any, **changes: Any) -> VariantFacts:
    scale = ScaleFact(storage="uint8", scale=0.0123, zero_point=128)
    sites = tuple(
        QuantizedSiteFact(
            site=site, format="int8", weight_granularity="per_channel", weight_limit=127,
            activation=scale, output_value=None, output=None,
        )
        for site in ("conv_0.weight", "conv_1.weight")
    )  # fmt: skip
    entry = Quantize(
        group=name.removeprefix("int8 "), format="int8", sign=sign, zero_point="asymmetric",
        weight_range="full", placement="after_activation",
        calibrator=Calibrator("percentile", 99.9) if name == "int8 tail" else Calibrator(),
        weights=PER_TENSOR if name == "int8 wide" else Quantize("x", "int8").weights,
    )  # fmt: skip
    values: dict[str, Any] = {
        "name": rename(name),
        "source": "recipe",
        "recipe": Recipe(quantize=(entry,)),
        "recipe_sha256": HASH,
        "lowered_sha256": HASH,
        "sites": sites,
        "dead": (("conv_1.weight", "value 'x_3' is always zero"),),
        "left_out": (("fc.weight", "its scale underflows to 0"),),
        "state": "measured",
        "plan": _plan(0.27),
        "quality": _quality(name, rename),
        "check": OptimizationCheck(
            n=32, optimized_rel_l2=0.02, unoptimized_rel_l2=0.0199, limit=0.05
        ),
    }
    return VariantFacts(**{**values, **changes})


def _profile(faster: float) -> ProfileFacts:
    """Two convolutions in one layer, a product and a Softmax; of a variant with a Quantize."""
    converted = faster < 1
    form = "int8" if converted else "fp32"
    layers = [
        LayerFact(
            name="conv_0", op="Conv", kernel="jit", precision="f32", time_ns=2.0e6 * faster,
            sites=("conv_0.weight", "conv_1.weight"), format=form,
        ),
        LayerFact(
            name="fc", op="MatMul", kernel="gemm", precision="f32", time_ns=0.9e6,
            sites=("fc.weight",), format="fp32", inputs=(0,),
        ),
        LayerFact(
            name="softmax", op="Softmax", kernel="jit", precision="f32", time_ns=1.4e6, sites=(),
            format="fp32", inputs=(1,),
        ),
    ]  # fmt: skip
    if converted:
        layers.append(
            LayerFact(
                name="conv_0_q", op="QuantizeLinear", kernel="jit", precision="u8",
                time_ns=0.1e6, sites=(), format="int8", inputs=(1,),
            )
        )  # fmt: skip
    return ProfileFacts(plan_sha256=HASH, calls=20, plain_ns=5.0e6 * faster, layers=tuple(layers))


def _variants(
    engine: str, rename: Callable[[str], str], with_bf16: bool, timed: bool
) -> tuple[VariantFacts, ...]:
    sign = "u8" if engine == "onnxruntime" else "by_range"
    baseline = VariantFacts(
        name="baseline", source="precision", recipe=Recipe(base="fp32"), lowered_sha256=HASH,
        state="measured", plan=_plan(1.0), quality=_quality("baseline", rename),
        profile=_profile(1.0) if timed else None,
    )  # fmt: skip
    made = [_int8(name, rename, sign, profile=_profile(0.5) if timed else None) for name in RATIOS]
    broken = OptimizationCheck(n=32, optimized_rel_l2=0.97, unoptimized_rel_l2=0.04, limit=0.09)
    made[-1] = made[-1].model_copy(update={"check": broken})
    reason = f"{engine} has no kernel that computes in FP8 on this processor"
    fp8 = _int8(
        "fp8 all", rename, "auto", state="emulated", reason=reason, plan=None, check=None,
        quality=_quality("fp8 all", rename, "emulated"),
    )  # fmt: skip
    failed = _int8(
        "int8 s8", rename, "s8", state="failed", reason="worker died of SIGSEGV", plan=None,
        check=None, quality=None,
    )  # fmt: skip
    bf16 = VariantFacts(
        name=rename("bf16"), source="precision", recipe=Recipe(base="bf16"), lowered_sha256=HASH,
        state="not run", reason="its CPU provider has no bf16 mode",
    )  # fmt: skip
    if with_bf16:
        found = {
            "state": "measured", "reason": "", "plan": _plan(1.0, "bf16"),
            "quality": _quality("bf16", rename),
        }  # fmt: skip
        bf16 = bf16.model_copy(update=found)
    return (baseline, *made, fp8, failed, bf16)


def _job(labels: tuple[str, ...], ratios: list[float], sessions: int, samples: int) -> TimingJob:
    k = len(labels)
    made = []
    for index in range(sessions):
        schedule = session_schedule(k, seed=7, session=index)
        generator = np.random.default_rng((7, index, k))
        level = 5.1e6 * np.array(ratios) * np.exp(generator.normal(0, 0.006, k))
        times = tuple(
            tuple(
                tuple(
                    round(float(level[label] * np.exp(generator.normal(0, 0.01))))
                    for _ in range(samples)
                )
                for label in row
            )
            for row in schedule.rounds
        )
        made.append(
            SessionFacts(
                session=index,
                start_order=schedule.start_order,
                order=schedule.rounds,
                samples_ns=times,
                failures={},
                load_ns={n: 41_000_000 + n for n in range(k)},
                peak_bytes={n: 312_000_000 + n for n in range(k)},
                engine_bytes=dict.fromkeys(range(k), 112_000_000),
                wall_ns=9_000_000_000,
                steal_ratio=0.01,
                others_ratio=None,
            )
        )
    return TimingJob(
        labels=labels, seed=7, lead_in=2, iterations=samples, call_ns=5_104_321,
        minimum_rounds=10, sessions=tuple(made),
        stopped="every half-width over sessions is at most 2.0%",
    )  # fmt: skip


def _cell(
    engine: str,
    rename: Callable[[str], str],
    timed: bool,
    sessions: int,
    samples: int,
    with_bf16: bool,
) -> CellFacts:
    faster = 1.0 if engine == "onnxruntime" else 1.08
    labels = ("baseline", "baseline again", *(rename(name) for name in RATIOS))
    ratios = [1.0, 1.0, *(ratio * faster for ratio in RATIOS.values())]
    if with_bf16:
        labels, ratios = (*labels, rename("bf16")), [*ratios, 0.55]
    jobs = (_job(labels, ratios, sessions, samples),) if timed else ()
    return CellFacts(
        groups={
            "all": ("conv_0.weight", "conv_1.weight", "fc.weight"),
            "convs": ("conv_0.weight", "conv_1.weight"),
        },
        engine=engine,
        version="1.32.0" if engine == "onnxruntime" else "2026.4.0",
        device="Some CPU @ 2.10GHz",
        formats={
            "fp32": ("native", ""),
            "bf16": ("absent", "its CPU provider has no bf16 mode"),
            "fp8_e4m3": ("emulated", "no kernel computes in it"),
        },
        details={"isa": "avx2, avx512_vnni"},
        shape={"x": (1, 3, 48, 320)},
        mode="host",
        threads=2,
        options={"optimization": "all", "threads": "2"},
        options_sha256=HASH,
        preferences={"sign": "u8", "placement": "after_activation"},
        free_wins=("bf16",),
        notes=("12 denormal weights were set to zero: time -70%, output unchanged",),
        variants=_variants(engine, rename, with_bf16, timed),
        jobs=jobs,
    )


def build(
    *,
    rename: Callable[[str], str] = str,
    timed: bool = True,
    sessions: int = 6,
    samples: int = 4,
    with_bf16: bool = False,
    engines: tuple[str, ...] = ("onnxruntime", "openvino"),
    timing: dict[str, Any] | None = None,
) -> Record:
    """Build a record; ``rename`` changes the names of variants and metrics,
    ``with_bf16`` adds a free win that passes, and ``timing`` is what the study asks for."""
    split = SplitFacts(count=N, sha256=HASH, shapes=({"x": (1, 3, 48, 320)},))
    sites = tuple(
        SiteFact(id=name, node=name, op_type=op, weight_shape=(8, 8), groups=1)
        for name, op in (
            ("conv_0.weight", "Conv"), ("conv_1.weight", "Conv"), ("fc.weight", "MatMul"),
        )
    )  # fmt: skip
    facts = Facts(
        created="2026-03-04T05:06:07Z",
        command="bitworth study examples/ocr/study.toml --budget 8",
        config={"version": 1, "timing": timing or {}},
        config_sha256=HASH,
        policy=Policy(min_speedup=1.05, max_loss=((rename("line accuracy"), 0.02),)),
        timing=TimingRules(),
        subject=SubjectFacts(
            name=rename("PP-OCRv6 recogniser"), source="rapidocr: PP-OCRv6_rec_small.onnx",
            sha256=HASH, opset=11, prepared_opset=19, prepared_sha256=HASH,
            inputs=(Tensor(name="x", dtype="float32", shape=("N", 3, 48, None)),),
            outputs=("logits",), sites=sites, attention_left_alone=("matmul_7",), uncovered=(),
            denormal_weights=12, weights=123_456,
        ),
        data=DataFacts(
            source="examples/ocr/inputs.py", seed=3, random=False, calibration=split,
            holdout=split,
        ),
        environment=EnvironmentFacts(
            bitworth="0.1.0", python="3.11.9", platform="Linux-6.1-x86_64",
            cpu="Some CPU @ 2.10GHz",
            cores=2, memory_bytes=16_700_000_000,
            libraries={"onnxruntime": "1.32.0", "numpy": "2.3.1"},
        ),
        cells=tuple(_cell(name, rename, timed, sessions, samples, with_bf16) for name in engines),
        not_run=(
            NotRun(what="onnxruntime: bf16", reason="its CPU provider has no bf16 mode"),
            NotRun(what="fp8 time", reason="no engine here computes in it"),
        ),
        revisit=("engine.version > 1.32.0", "device == B300"),
    )  # fmt: skip
    return record_of("ocr-test", facts)


@pytest.fixture(scope="session")
def make_record() -> Callable[..., Record]:
    return build


@pytest.fixture(scope="session")
def record() -> Record:
    return build()


@pytest.fixture(scope="session")
def partial_record() -> Record:
    return build(timed=False)


@pytest.fixture(scope="session")
def rival_record() -> Record:
    """A study whose best variant is a free win, with its losses too small to matter."""
    return build(with_bf16=True, engines=("openvino",))


@pytest.fixture(scope="session")
def settled_record() -> Record:
    """A study that was timed until it was settled."""
    return build(timing={"until_settled": True}, engines=("onnxruntime",))


@pytest.fixture(scope="session")
def hostile_record() -> Record:
    """Names with everything that Markdown, HTML and terminals read as mark-up."""
    return build(
        rename=lambda name: f"{name} <b>|&*_`[x](y)` -->\x1b[31m $1$ \u202e5%",
        engines=("onnxruntime",),
    )
