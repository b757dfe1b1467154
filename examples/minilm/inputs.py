"""Groups of English sentences, for a sentence encoder.

The sentences are those of Python's help topics in examples/decoder/text; a topic is calibrated on
or judged on, never both. A sample is a group of eight, encoded in one call, so that the nearest
neighbour of each can be looked for inside the sample. Which one that is no list says: the target
of a held-out group is what the fp32 model itself answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from itertools import chain, cycle, islice, starmap
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

FOLDER = Path(__file__).parent
MODEL, TOKENIZER = FOLDER / "minilm.onnx", FOLDER / "tokenizer.json"
TEXT = FOLDER.parent / "decoder" / "text"

#: Sentences of a sample, and tokens of a sentence, with padding behind the short ones.
GROUP, TOKENS = 8, 32
SUBSETS = ("clean", "degraded")

Inputs = dict[str, NDArray[np.int64]]
Target = dict[str, Any]

#: A heading is a line above a line of these, as long as the heading.
_UNDERLINE = re.compile(r"[*=~-]{4,}")
_SENTENCE = re.compile(r"[A-Z][\w ,;:'\"()*/.=-]{30,150}\.")


def calibration(count: int, seed: int) -> Iterator[tuple[Inputs, Target]]:
    """Groups to calibrate scales on, of sentences that `holdout` has none of.

    Yields `count` pairs, one at a time: the inputs, `input_ids` and `attention_mask` int64 [8, 32],
    and the target, `subset` ("clean" or "degraded", in turn): degraded sentences are mistyped. A
    sentence is in one clean group and in one degraded group. Raises ValueError for a negative
    count or seed, and for more groups than the text gives.
    """
    return map(_encoded, _chosen("calibration", count, seed), cycle(SUBSETS))


def holdout(count: int, seed: int) -> Iterator[tuple[Inputs, Target]]:
    """Groups to judge a model on, of sentences that `calibration` has none of.

    Yields and raises as `calibration` does; the target has `fp32_nearest` as well: for each
    sentence the place of the one that the fp32 model puts nearest to it.
    """
    return starmap(_answered, map(_encoded, _chosen("holdout", count, seed), cycle(SUBSETS)))


def sentences(split: str) -> tuple[str, ...]:
    """The sentences of a split in the text's order, each once."""
    return _sentences()[split == "holdout"]


@cache
def _sentences() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Both splits. The hash of a topic's heading says which it is in."""
    found: tuple[dict[str, None], dict[str, None]] = {}, {}
    for heading, text in _topics():
        held = sha256(heading.encode()).digest()[0] % 2
        found[held].update(dict.fromkeys(_said(text)))
    # Some paragraphs are in two topics.
    return tuple(s for s in found[0] if s not in found[1]), tuple(found[1])


def _topics() -> Iterator[tuple[str, str]]:
    heading, body = "", list[str]()
    for name in ("train.txt", "heldout.txt"):
        lines = (TEXT / name).read_text(encoding="utf-8").split("\n")
        for line, below in zip(lines, [*lines[1:], ""], strict=True):
            if _UNDERLINE.fullmatch(below) and len(below) == len(line):
                yield heading, "\n".join(body)
                heading, body = line, []
            else:
                body.append(line)
    yield heading, "\n".join(body)


def _said(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
            if _SENTENCE.fullmatch(sentence):
                yield sentence


def _chosen(split: str, count: int, seed: int) -> list[tuple[str, ...]]:
    """Groups from all over the text, and groups of mistyped neighbours in it, in turn."""
    if count < 0 or seed < 0:
        raise ValueError(f"count and seed must not be negative: count {count}, seed {seed}")
    said = sentences(split)
    groups = len(said) // GROUP
    if count > 2 * groups:
        raise ValueError(f"the text gives {2 * groups} groups for {split}; ask for no more")
    # By hash and not by a generator, whose streams may change with NumPy's releases.
    order = sorted(range(groups), key=lambda i: sha256(f"{seed} {i}".encode()).digest())
    clean = (said[i : groups * GROUP : groups] for i in order)
    degraded = (tuple(map(mistyped, said[i * GROUP : (i + 1) * GROUP])) for i in order)
    pairs = chain.from_iterable(zip(clean, degraded, strict=True))
    return list(islice(pairs, count))


def mistyped(sentence: str) -> str:
    """In lower case, and one letter in ten left out, doubled or behind the next one."""
    letters, typed = list(sentence.lower()), ""
    while letters:
        letter = letters.pop(0)
        # What becomes of a letter hangs on all that is still to come.
        chance = sha256((letter + "".join(letters)).encode()).digest()
        if not letter.isalpha() or chance[0] % 10:
            typed += letter
        elif chance[1] % 3 == 0:
            typed += 2 * letter
        elif chance[1] % 3 == 1 and letters:
            typed += letters.pop(0) + letter
    return typed


def _encoded(group: Sequence[str], subset: str) -> tuple[Inputs, Target]:
    encoded = _tokenizer().encode_batch(list(group))
    return {
        "input_ids": np.array([e.ids for e in encoded], np.int64),
        "attention_mask": np.array([e.attention_mask for e in encoded], np.int64),
    }, {"subset": subset}


def _answered(inputs: Inputs, target: Target) -> tuple[Inputs, Target]:
    (vectors,) = _reference().run(None, inputs)
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, -np.inf)
    return inputs, {**target, "fp32_nearest": alike.argmax(axis=1).tolist()}


@cache
def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(_made(TOKENIZER)))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS)
    return tokenizer


@cache
def _reference() -> onnxruntime.InferenceSession:
    """The model as it was given, with no optimization: what studies call the reference."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(_made(MODEL), options, providers=["CPUExecutionProvider"])


def _made(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; write it with make_model.py beside it")
    return path
