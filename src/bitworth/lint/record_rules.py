"""Rules over one record: everything in it that follows from something else in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bitworth.errors import UserError
from bitworth.lint.finding import Finding
from bitworth.record.names import BASELINE
from bitworth.record.recipe_identity import IDENTITY, recipe_sha256
from bitworth.record.rejudge import rejudge
from bitworth.record.schema import CellFacts, Record
from bitworth.record.store import canonical, is_sealed, read_record, read_tree, sha256
from bitworth.record.timing_facts import SessionFacts, TimingJob
from bitworth.verdict import session_schedule

#: The baseline's plan loaded a second time, under a name of its own.
_AGAIN = "baseline again"
#: Differences that are told one by one; the rest is counted.
_TOLD = 5
#: How the file of a study ends that is not finished.
_PARTIAL = ".partial"


def lint_record(path: Path) -> list[Finding]:
    """Everything that is wrong with the record at ``path``."""
    try:
        tree, record = read_tree(path), read_record(path)
    except (UserError, ValueError) as error:
        return [Finding(str(path), 1, "BW001", str(error))]
    found = list(_sealed(tree))
    for rule in (_conclusions, _hashes, _names, _schedules, _gaps, _counts):
        try:
            found += rule(record)
        except (ValueError, LookupError, ArithmeticError, UserError) as error:
            # Facts that no study has, such as two variants of one name, may be judged by no rule.
            found.append(("BW003", f"its facts cannot be judged ({error}); restore the file"))
    if path.stem.removesuffix(_PARTIAL) != record.id:
        found.append(("BW008", f"its id is {record.id}; name the file {record.id}.json"))
    return [Finding(str(path), 1, rule, message) for rule, message in found]


_Found = Iterator[tuple[str, str]]


def _sealed(tree: dict[str, Any]) -> _Found:
    if not is_sealed(tree):
        yield (
            "BW002",
            "its facts were changed after they were stored; restore the file, or run the study "
            "again (facts_sha256 is that of other facts)",
        )


def _conclusions(record: Record) -> _Found:
    """Where what is stored is not what today's rules derive."""
    again = rejudge(record)
    places = [
        *(f"/derived/timing/{c.name}" for c in again.rules),
        *(f"/derived/cells/{c.cell}/variants/{c.variant}/{c.which}" for c in again.comparisons),
        *(
            f"the decision of {change.cell}" if change.cell else "/derived/decision"
            for change in again.decisions
        ),
        *again.others,
    ]
    if not again.changed:
        return
    advice = "run 'bitworth rejudge --write', or restore the file"
    for place in places[:_TOLD]:
        yield "BW003", f"{place} does not follow from the facts; {advice}"
    if len(places) > _TOLD or not places:
        yield "BW003", f"{max(0, len(places) - _TOLD)} further differences; {advice}"


def _hashes(record: Record) -> _Found:
    facts = record.facts
    if sha256(canonical(facts.config)) != facts.config_sha256:
        yield "BW004", "config_sha256 is not that of its configuration"
    for cell in facts.cells:
        if sha256(canonical(cell.options)) != cell.options_sha256:
            yield "BW004", f"{cell.engine}: options_sha256 is not that of its options"
        for variant in cell.variants:
            if variant.recipe_sha256 is None or variant.recipe_identity != IDENTITY:
                continue  # made of what an older record had to say
            if recipe_sha256(variant, cell) != variant.recipe_sha256:
                text = f"{cell.engine}: recipe_sha256 of '{variant.name}' is not that of its sites"
                yield "BW004", text


def _names(record: Record) -> _Found:
    sites = {site.id for site in record.facts.subject.sites}
    attention = set(record.facts.subject.attention_left_alone)
    for cell in record.facts.cells:
        names = [v.name for v in cell.variants]
        yield from _labels(cell, names)
        for name in {n for n in names if names.count(n) > 1}:
            yield "BW006", f"{cell.engine}: two variants are called '{name}'"
        for variant in cell.variants:
            for site in variant.sites:
                if site.site not in sites and not (attention and "@" in site.site):
                    text = f"'{variant.name}' quantizes '{site.site}', which the model has not"
                    yield "BW006", f"{cell.engine}: {text}"
        for group, ids in cell.groups.items():
            for id_ in ids:
                if id_ not in sites and "@" not in id_:
                    text = f"group '{group}' holds '{id_}', which the model has not"
                    yield "BW006", f"{cell.engine}: {text}"


def _labels(cell: CellFacts, names: list[str]) -> _Found:
    tries = [t.name for t in cell.free_win_search.tries] if cell.free_win_search else []
    for jobs, known in ((cell.jobs, names), (cell.free_win_jobs, tries)):
        for number, job in enumerate(jobs, start=1):
            if job.labels[:2] != (BASELINE, _AGAIN):
                text = f"job {number} begins with {', '.join(job.labels[:2])}"
                yield "BW006", f"{cell.engine}: {text}, not with '{BASELINE}' and '{_AGAIN}'"
            for label in job.labels[2:]:
                if label not in known:
                    yield "BW006", f"{cell.engine}: job {number} times '{label}', which is none"
    timed = [label for job in cell.jobs for label in job.labels]
    for variant in cell.variants if cell.jobs else ():
        if variant.state == "measured" and variant.name not in timed:
            yield "BW007", f"{cell.engine}: '{variant.name}' was measured and stands in no job"
    if cell.jobs and BASELINE not in names:
        yield "BW006", f"{cell.engine}: has timing and no variant '{BASELINE}'"


def _schedules(record: Record) -> _Found:
    for cell in record.facts.cells:
        for kind, jobs in (("job", cell.jobs), ("free wins' job", cell.free_win_jobs)):
            for number, job in enumerate(jobs, start=1):
                for place, session in enumerate(job.sessions):
                    where = f"{cell.engine}: {kind} {number}, session {session.session}"
                    if session.session != place:
                        yield "BW005", f"{where}: stands in the place of session {place}"
                    yield from ((rule, f"{where}: {text}") for rule, text in _session(job, session))


def _session(job: TimingJob, session: SessionFacts) -> _Found:
    planned = session_schedule(
        len(job.labels),
        seed=job.seed,
        session=session.session,
        minimum_rounds=job.minimum_rounds,
    )
    if (session.start_order, session.order) != (planned.start_order, planned.rounds):
        yield "BW005", "its order is not that of its seed"
        return
    if len(session.samples_ns) != len(session.order):
        yield "BW005", f"{len(session.samples_ns)} rounds of samples, {len(session.order)} planned"
        return
    for number, (row, labels) in enumerate(
        zip(session.samples_ns, session.order, strict=True), start=1
    ):
        if len(row) != len(labels):
            yield "BW005", f"round {number} has {len(row)} blocks of {len(labels)}"
            return
        for block, label in zip(row, labels, strict=True):
            name = job.labels[label]
            if not block and label not in session.failures:
                yield "BW007", f"round {number} has no samples of '{name}', and no failure says why"
                return
            if block and len(block) != job.iterations:
                text = f"round {number} has {len(block)} samples of '{name}', not {job.iterations}"
                yield "BW005", text
                return


def _gaps(record: Record) -> _Found:
    """Every variant without a time has a line among what was not run, and a reason."""
    told = [(line.what, line.reason) for line in record.facts.not_run]
    wanted: dict[str, int] = {}
    for cell in record.facts.cells:
        for variant in cell.variants:
            if variant.state == "measured":
                continue
            if not variant.reason:
                yield "BW007", f"{cell.engine}: '{variant.name}' is {variant.state} without reason"
            line = f"{_label(cell)}: time of {variant.name}"
            wanted[line] = wanted.get(line, 0) + 1
    for line, count in wanted.items():
        if sum(what == line for what, _ in told) < count:
            yield "BW007", f"not_run has no line '{line}' for each cell where it was not measured"
    for what, reason in told:
        if not reason:
            yield "BW007", f"not run: '{what}' has no reason"


def _label(cell: CellFacts) -> str:
    """How not_run names a cell."""
    parts = [cell.engine, *([cell.mode] if cell.mode != "host" else [])]
    return ", ".join(parts if cell.batch is None else [*parts, f"batch {cell.batch}"])


def _counts(record: Record) -> _Found:
    """Samples of the data, and those that each variant was judged by."""
    count = record.facts.data.holdout.count
    for cell in record.facts.cells:
        for variant in cell.variants:
            quality = variant.quality
            if quality is None:
                continue
            where = f"{cell.engine}: quality of '{variant.name}'"
            if quality.n != count:
                yield "BW009", f"{where} is of {quality.n} samples, and {count} were held out"
            for name, metric in quality.metrics.items():
                lengths = {len(metric.values), len(metric.denominators or metric.values)}
                if lengths != {quality.n}:
                    told = ", ".join(map(str, sorted(lengths)))
                    yield "BW009", f"{where}: metric '{name}' has {told} values of {quality.n}"
