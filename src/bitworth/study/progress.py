"""Progress on the terminal: one bar a stage, with the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

#: Redraws a second. Drawing is done between calls, never by a thread beside a timed block.
_REDRAW_S = 0.25


class Reporter:
    """Tells the user what is going on; ``quiet`` tells nothing."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet

    def say(self, text: str) -> None:
        """One line."""
        if not self._quiet:
            self._console.print(text, markup=False, highlight=False)

    @contextmanager
    def stage(self, name: str, total: float) -> Iterator[Callable[[float], None]]:
        """A bar of ``total`` steps; yields a function that is told the steps done."""
        if self._quiet:
            yield lambda done: None
            return
        if not self._console.is_terminal:
            started = monotonic()
            yield lambda done: None
            self.say(f"{name}: done in {monotonic() - started:.0f} s")
            return
        columns = (
            TextColumn("{task.description:<44}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, auto_refresh=False) as bars:
            task = bars.add_task(name, total=total)
            drawn = 0.0

            def advance(done: float) -> None:
                nonlocal drawn
                bars.update(task, completed=min(done, total))
                if monotonic() - drawn >= _REDRAW_S or done >= total:
                    bars.refresh()
                    drawn = monotonic()

            yield advance
