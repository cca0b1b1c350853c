"""Bars: accuracy by rule, and measures beside their control."""

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
    having,
    panels_of,
    values_of,
    with_measure,
    y_range,
)
from hyla.report.lines import CEILING
from hyla.report.text import (
    at,
    hover,
    label,
    number,
    places,
    plain,
    rounded,
    shown,
    spoken,
    with_error,
)

SAME_CEILING = 1.0  # percent: held-out combinations, and so ceilings, differ between seeds
MOST_BARS = 6  # more rows are drawn as a map of numbers
MOST_NARROW = 20  # bars in a panel beside others
CONTROL = ", labels shuffled"
# Colours of a map of numbers; black text is legible on each.
PALE, ON_PALE = [[0, "#ffffff"], [1, "#56a5d8"]], "#1b1f24"


def draw_rules(figure: Figure, rows: Sequence[Flat], axes: Sequence[str]) -> Drawn:
    """Draw a measure by rule: bars for a few rows, a map of numbers for many."""
    drawn = Drawn(figure.title)

    there = having(drawn, rows, axes, spoken(figure.y), lambda r: bool(_by_rule(r, figure.y)))
    if not there:
        return drawn
    colours = values_of(there, figure.colour) or [""]
    if figure.colour:
        there.sort(key=lambda row: colours.index(row[figure.colour]))
    rules = list(dict.fromkeys(rule for row in there for rule in _by_rule(row, figure.y)))
    ceilings = [c for row in there if (c := number(row.get("ceiling"))) and figure.ceiling]
    if ceilings and max(ceilings) - min(ceilings) > SAME_CEILING:
        ceilings = []  # the tasks differ, so one line would be wrong
    drawn.numbers = _numbers(figure, there, rules, axes)
    if len(there) > MOST_BARS:
        drawn.panels.append(_map(figure, there, rules, axes))
        if ceilings:
            drawn.note = f"The {CEILING}, over all instances: {max(ceilings):.1f} %."
        return drawn
    traces = []
    for row in there:
        value = row[figure.colour] if figure.colour else ""
        found = _by_rule(row, figure.y)
        traces.append(
            _bars(
                [label(rule, 12) for rule in found], list(found.values()), list(found),
                row, axes, colours.index(value), style(value, colours)["colour"],
            )
        )  # fmt: skip
    layout: dict[str, Any] = {
        "xaxis": axis(type="category"),
        "yaxis": axis("percent", range=[0, 103]),
        "barmode": "group",
    }
    if ceilings:
        layout["shapes"] = [_across(max(ceilings))]
    drawn.panels.append(Panel("", traces, layout, 340, wide=True))
    named = [
        Key(places([figure.colour], {figure.colour: v}), style(v, colours)["colour"])
        for v in colours
        if figure.colour
    ]
    drawn.legend = [*named, *([Key(f"{CEILING}, all instances", GREY, "dash")] * bool(ceilings))]
    return drawn


def _by_rule(row: Flat, name: str) -> dict[str, Any]:
    found = row.get(name, {})
    return {rule: values for rule, values in found.items() if number(values["mean"]) is not None}


def _across(height: float) -> dict[str, Any]:
    line = {"color": GREY, "dash": "dash", "width": 1.5}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height,
            "line": line}  # fmt: skip


def _bars(
    places_: list[str], values: list[Any], names: list[str], row: Flat, axes: Sequence[str],
    key: int, colour: str,
) -> Trace:  # fmt: skip
    return {
        "type": "bar",
        "x": places_,
        "y": [value["mean"] for value in values],
        "error_y": {
            "type": "data",
            "array": [number(value.get("standard_error")) for value in values],
            "thickness": 1.2,
            "width": 2,
            "color": "ink",
        },
        "marker": {"color": colour},
        "hoverinfo": "text",
        "hovertext": [
            hover(about.lines(row, axes, name, value))
            for name, value in zip(names, values, strict=True)
        ],
        "legendgroup": str(key),
    }


def _map(figure: Figure, rows: Sequence[Flat], rules: list[str], axes: Sequence[str]) -> Panel:
    found = [_by_rule(row, figure.y) for row in rows]
    z = [[at(one, rule, "mean") for rule in rules] for one in found]
    names = [label(places([figure.colour] if figure.colour else axes, row)) for row in rows]
    trace = {
        "type": "heatmap",
        "x": [label(rule, 10) for rule in rules],
        "y": names,
        "z": z,
        "zmin": 0,
        "zmax": 100,
        "colorscale": PALE,
        "textfont": {"color": ON_PALE},
        "xgap": 2,
        "ygap": 2,
        "text": [[rounded(value) for value in line] for line in z],
        "texttemplate": "%{text}",
        "hoverinfo": "text",
        "hovertext": [
            [hover(about.lines(row, axes, rule, one.get(rule))) for rule in rules]
            for row, one in zip(rows, found, strict=True)
        ],
        "colorbar": {"title": {"text": "%"}, "thickness": 12, "outlinewidth": 0},
    }
    layout = {
        "xaxis": axis(type="category", side="top"),
        "yaxis": axis(type="category", autorange="reversed"),
    }
    return Panel("", [trace], layout, 140 + 40 * len(rows), wide=True)


def _numbers(figure: Figure, rows: Sequence[Flat], rules: list[str], axes: Sequence[str]) -> Grid:
    body = []
    for row in rows:
        found = _by_rule(row, figure.y)
        cells = [
            with_error(at(found, rule, "mean"), at(found, rule, "standard_error")) for rule in rules
        ]
        body.append([places(axes, row), *cells])
    return Grid(["", *rules], body)


def draw_bars(figure: Figure, rows: Sequence[Flat], axes: Sequence[str]) -> Drawn:
    """Draw a measure over an axis, with its control beside it."""
    drawn = Drawn(figure.title)
    there = with_measure(drawn, figure, rows, axes)
    if not there:
        return drawn
    colours = values_of(there, figure.colour) or [""]
    means = [row["measures"][figure.y] for row in there]
    tops = [value["mean"] + (number(value.get("standard_error")) or 0.0) for value in means]
    limits = y_range(tops, [value["mean"] for value in means], percent=figure.percent)
    control = False
    for title, inside in panels_of(there, figure.facet):
        traces = []
        for i, value in enumerate(colours):
            mine = [row for row in inside if not figure.colour or row[figure.colour] == value]
            look = style(value, colours)["colour"]
            traces += [
                trace
                for name in (figure.y, figure.y + CONTROL)
                if (trace := _measured(figure, mine, name, axes, i, look)) is not None
            ]
        control = control or any("pattern" in trace["marker"] for trace in traces)
        order = [label(shown(x), 12) for x in values_of(there, figure.x)]
        layout = {
            "xaxis": axis(
                spoken(figure.x), type="category", categoryorder="array", categoryarray=order
            ),
            "yaxis": axis(f"{figure.y}{', percent' * figure.percent}", range=limits),
            "barmode": "group",
        }
        wide = not figure.facet or len(order) * len(traces) > MOST_NARROW
        drawn.panels.append(Panel(title, traces, layout, 320, wide=wide))
    if figure.colour and figure.colour != figure.x:
        drawn.legend = [
            Key(places([figure.colour], {figure.colour: value}), style(value, colours)["colour"])
            for value in colours
        ]
    if control:
        drawn.note = "Pale, hatched bars: the control, fitted to shuffled labels."
    names = [figure.y, figure.y + CONTROL] if control else [figure.y]
    body = [
        [places(axes, row)]
        + [
            with_error(at(row, "measures", n, "mean"), at(row, "measures", n, "standard_error"))
            for n in names
        ]
        for row in there
    ]
    drawn.numbers = Grid(["", *names], body)
    return drawn


def _measured(
    figure: Figure, rows: Sequence[Flat], name: str, axes: Sequence[str], key: int, colour: str
) -> Trace | None:
    found = [(row, at(row, "measures", name)) for row in rows]
    found = [(row, values) for row, values in found if number(at(values, "mean")) is not None]
    if not found:
        return None
    trace = _bars(
        [label(shown(row[figure.x]), 12) for row, _ in found], [values for _, values in found],
        [name] * len(found), {}, (), key, colour,
    )  # fmt: skip
    trace["hovertext"] = [hover(about.lines(row, axes, name, values)) for row, values in found]
    trace["offsetgroup"] = plain(name if figure.x == figure.colour else f"{key} {name}")
    if name != figure.y:
        trace["marker"] = {"color": colour, "opacity": 0.45, "pattern": {"shape": "/"}}
    return trace
