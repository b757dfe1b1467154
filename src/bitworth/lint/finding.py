"""What lint found, and the rules that it found it by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Finding:
    """A rule that is broken.

    Attributes:
        path: the file, as it was given.
        line: in it, from 1.
        rule: the rule's id.
        message: what is wrong and what to do, in one line.
    """

    path: str
    line: int
    rule: str
    message: str


@dataclass(frozen=True)
class Rule:
    """A rule: its id, its name, and what it asks, in one sentence."""

    id: str
    name: str
    asks: str


_ALL = (
    Rule("BW001", "unreadable", "A record can be read, with its samples."),
    Rule("BW002", "facts-changed", "The facts are those that the record has the hash of."),
    Rule("BW003", "derived-differs", "Verdicts, bounds and decisions follow from the facts."),
    Rule("BW004", "hash-differs", "Hashes of configuration, options and recipes are theirs."),
    Rule("BW005", "schedule-differs", "Samples lie where the seed's schedule puts them."),
    Rule("BW006", "names-differ", "Timed labels, groups and sites are those of the study."),
    Rule("BW007", "gap-untold", "What was not run is said, with the reason."),
    Rule("BW008", "misfiled", "A record's file has the name of its study."),
    Rule("BW009", "count-differs", "Quality is of as many samples as were held out."),
    Rule("BW101", "value-differs", "A value in a text is the one at its address."),
    Rule("BW102", "address-unknown", "An address in a text leads to a value of the record."),
    Rule("BW103", "number-unaddressed", "Every number in rendered text has an address."),
    Rule("BW104", "row-mixed", "A row, or a column, of a table is about one variant."),
    Rule("BW105", "text-stale", "Rendered text is what its record renders today."),
    Rule("BW106", "record-missing", "A text with addresses names its record, which is there."),
    Rule("BW107", "block-open", "Marks around rendered text come in pairs."),
    Rule("BW201", "estimate-as-bound", "An estimate is no upper bound."),
    Rule("BW202", "subset-as-whole", "A share says what its whole leaves out."),
    Rule("BW203", "baselines-mixed", "Numbers that are compared are of one run and one account."),
    Rule("BW204", "graph-contradicted", "A layer's place and its rows are those of the graph."),
    Rule("BW205", "range-uncovered", "A range names its variants, and holds all their numbers."),
    Rule("BW206", "arithmetic-differs", "A printed result follows from its printed operands."),
    Rule("BW207", "claim-unfounded", "A claim names numbers that its study has."),
    Rule("BW301", "secret", "No key, token or password is public."),
    Rule("BW302", "private-place", "No path or host of one person or one network is public."),
    Rule("BW303", "unpinned-download", "What is downloaded is named by a revision or a version."),
    Rule("BW304", "pickle", "Nothing that runs code when it is read is public."),
    Rule("BW305", "oversized", "A file of a repository is below 10 MB."),
    Rule("BW306", "table-broken", "Every row of a table has as many cells as its head."),
    Rule("BW307", "fence-open", "Every code block is closed."),
    Rule("BW901", "silence-unused", "A silenced rule is broken where it is silenced."),
    Rule("BW902", "silence-unreasoned", "A rule is silenced by its id and with a reason."),
)
RULES: Mapping[str, Rule] = {rule.id: rule for rule in _ALL}
