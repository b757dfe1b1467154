"""A synthetic machine: sessions with known ratios under a chosen kind of noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from bitworth.verdict import SessionBlocks, session_schedule

MakeCell = Callable[..., list[SessionBlocks]]


def make_cell(
    seed: int,
    *,
    ratios: Sequence[float] = (1.0, 1.0, 1.0),
    sessions: int = 6,
    model: str = "normal",
    noise: float = 0.03,
    warmup: Sequence[float] | None = None,
    scale: float = 1e6,
) -> list[SessionBlocks]:
    """Sessions of labels with these time ratios."""
    k = len(ratios)
    generator = np.random.default_rng(seed)
    cell = []
    for session in range(sessions):
        order = np.array(session_schedule(k, seed=seed, session=session).rounds, dtype=np.int64)
        logs = (
            np.log(scale)
            + np.log(np.asarray(ratios))[order]
            + _noise(generator, order, model, noise)
        )
        halves = generator.normal(0, noise / 4, (2, *order.shape))
        first = logs + halves[0]
        if warmup is not None:
            first = first + np.asarray(warmup)[order]
        cell.append(SessionBlocks(order, np.exp(logs), np.exp(first), np.exp(logs + halves[1])))
    return cell


def _noise(
    generator: np.random.Generator, order: np.ndarray, model: str, noise: float
) -> np.ndarray:
    shape, n = order.shape, order.size
    white = generator.normal(0, noise, shape)
    if model == "normal":
        return white
    if model == "spikes":
        hit = generator.random(shape) < 0.15
        return white / 3 + np.where(hit, generator.exponential(0.3, shape), 0)
    if model == "ar":
        series = white.ravel().copy()
        series[0] /= np.sqrt(0.75)
        for i in range(1, n):
            series[i] += 0.5 * series[i - 1]
        return series.reshape(shape)
    if model == "drift":
        return white + 0.10 * np.arange(n).reshape(shape) / n
    if model == "position":
        return white + np.linspace(0, 0.02, shape[1])
    if model == "carry-over":
        before = np.concatenate([[-1], order.ravel()[:-1]]).reshape(shape)
        return white + 0.006 * (before == 0)
    if model == "session bias":
        return white + generator.normal(0, 0.005, shape[1])[order]
    raise AssertionError(model)


@pytest.fixture(scope="session")
def cell() -> MakeCell:
    return make_cell
