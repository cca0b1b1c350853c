"""Maps of codes as points, and matrices as colours: a panel for each row."""

import re
from collections.abc import Sequence
from typing import Any

from hyla.experiments.spec import Figure
from hyla.report import about
from hyla.report.adapter import Flat
from hyla.report.colours import NUMBERS, many, style
from hyla.report.drawn import Drawn, Grid, Key, Panel, Trace, axis, having
from hyla.report.text import at, hover, label, number, places, rounded, shown

# Blue below zero, red above: safe for colour-blind readers.
SIGNED = [[0, "#2166ac"], [0.5, "#f2f2f2"], [1, "#b2182b"]]
MOST_NAMES = 16  # classes in a legend; more classes are named in the hover only
MOST_NUMBERS = 40  # rows of a matrix; larger ones are not listed as numbers
Axes = Sequence[str]


def draw_scatter(figure: Figure, rows: Sequence[Flat], axes: Axes) -> Drawn:
    """Draw a map of codes for each row, coloured by the label `figure.y`."""
    drawn = Drawn(figure.title)
    axes = [name for name in axes if name not in figure.where]  # the others are in the title
    rows = having(drawn, rows, axes, figure.y, lambda row: figure.y in row.get("colours", {}))
    everything = [value for row in rows for value in row["colours"][figure.y]]
    continuous = _is_continuous(everything)
    classes = list(map(str, sorted(set(everything), key=_order)))
    few = len(classes) <= MOST_NAMES
    looks = [style(c, classes) for c in classes]
    colours = [look["colour"] for look in looks] if few else many(len(classes))
    for row in rows:
        if continuous:
            traces = [_continuous(row, figure.y, everything)]
        elif few:
            traces = [
                _class(row, figure.y, c, i, look)
                for i, (c, look) in enumerate(zip(classes, looks, strict=True))
            ]
        else:
            traces = [_classes(row, figure.y, dict(zip(classes, colours, strict=True)))]
        layout = {"xaxis": {"visible": False}, "yaxis": {"visible": False, "scaleanchor": "x"}}
        drawn.panels.append(Panel(places(axes, row), traces, layout, 280))
    if few and not continuous:
        drawn.legend = [
            Key(c, look["colour"], "", look["symbol"])
            for c, look in zip(classes, looks, strict=True)
        ]
    elif not continuous:
        drawn.note = f"{len(classes)} classes of {figure.y}. Hover a point to see its class."
    body = [[places(axes, row), str(len(row["x"])), about.runs(row)] for row in rows]
    drawn.numbers = Grid(["map", "points", "runs"], body)
    return drawn


def _is_continuous(values: Sequence[Any]) -> bool:
    """Whether values are numbers, other than a few integers such as symbols."""
    if not all(number(value) is not None for value in values):
        return False
    return len(set(values)) > MOST_NAMES or any(isinstance(value, float) for value in values)


def _order(value: Any) -> list[Any]:
    """Sort rules in their order and numbers by size, so that term 2 precedes term 10."""
    parts = re.split(r"(\d+)", str(value))
    return [
        NUMBERS.get(str(value), 0),
        number(value) or 0.0,
        *(int(p) if p.isdecimal() else p for p in parts),
    ]


def _points(row: Flat, chosen: Sequence[int]) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [round(row["x"][i], 2) for i in chosen],
        "y": [round(row["y"][i], 2) for i in chosen],
        "hoverinfo": "text",
    }


def _continuous(row: Flat, name: str, everything: Sequence[float]) -> Trace:
    values = row["colours"][name]
    marker = {
        "size": 5, "color": values, "colorscale": "Viridis", "showscale": True,
        "cmin": min(everything), "cmax": max(everything),
        "colorbar": {"thickness": 10, "outlinewidth": 0, "len": 0.9},
    }  # fmt: skip
    texts = [hover([f"{name}: {rounded(value)}"]) for value in values]
    return _points(row, range(len(values))) | {"marker": marker, "hovertext": texts}


def _class(row: Flat, name: str, value: str, key: int, look: dict[str, str]) -> Trace:
    chosen = [i for i, v in enumerate(row["colours"][name]) if str(v) == value]
    return _points(row, chosen) | {
        "marker": {"size": 5.5, "color": look["colour"], "symbol": look["symbol"]},
        "hovertext": hover([f"{name}: {value}"]),
        "legendgroup": str(key),
    }


def _classes(row: Flat, name: str, colours: dict[str, str]) -> Trace:
    values = [str(value) for value in row["colours"][name]]
    return _points(row, range(len(values))) | {
        "marker": {"size": 5, "color": [colours[value] for value in values]},
        "hovertext": [hover([f"{name}: {value}"]) for value in values],
    }


def draw_matrix(figure: Figure, rows: Sequence[Flat], axes: Axes) -> Drawn:
    """Draw a heat map for each row."""
    drawn = Drawn(figure.title)
    axes = [name for name in axes if name not in figure.where]
    there = having(drawn, rows, axes, "the matrix", lambda row: "matrix" in row)
    everything = [value for row in there for line in row["matrix"] for value in line]
    finite = [value for value in everything if number(value) is not None]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    signed = low < 0 < high
    top = max(-low, high)
    limits = (-top, top) if signed else (low, high)
    for row in there:
        drawn.panels.append(_heat(row, axes, limits, signed=signed))
    body = [
        [places(axes, row), shown(name), ", ".join(map(rounded, line))]
        for row in there
        if len(row["matrix"]) <= MOST_NUMBERS
        for name, line in zip(row["labels"], row["matrix"], strict=True)
    ]
    drawn.numbers = Grid(["matrix", "row", "values"], body, 2) if body else None
    return drawn


def _heat(row: Flat, axes: Axes, limits: tuple[float, float], *, signed: bool) -> Panel:
    names, matrix = [shown(name) for name in row["labels"]], row["matrix"]
    wide = len(matrix[0])
    square = at(row, "what") == "similarity" and wide == len(matrix)
    across = names if square else [str(head) for head in range(1, wide + 1)]
    title = "" if square else "head"
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": [[number(value) for value in line] for line in matrix],
        "zmin": limits[0],
        "zmax": limits[1],
        "colorscale": SIGNED if signed else "Cividis",
        "hoverinfo": "text",
        "hovertext": [
            [
                hover([f"{name}, {title} {column}".replace(",  ", ", ") + f": {rounded(value)}"])
                for column, value in zip(across, line, strict=True)
            ]
            for name, line in zip(names, matrix, strict=True)
        ],
        "colorbar": {"thickness": 10, "outlinewidth": 0},
    }
    few = len(names) <= MOST_NUMBERS
    rows = axis(autorange="reversed", showticklabels=few)
    if few:
        rows |= {"tickvals": list(range(len(names))), "ticktext": [label(n, 18) for n in names]}
    step = 1 if square or wide <= 8 else max(4, wide // 4)
    chosen = [i for i in range(wide) if i % step == step - 1 or step == 1 or i == 0]
    columns = axis(title, tickvals=chosen, ticktext=[label(across[i], 18) for i in chosen])
    layout = {"xaxis": columns, "yaxis": rows}
    return Panel(places(axes, row), [trace], layout, max(340, 120 + 15 * len(names)))
