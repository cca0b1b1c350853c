"""Lines: a measure over an axis."""

from collections.abc import Sequence
from typing import Any

from hyla.experiments.spec import Figure
from hyla.report import about
from hyla.report.adapter import Flat
from hyla.report.colours import GREY, style
from hyla.report.drawn import (
    Drawn,
    Grid,
    Key,
    Panel,
    Trace,
    axis,
    panels_of,
    values_of,
    with_measure,
    x_axis,
    y_range,
)
from hyla.report.tables import marked, notes
from hyla.report.text import (
    hover,
    number,
    of_seeds,
    places,
    plain,
    rounded,
    shown,
    spoken,
    with_error,
)

CEILING = "ceiling (exact solver)"


def draw_lines(figure: Figure, rows: Sequence[Flat], axes: Sequence[str]) -> Drawn:
    """Draw a panel for each value of the facet and a line for each value of the colour."""
    drawn = Drawn(figure.title)
    there = with_measure(drawn, figure, rows, axes)
    if not there:
        return drawn
    colours = values_of(there, figure.colour) or [""]
    ends = [_ends(row, figure.y) for row in there]
    ceilings = [c for row in there if figure.ceiling for c in [number(row.get("ceiling"))] if c]
    limits = y_range(
        [*(top for _, top in ends), *ceilings], [low for low, _ in ends], percent=figure.percent
    )
    unit = f"{figure.y}, percent" if figure.percent else figure.y
    for title, inside in panels_of(there, figure.facet):
        traces = [
            _line(figure, [row for row in inside if _colour(figure, row) == value], axes, i, style_)
            for i, value in enumerate(colours)
            for style_ in [style(value, colours)]
        ]
        if ceilings:
            traces.append(_ceiling(figure, inside, len(colours)))
        layout = {
            "xaxis": x_axis(figure.x, values_of(there, figure.x), log=figure.log),
            "yaxis": axis(unit, range=limits),
        }
        drawn.panels.append(Panel(title, [trace for trace in traces if trace["x"]], layout))
    if figure.colour:
        drawn.legend = [_key(figure.colour, value, colours) for value in colours]
    if ceilings:
        drawn.legend.append(Key(CEILING, GREY, "dash"))
    orders = [values_of(there, name) for name in (figure.facet, figure.colour, figure.x) if name]
    names = [name for name in (figure.facet, figure.colour, figure.x) if name]
    there.sort(key=lambda row: [o.index(row[n]) for n, o in zip(names, orders, strict=True)])
    drawn.numbers, drawn.note = _numbers(figure, there, axes), " ".join(notes(there))
    if drawn.note:
        drawn.note = f"In the numbers: {drawn.note}"
    return drawn


def _key(name: str, value: Any, values: Sequence[Any]) -> Key:
    look = style(value, values)
    return Key(places([name], {name: value}), look["colour"], look["dash"], look["symbol"])


def _colour(figure: Figure, row: Flat) -> Any:
    return row[figure.colour] if figure.colour else ""


def _ends(row: Flat, name: str) -> tuple[float, float]:
    values = row["measures"][name]
    mean, error = number(values["mean"]) or 0.0, number(values.get("standard_error")) or 0.0
    return mean - error, mean + error


def _line(
    figure: Figure, rows: Sequence[Flat], axes: Sequence[str], key: int, look: dict[str, str]
) -> Trace:
    order = {value: i for i, value in enumerate(values_of(rows, figure.x))}
    rows = sorted(rows, key=lambda row: order[row[figure.x]])
    values = [row["measures"][figure.y] for row in rows]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [x if number(x := row[figure.x]) is not None else plain(x) for row in rows],
        "y": [value["mean"] for value in values],
        "error_y": {
            "type": "data",
            "array": [number(value.get("standard_error")) for value in values],
            "thickness": 1.3,
            "width": 4,
        },
        "line": {"color": look["colour"], "dash": look["dash"], "width": 2},
        "marker": {"symbol": look["symbol"], "size": 8},
        "cliponaxis": False,  # show a point at 0 whole
        "hoverinfo": "text",
        "hovertext": [
            hover(about.lines(row, axes, figure.y, value))
            for row, value in zip(rows, values, strict=True)
        ],
        "legendgroup": str(key),
    }


def _ceiling(figure: Figure, rows: Sequence[Flat], key: int) -> Trace:
    places_: dict[Any, float] = {}
    for row in rows:
        found = number(row.get("ceiling"))
        if found is not None:
            places_[row[figure.x]] = found
    order = [x for x in values_of(rows, figure.x) if x in places_]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [x if number(x) is not None else plain(x) for x in order],
        "y": [places_[x] for x in order],
        "line": {"color": GREY, "dash": "dash", "width": 1.5},
        "marker": {"symbol": "line-ew", "size": 10, "line": {"color": GREY, "width": 1.5}},
        "hoverinfo": "text",
        "hovertext": [hover([CEILING, f"{places_[x]:.1f} %"]) for x in order],
        "legendgroup": str(key),
    }


def _numbers(figure: Figure, rows: Sequence[Flat], axes: Sequence[str]) -> Grid:
    shown_axes = [axis_ for axis_ in axes if any(axis_ in row for row in rows)]
    head = [*map(spoken, shown_axes), figure.y, "by seed", *(["ceiling"] * figure.ceiling)]
    body = []
    for row in rows:
        values = row["measures"][figure.y]
        mean = with_error(values["mean"], values.get("standard_error")) + of_seeds(values)
        text = marked(mean, row)
        cells = [*(shown(row.get(axis_)) for axis_ in shown_axes), text, about.seeds(values)]
        body.append([*cells, *([rounded(row.get("ceiling"))] * figure.ceiling)])
    return Grid(head, body, len(shown_axes))
