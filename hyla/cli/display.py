"""Show the progress of a run: live in a terminal, as lines elsewhere."""

import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hyla.train.watch import Progress, Watcher

SECONDS_BETWEEN_LINES = 10.0


def tell(text: str) -> None:
    """Print a line to standard error."""
    sys.stderr.write(text + "\n")


def display_for(stream: TextIO) -> Watcher:
    """Return a live display if the stream is a terminal, else lines."""
    console = Console(file=stream, highlight=False)
    return LiveDisplay(console) if console.is_terminal else Lines(stream)


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds.

    >>> duration(3723.4)
    '1:02:03'
    """
    return str(timedelta(seconds=round(seconds)))


class MemberRanking:
    """Keeps track of the best, median and worst member and of diverged ones."""

    def __init__(self) -> None:
        self.diverged: set[int] = set()

    def see(self, records: Sequence[dict[str, Any]]) -> None:
        """Record which members have diverged."""
        self.diverged |= {record["member"] for record in records if record.get("diverged")}

    def lost(self, progress: Progress) -> list[int]:
        """Return the diverged members.

        If a member diverged in an earlier process, it has no loss while others have one.
        """
        known = any(loss is not None for loss in progress.losses)
        unknown = {i for i, loss in enumerate(progress.losses) if loss is None and known}
        return sorted(self.diverged | unknown)

    def ranks(self, progress: Progress) -> dict[str, int]:
        """Rank members by the held-out measure or, until it is known, by the loss."""
        alive = sorted(set(range(len(progress.losses))) - set(self.lost(progress)))
        if all(progress.measures[i] is not None for i in alive):
            keys = {i: (-(progress.measures[i] or 0.0), progress.losses[i] or 0.0) for i in alive}
        else:
            keys = {i: (progress.losses[i] or 0.0, 0.0) for i in alive}
        order = sorted(alive, key=lambda i: keys[i])
        if not order or all(progress.losses[i] is None for i in alive):
            return {}
        if len(order) == 1:
            return {"": order[0]}
        middle = {"median": order[(len(order) - 1) // 2]} if len(order) > 2 else {}
        return {"best": order[0], **middle, "worst": order[-1]}


def number(value: float | None) -> str:
    """Format a loss or a measure; "-" if unknown."""
    return "-" if value is None else f"{value:.4f}"


def speed(progress: Progress) -> list[str]:
    """Format instances per second and the time left, if known."""
    rate = progress.instances_per_second
    parts = [f"{rate:,.0f} instances/s"] if rate else []
    if progress.seconds_left is not None and progress.doing == "training":
        parts.append(f"{duration(progress.seconds_left)} left")
    return parts


class Lines(Watcher):
    """Prints a line at most every ten seconds and at each evaluation, prefixed with a name."""

    def __init__(
        self, stream: TextIO, clock: Callable[[], float] = time.monotonic, name: str = ""
    ) -> None:
        self.stream, self.clock, self.standing = stream, clock, MemberRanking()
        self.start = f"{name}: " if name else ""
        self.last = -float("inf")
        self.measures: tuple[float | None, ...] = ()

    def say(self, text: str) -> None:
        """Print a message."""
        self.stream.write(f"{self.start}{text}\n")
        self.stream.flush()

    def metrics(self, records: Sequence[dict[str, Any]]) -> None:
        """Only to see who has diverged."""
        self.standing.see(records)

    def progress(self, progress: Progress) -> None:
        """Print a line if one is due or there is a new evaluation."""
        now = self.clock()
        known = any(measure is not None for measure in progress.measures)
        evaluated = known and progress.measures != self.measures
        if evaluated or now - self.last >= SECONDS_BETWEEN_LINES:
            self.last, self.measures = now, progress.measures
            self.say(self._line(progress))

    def _line(self, progress: Progress) -> str:
        parts = [f"step {progress.step}/{progress.steps}"]
        if progress.doing != "training":
            parts.append(progress.doing)
        parts += speed(progress)
        for rank, i in self.standing.ranks(progress).items():
            text = f"{rank} member {i}: loss {number(progress.losses[i])}".lstrip()
            if progress.measures[i] is not None:
                text += f" {progress.measure} {number(progress.measures[i])}"
            parts.append(text)
        if lost := self.standing.lost(progress):
            parts.append(f"{len(lost)} diverged")
        return ", ".join(parts)


class LiveDisplay(Watcher):
    """Shows a progress bar and a small table in place; messages scroll above."""

    def __init__(self, console: Console) -> None:
        self.console, self.standing = console, MemberRanking()
        self.live: Live | None = None

    def say(self, text: str) -> None:
        """Print a message above the display."""
        self.console.print(Text(text), soft_wrap=True)

    def metrics(self, records: Sequence[dict[str, Any]]) -> None:
        """Only to see who has diverged."""
        self.standing.see(records)

    def progress(self, progress: Progress) -> None:
        """Update the display; the screen is redrawn a few times per second."""
        if self.live is None:
            self.live = Live(console=self.console, transient=True, refresh_per_second=4)
            self.live.start()
        self.live.update(self._screen(progress))

    def close(self) -> None:
        """Remove the display; messages stay."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _screen(self, progress: Progress) -> Group:
        top = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=progress.steps, completed=progress.step, width=16)
        end = f" (to {progress.stop_at})" if progress.stop_at < progress.steps else ""
        place = f"step {progress.step}/{progress.steps}{end}"
        top.add_row(progress.doing, bar, ", ".join([place, *speed(progress)]))
        table = Table(box=None, padding=(0, 1), show_edge=False)
        for title in ("", "member", "loss", progress.measure):
            table.add_column(title, justify="right", no_wrap=True)
        for rank, i in self.standing.ranks(progress).items():
            numbers = (number(progress.losses[i]), number(progress.measures[i]))
            table.add_row(rank, str(i), *numbers)
        lost = self.standing.lost(progress)
        names = ", ".join(map(str, lost))
        return Group(top, table, *([Text(f"{len(lost)} diverged: {names}")] if lost else []))
