"""The parts of a drawn figure, and what all kinds of drawings share."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hyla.experiments.spec import Figure
from hyla.report.adapter import Flat
from hyla.report.colours import NUMBERS
from hyla.report.text import at, label, number, places, plain, shown, spoken

Trace = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """One plot: a title, and traces and a layout for plotly in which all texts are escaped."""

    title: str
    data: list[Trace]
    layout: dict[str, Any]
    height: int = 300
    wide: bool = False  # takes the whole width


@dataclass(frozen=True)
class Key:
    """An entry of the legend; the `legendgroup` of a trace is its number."""

    name: str
    colour: str
    dash: str = "solid"  # of a line; none for points alone
    symbol: str = ""  # of points


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, a hover text, and a mark."""

    text: str
    about: str = ""
    mark: str = ""


Cells = Sequence["Cell | str"]


@dataclass(frozen=True)
class Grid:
    """A table: `texts` columns of text, then right-aligned numbers."""

    head: Sequence[str]
    body: Sequence[Cells]
    texts: int = 1


@dataclass
class Drawn:
    """A figure ready for the page.

    table: shown open. numbers: those of the plots, folded. skipped: rows that lack a value.
    """

    title: str
    panels: list[Panel] = field(default_factory=list)
    legend: list[Key] = field(default_factory=list)
    table: Grid | None = None
    numbers: Grid | None = None
    skipped: list[str] = field(default_factory=list)
    note: str = ""


def having(
    drawn: Drawn, rows: Iterable[Flat], axes: Sequence[str], what: str, has: Callable[[Flat], bool]
) -> list[Flat]:
    """Keep the rows that have something; list the others as not shown."""
    kept = []
    for row in rows:
        if has(row):
            kept.append(row)
        else:
            drawn.skipped.append(f"{places(axes, row)}: no value of {what}")
    return kept


def with_measure(
    drawn: Drawn, figure: Figure, rows: Iterable[Flat], axes: Sequence[str]
) -> list[Flat]:
    """Keep the rows in which the measure of a figure is defined."""
    return having(drawn, rows, axes, figure.y, lambda row: mean_of(row, figure.y) is not None)


def mean_of(row: Flat, name: str) -> float | None:
    """The mean of a measure; None if it is missing or undefined."""
    return number(at(row, "measures", name, "mean"))


def values_of(rows: Iterable[Flat], axis: str) -> list[Any]:
    """The values of an axis: numbers, kinds and rules sorted, other texts as they come."""
    found = list(dict.fromkeys(row[axis] for row in rows)) if axis else []
    if all(number(value) is not None for value in found):
        return sorted(found)
    return sorted(found, key=lambda v: NUMBERS[v]) if all(v in NUMBERS for v in found) else found


def panels_of(rows: Sequence[Flat], facet: str) -> Iterator[tuple[str, list[Flat]]]:
    """The rows of each panel, with its title."""
    if not facet:
        yield "", list(rows)
        return
    for value in values_of(rows, facet):
        name = shown(value) if isinstance(value, str) else f"{spoken(facet)} {shown(value)}"
        yield name, [row for row in rows if row[facet] == value]


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis of a plot."""
    return {"title": {"text": plain(title)}, "automargin": True, **more}


def x_axis(name: str, values: Sequence[Any], *, log: bool) -> dict[str, Any]:
    """The axis of a setting, shared by all panels, with one tick for each value."""
    if not all(number(value) is not None for value in values):
        return axis(spoken(name), type="category")
    if log and min(values) <= 0:
        log = False
    low, high = (math.log10(end) if log else end for end in (min(values), max(values)))
    room = 0.05 * (high - low or 1)
    return axis(
        spoken(name), type="log" if log else "linear", tickvals=list(values),
        ticktext=[label(shown(value)) for value in values],
        range=[low - room, high + room],
    )  # fmt: skip


def y_range(tops: Iterable[float], bottoms: Iterable[float], *, percent: bool) -> list[float]:
    """The range that all panels share. It includes 0; percentages above 60 extend it to 100."""
    top, bottom = max(tops, default=1.0), min(bottoms, default=0.0)
    low = min(0.0, bottom) if percent or bottom > 0 else bottom
    if percent and bottom >= 0 and 60 < top <= 100:
        return [0.0, 103.0]
    room = 0.06 * ((top - low) or 1.0)
    return [low - (room if low < 0 else 0.0), top + room]
