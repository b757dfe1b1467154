"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.calibration.job import Call, Cost
from benchmarks.calibration.pairs import PAIRS
from benchmarks.calibration.report import CALIBRATORS, CalibrationReport, comparisons

BEGIN = "<!-- calibration-benchmark:begin -->\n"
END = "<!-- calibration-benchmark:end -->"


def insert(document: str, tables: str) -> str:
    """``document`` with ``tables`` between its marks; raises ValueError without them."""
    before, mark, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError("the document has no place for the benchmark's tables")
    return f"{before}{BEGIN}{tables}{END}{after}"


def render_report(report: CalibrationReport) -> str:
    """All tables."""
    parts = (
        ("Time of all variants", _totals(report)),
        ("Where Bitworth's time goes", _phases(report)),
        ("Each variant", _pairs(report)),
        ("Memory", _memory(report)),
    )
    return "\n\n".join([_setting(report), *(f"### {t}\n\n{text}" for t, text in parts)]) + "\n"


def _setting(report: CalibrationReport) -> str:
    facts = report.environment
    counts = sorted({run.count for run in report.ours})
    before, after = report.load
    return (
        f"{report.model} ({report.model_bytes / 1e6:.1f} MB), "
        f"{', '.join(f'{count:,}' for count in counts)} samples, {report.threads} threads; "
        f"{facts.cpu}, {facts.cores} cores; onnxruntime "
        f"{facts.libraries.get('onnxruntime', '')}, Python {facts.python}. "
        f"{_times(len(report.ours), 'run')} of Bitworth, "
        f"{_times(len(report.rounds), 'round')} of calls. Load average of the machine before and "
        f"after: {before:.1f}, {after:.1f}."
    )


def _totals(report: CalibrationReport) -> str:
    rows = []
    for each in comparisons(report):
        low, high = each.extremes
        rows.append(
            [
                each.what,
                _seconds(each.ours),
                _seconds(each.theirs),
                f"{each.ratio():.1f}× ({low:.1f} to {high:.1f})",
                f"{each.ratio(cpu=True):.1f}×",
            ]
        )
    titles = (
        "what is compared", ">Bitworth", ">quantize_static", ">ratio (lowest to highest)",
        ">ratio of CPU time",
    )  # fmt: skip
    return _table(titles, rows)


def _phases(report: CalibrationReport) -> str:
    runs = report.ours
    rows = [
        [name, _seconds([run.shared[name] for run in runs]), _cpu([r.shared[name] for r in runs])]
        for name in runs[0].shared
    ]
    scales = [_sum(v.scales for v in run.variants.values()) for run in runs]
    write = [_sum(v.write for v in run.variants.values()) for run in runs]
    number = len(runs[0].variants)
    rows.append([f"scales of {number} variants", _seconds(scales), _cpu(scales)])
    rows.append([f"lowering and saving {number} variants", _seconds(write), _cpu(write)])
    return _table(("part", ">time", ">CPU time"), rows)


def _pairs(report: CalibrationReport) -> str:
    rows = []
    for pair in PAIRS:
        ours = [run.variants[pair.name] for run in report.ours]
        calls = [
            call for round_ in report.rounds for call in round_.theirs if call.pair == pair.name
        ]
        again = [
            call for round_ in report.rounds for call in round_.cached if call.pair == pair.name
        ]
        rows.append(
            [
                pair.name,
                _seconds([v.scales for v in ours]),
                _seconds([v.write for v in ours]),
                _asked(pair.call.method, pair.call.activation, pair.call.weight),
                pair.likeness + (f": {pair.differs}" if pair.differs else ""),
                _called(calls),
                _called(again),
                _megabytes(max(call.beyond_bytes for call in calls)),
                f"{ours[0].weights}, {calls[0].weights}",
            ]
        )
    titles = (
        "variant", ">scales", ">lower and save", "call", "counterpart", ">call",
        ">with a cache of ranges", ">its memory", ">quantized weights of both",
    )  # fmt: skip
    return _table(titles, rows)


def _memory(report: CalibrationReport) -> str:
    rows = []
    for part in ("one pass", *CALIBRATORS):
        cells = [
            _megabytes(max(run.beyond_bytes.get(part, 0) for run in runs))
            for runs in (report.ours, report.many)
        ]
        rows.append([f"Bitworth, {part}", *cells])
    methods = {pair.name: pair.call.method for pair in PAIRS}
    calls = [call for round_ in report.rounds for call in round_.theirs]
    for method in dict.fromkeys(methods.values()):
        most = max((c for c in calls if methods[c.pair] == method), key=lambda c: c.beyond_bytes)
        told = f" ({most.failed})" if most.failed else ""
        rows.append([f"quantize_static, {method}", _megabytes(most.beyond_bytes) + told, ""])
    counts = [
        f">{', '.join(f'{c:,}' for c in sorted({r.count for r in runs}))} samples"
        for runs in (report.ours, report.many)
    ]
    return _table(("beyond the interpreter", *counts), rows)


def _asked(method: str, activation: str, weight: str) -> str:
    return f"{method}, {activation.removeprefix('Q')} and {weight.removeprefix('Q')}"


def _called(calls: Sequence[Call]) -> str:
    ended = [call.cost for call in calls if call.cost is not None]
    return _seconds(ended) if ended else ", ".join(call.failed for call in calls)


def _seconds(costs: Sequence[Cost]) -> str:
    """The mean, by the clock, and from what to what where there are several."""
    return _range([cost.wall_s for cost in costs])


def _cpu(costs: Sequence[Cost]) -> str:
    return _range([cost.cpu_s for cost in costs])


def _range(seconds: Sequence[float]) -> str:
    mean = f"{_digits(sum(seconds) / len(seconds))} s"
    if len(seconds) == 1:
        return mean
    return f"{mean} ({_digits(min(seconds))} to {_digits(max(seconds))})"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.0f} MB"


def _times(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _sum(costs: Iterable[Cost]) -> Cost:
    return sum(costs, Cost(0.0, 0.0))


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(_lines(titles, rows))


def _lines(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(title.removeprefix(">") for title in titles) + " |"
    yield "| " + " | ".join("--:" if t.startswith(">") else "---" for t in titles) + " |"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
