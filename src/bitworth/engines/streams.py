"""Several inferences in flight at once, and the time in which so many of them end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from math import inf
from threading import Barrier, Lock
from time import perf_counter_ns
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bitworth.engines.base import Arrays


class Stream(Protocol):
    """What runs one inference at a time, with inputs and outputs of its own."""

    def bind(self, inputs: Arrays) -> None:
        """Make ``inputs`` what every following call runs on."""

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """What is bound now, by name, copied."""

    def run(self) -> None:
        """Run once and wait for the result."""

    def run_among(self) -> None:
        """Run once while other streams run too, without the interpreter's lock, and wait."""

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Outputs of the last run by name, copied."""


S = TypeVar("S", bound=Stream)


class StreamRunner(Generic[S]):
    """The part of ``base.Runner`` that is the same whatever the streams are.

    Attributes:
        streams: at least one; only the first runs outside ``time_block``.
    """

    def __init__(self, streams: Sequence[S]) -> None:
        self.streams = tuple(streams)
        calls = [stream.run_among for stream in self.streams]
        self._together = Together(calls) if len(calls) > 1 else None

    def bind(self, inputs: Arrays) -> None:
        """Bind ``inputs`` to the first stream and a copy of them to every other."""
        for index, stream in enumerate(self.streams):
            stream.bind(inputs if index == 0 else {k: np.array(v) for k, v in inputs.items()})

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """What is bound to the first stream, copied."""
        return self.streams[0].inputs()

    def run(self) -> None:
        """Run once, in the first stream."""
        self.streams[0].run()

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Outputs of the first stream's last run, by name, copied."""
        return self.streams[0].outputs()

    def time_block(self, iterations: int, inner: int = 1) -> list[int]:
        """``iterations`` samples in ns, of ``inner`` runs each or of as many as there are streams.

        Raises ValueError for ``inner`` over 1 with several streams.
        """
        if self._together is not None:
            if inner != 1:
                raise ValueError("a sample of several streams has one run of each")
            return self._together.time_block(iterations)
        run = self.streams[0].run
        samples = []
        if inner == 1:
            for _ in range(iterations):
                start = perf_counter_ns()
                run()
                samples.append(perf_counter_ns() - start)
            return samples
        runs = range(inner)
        for _ in range(iterations):
            start = perf_counter_ns()
            for _ in runs:
                run()
            samples.append(perf_counter_ns() - start)
        return samples


class Together:
    """Calls that run at the same time, each one again and again in a thread of its own.

    A call must release the interpreter's lock while it computes, as both engines' do. That a
    thread waits for its own call costs less than a queue with callbacks: on 2 cores two streams
    of a 50 us OpenVINO plan took 78 us an inference, with callbacks 102 and through
    ``AsyncInferQueue`` 126.
    """

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._calls = tuple(calls)
        self._pool = ThreadPoolExecutor(len(self._calls), "stream")

    def time_block(self, iterations: int) -> list[int]:
        """Wall time in which as many inferences ended as there are streams.

        Ramp-up and drain are in no sample: the first sample begins when every stream has ended
        one inference, and until the last one ends every stream has one in flight.

        Returns ``iterations`` samples in ns. What a call raises is raised once all streams ended.
        """
        block = _Block(len(self._calls), iterations)
        running = [self._pool.submit(block.run, call) for call in self._calls]
        wait(running)
        for stream in running:
            stream.result()
        return samples_between(block.ended_ns, block.ramp, len(self._calls), iterations)


class _Block:
    """What the threads of one block share."""

    def __init__(self, streams: int, iterations: int) -> None:
        self._streams = streams
        self._iterations = iterations
        self._together = Barrier(streams)
        self._lock = Lock()
        self._started = self._warm = 0
        self._limit: float = inf  # not known before the ramp-up ends
        self.ramp = 0
        self.ended_ns: list[int] = []

    def run(self, call: Callable[[], object]) -> None:
        """Run ``call`` until the block has all its samples, or a call of any stream failed."""
        self._together.wait()
        first = True
        while self._may_start():
            try:
                call()
            except BaseException:
                self._limit = 0
                raise
            self._note(perf_counter_ns(), first)
            first = False

    def _may_start(self) -> bool:
        with self._lock:
            self._started += 1
            return self._started <= self._limit

    def _note(self, now: int, first: bool) -> None:
        with self._lock:
            self.ended_ns.append(now)
            self._warm += first
            if first and self._warm == self._streams:
                self.ramp = len(self.ended_ns)
                # When the last sample ends, all other streams are still in flight.
                sampled = self._iterations * self._streams
                self._limit = min(self._limit, self.ramp + sampled + self._streams - 1)


def samples_between(ended_ns: Sequence[int], ramp: int, streams: int, iterations: int) -> list[int]:
    """Times between every ``streams``-th completion after the ramp-up.

    Args:
        ended_ns: when inferences ended, at least ``ramp + iterations * streams`` of them; two that
            ended at about the same time may stand in either order.
        ramp: completions until the first sample begins, at least 1.
        streams: completions of one sample.
        iterations: samples.
    """
    # A thread may be held up between reading the clock and adding to the list.
    marks = sorted(ended_ns)[ramp - 1 :: streams][: iterations + 1]
    return [end - start for start, end in pairwise(marks)]
