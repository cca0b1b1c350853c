"""Tables of our values beside the paper's, and tables of all measures."""

from collections.abc import Sequence
from math import hypot
from typing import Any

from hyla.experiments.spec import Figure
from hyla.report import about
from hyla.report.adapter import NOT_SEARCHED, ONLY_PAPER, SEARCHED_ON_ONE_SEED, Flat
from hyla.report.colours import GREY, PALETTE
from hyla.report.drawn import (
    Cell,
    Cells,
    Drawn,
    Grid,
    Key,
    Panel,
    Trace,
    axis,
    values_of,
)
from hyla.report.text import at, hover, label, number, of_seeds, rounded, shown, spoken, with_error

NOTES = {
    SEARCHED_ON_ONE_SEED: "The hyperparameter search used the first seed only. That seed is then "
    "the best of all settings, so the mean is biased upwards.",
    NOT_SEARCHED: "Hyperparameters were not searched.",
}
ERRORS = 2.0  # standard errors of the difference, from which a deviation is marked
OURS, PAPER, SINGLE = "here", "paper", "single trainings"
COLOURS = {OURS: PALETTE[0], PAPER: GREY, SINGLE: PALETTE[5]}
SYMBOLS = {OURS: "circle", PAPER: "diamond", SINGLE: "circle"}


def draw_table(figure: Figure, rows: Sequence[Flat], axes: Sequence[str]) -> Drawn:
    """Draw a table of our values and the paper's, and the same values as dots."""
    drawn = Drawn(figure.title)
    if not rows:
        return drawn
    found = {(row[figure.x], row[figure.y]): row for row in rows}
    lines, columns = values_of(rows, figure.x), values_of(rows, figure.y)
    papers = any(number(row.get("paper_mean")) is not None for row in rows)
    head = [spoken(figure.x)]
    for column in columns:
        head += [f"{shown(column)}: {OURS}", f"{shown(column)}: {PAPER}"] if papers else [
            shown(column)
        ]  # fmt: skip
    body = []
    for line in lines:
        cells: list[Cell | str] = [shown(line)]
        for column in columns:
            cells += _pair(found.get((line, column)), axes, papers)
        body.append(cells)
    drawn.table = Grid(head, body)
    keys = [OURS, *([PAPER] * papers), *([SINGLE] * any(map(trainings, rows)))]
    drawn.legend = [Key(name, COLOURS[name], "", SYMBOLS[name]) for name in keys]
    for column in columns:
        inside = [row for line in lines if (row := found.get((line, column)))]
        drawn.panels.append(_dots(figure, shown(column), inside, axes, keys))
    if papers:
        drawn.note = (
            f"▲ and ▼: above or below the paper's mean by more than {ERRORS:g} standard errors of "
            "the difference."
        )
    drawn.note = " ".join([*notes(rows), drawn.note]).strip()
    return drawn


def marked(text: str, row: Flat) -> str:
    """A text about a row with the mark of its hyperparameter search."""
    return f"{text} {row.get('mark', '')}".rstrip()


def notes(rows: Sequence[Flat]) -> list[str]:
    """Explain the marks of these rows."""
    marks = {row.get("mark") for row in rows}
    return [f"{mark} {note}" for mark, note in NOTES.items() if mark in marks]


def marked_mean(row: Flat) -> str:
    """The mean of a row with its standard error and mark."""
    text = _instead(row) or with_error(row["mean"], row["standard_error"]) + of_seeds(row)
    return marked(text, row)


def against_paper(row: Flat) -> float | None:
    """Our mean minus the paper's in standard errors of the difference; None if unknown.

    >>> against_paper({"mean": 5.0, "standard_error": 3.0, "paper_mean": 10.0,
    ...     "paper_standard_error": 4.0})
    -1.0
    """
    names = ("mean", "standard_error", "paper_mean", "paper_standard_error")
    mean, error, theirs, their_error = (number(row.get(name)) for name in names)
    if mean is None or error is None or theirs is None or their_error is None:
        return None
    spread = hypot(error, their_error)
    return (mean - theirs) / spread if spread else None


def _pair(row: Flat | None, axes: Sequence[str], papers: bool) -> list[Cell | str]:
    if row is None:
        return ["not measured", ""] if papers else ["not measured"]
    theirs = with_error(row.get("paper_mean"), row.get("paper_standard_error"))
    ours = marked_mean(row)
    if _instead(row):
        return [ours, theirs] if papers else [ours]
    errors = against_paper(row)
    mark = ""
    if errors is not None and abs(errors) > ERRORS:
        mark = "above" if errors > 0 else "below"
    cell = Cell(ours, "\n".join(about.lines(row, axes, OURS, row)), mark)
    return [cell, theirs] if papers else [cell]


def _instead(row: Flat) -> str:
    """The text that replaces a missing mean."""
    if ONLY_PAPER in row:
        return "not measured"
    return "diverged" if row["mean"] is None else ""


def _dots(
    figure: Figure, title: str, rows: Sequence[Flat], axes: Sequence[str], keys: Sequence[str]
) -> Panel:
    names = [label(shown(row[figure.x]), 24) for row in rows]
    ours = _dot(OURS, names, rows, "mean", "standard_error")
    measured = [row for row in rows if number(row.get("mean")) is not None]
    ours["hovertext"] = [hover(about.lines(row, axes, OURS, row)) for row in measured]
    paper = _dot(PAPER, names, rows, "paper_mean", "paper_standard_error")
    traces = [trace for trace in (_single(names, rows), paper, ours) if trace["x"]]
    for trace in traces:
        trace["legendgroup"] = str(keys.index(trace["name"]))
    layout = {
        "xaxis": axis("percent" if figure.percent else "", zeroline=False),
        "yaxis": axis(autorange="reversed", type="category", categoryarray=names),
    }
    return Panel(title, traces, layout, 90 + 40 * len(rows))


def _dot(name: str, names: Sequence[str], rows: Sequence[Flat], mean: str, error: str) -> Trace:
    there = [(text, row) for text, row in zip(names, rows, strict=True) if number(row.get(mean))
             is not None]  # fmt: skip
    ours = name == OURS
    return {
        "name": name,
        "type": "scatter",
        "mode": "markers",
        "x": [row[mean] for _, row in there],
        "y": [text for text, _ in there],
        "error_x": {
            "type": "data",
            "array": [number(row.get(error)) for _, row in there],
            "thickness": 1.5 if ours else 1.2,
            "width": 4,
        },
        "marker": {
            "color": COLOURS[name], "size": 10, "symbol": "circle" if ours else "diamond-open",
            "line": {"width": 2, "color": COLOURS[name]},
        },
        "hoverinfo": "text",
        "hovertext": [
            hover([name, with_error(row[mean], row.get(error))])
            for _, row in there
        ],
    }  # fmt: skip


def _single(names: Sequence[str], rows: Sequence[Flat]) -> Trace:
    """Every training of the chosen setting."""
    there = [
        (name, value, text)
        for name, row in zip(names, rows, strict=True)
        for value, text in trainings(row)
    ]
    return {
        "name": SINGLE,
        "type": "scatter",
        "mode": "markers",
        "x": [value for _, value, _ in there],
        "y": [name for name, *_ in there],
        "marker": {"color": COLOURS[SINGLE], "size": 7, "symbol": "circle", "opacity": 0.5},
        "hoverinfo": "text",
        "hovertext": [text for *_, text in there],
    }


def trainings(row: Flat) -> list[tuple[float, str]]:
    """The value of each training with its hover text."""
    return [
        (value, hover([f"one training: {rounded(value)}", about.settings(setting)]))
        for one in row.get("grid", [])
        for setting in [{name: x for name, x in one.items() if name != "per_seed"}]
        for value in one["per_seed"]
        if value is not None
    ]


def draw_measures(figure: Figure, rows: Sequence[Flat], axes: Sequence[str]) -> Drawn:
    """Draw a table of all measures of each row."""
    drawn = Drawn(figure.title)
    if not rows:
        return drawn
    first = [name for name in (figure.x, figure.y, figure.facet, figure.colour) if name]
    names = list(dict.fromkeys(name for row in rows for name in row["measures"]))
    papers = any(number(row.get("paper_mean")) is not None for row in rows)
    head = [*map(spoken, first), *names[:1], *([PAPER] * papers), *names[1:]]
    body: list[Cells] = []
    for row in rows:
        cells: list[Cell | str] = [_value(row, name, axes) for name in names]
        if papers:
            theirs = with_error(row.get("paper_mean"), row.get("paper_standard_error"))
            cells.insert(1, theirs)
        body.append([*(shown(row[name]) for name in first), *cells])
    drawn.table = Grid(head, body, len(first))
    return drawn


def _value(row: Flat, name: str, axes: Sequence[str]) -> Cell:
    values: Any = at(row, "measures", name)
    text = with_error(at(values, "mean"), at(values, "standard_error"))
    return Cell(text, "\n".join(about.lines(row, axes, name, values)))
