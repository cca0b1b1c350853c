"""The parts of a drawn figure, and what the drawings of all kinds share."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hyla.experiments.declare import Figure, Row
from hyla.experiments.results import is_at
from hyla.report.colours import NUMBERS
from hyla.report.text import label, number, places, plain, shown, spoken

Trace = dict[str, Any]


class MissingError(ValueError):
    """A row lacks what a figure draws."""


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
    """An entry of the legend: traces have its number as `legendgroup`."""

    name: str
    colour: str
    dash: str = "solid"  # of a line; none for points alone
    symbol: str = ""  # of points


@dataclass(frozen=True)
class Cell:
    """A cell of a table: text, what it is about (shown on hover), and a mark."""

    text: str
    about: str = ""
    mark: str = ""


Cells = Sequence["Cell | str"]


@dataclass(frozen=True)
class Grid:
    """A table: columns that are numbers are aligned to the right."""

    head: Sequence[str]
    body: Sequence[Cells]
    texts: int = 1  # so many columns are text


@dataclass
class Drawn:
    """A figure ready for the page: plots, tables, and what could not be drawn.

    table: shown as it is. numbers: those of the plots, folded.
    """

    title: str
    panels: list[Panel] = field(default_factory=list)
    legend: list[Key] = field(default_factory=list)
    table: Grid | None = None
    numbers: Grid | None = None
    skipped: list[str] = field(default_factory=list)
    note: str = ""


def rows_of(figure: Figure, rows: Iterable[Row]) -> list[Row]:
    """The rows that a figure is about."""
    return [row for row in rows if is_at(row, figure.where)]


def usable(
    drawn: Drawn, rows: Iterable[Row], axes: Sequence[str], check: Callable[[Row], object]
) -> Iterator[Row]:
    """The rows that have what is needed; the others are noted."""
    for row in rows:
        try:
            check(row)
        except MissingError as error:
            drawn.skipped.append(f"{places(axes, row) or 'a row'}: {error}")
            continue
        yield row


def need(row: Row, *axes: str) -> None:
    """Refuses a row without these axes, or with values that cannot be compared."""
    for axis in axes:
        if axis and not isinstance(row.get(axis), str | int | float | bool):
            raise MissingError(f"no {spoken(axis)}")


def measure(row: Row, name: str) -> dict[str, Any]:
    """Mean, error and seeds of a measure."""
    measures = row.get("measures")
    values = measures.get(name) if isinstance(measures, dict) else None
    if not isinstance(values, dict):
        raise MissingError(f"no {name}")
    if number(values.get("mean")) is None:
        raise MissingError(f"{name} is undefined")
    return values


def values_of(rows: Iterable[Row], axis: str) -> list[Any]:
    """The values of an axis: numbers, kinds and rules in order, other texts as they come."""
    found = list(dict.fromkeys(row[axis] for row in rows)) if axis else []
    if all(number(value) is not None for value in found):
        return sorted(found)
    return sorted(found, key=lambda v: NUMBERS[v]) if all(v in NUMBERS for v in found) else found


def panels_of(rows: Sequence[Row], facet: str) -> Iterator[tuple[str, list[Row]]]:
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
    """The axis of a setting, the same in all panels: with a tick for each value, and no others."""
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
    """The range that all panels share: from 0 if nothing is below, to 100 percent if near it."""
    top, bottom = max(tops, default=1.0), min(bottoms, default=0.0)
    low = min(0.0, bottom) if percent or bottom > 0 else bottom
    if percent and bottom >= 0 and 60 < top <= 100:
        return [0.0, 103.0]
    room = 0.06 * ((top - low) or 1.0)
    return [low - (room if low < 0 else 0.0), top + room]


def with_measure(
    drawn: Drawn, figure: Figure, rows: Sequence[Row], axes: Sequence[str]
) -> list[Row]:
    """The rows that have the axes and the measure of a figure."""

    def check(row: Row) -> None:
        need(row, figure.x, figure.colour, figure.facet)
        measure(row, figure.y)

    return list(usable(drawn, rows, axes, check))
