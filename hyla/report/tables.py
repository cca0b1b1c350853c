"""Tables: ours beside the paper's, as text and as dots, and tables of all measures."""

from collections.abc import Sequence
from typing import Any

from hyla.experiments.declare import Figure, Row
from hyla.experiments.judge import ERRORS, in_errors, of_seeds
from hyla.experiments.results import is_chosen_on_one_seed, is_given
from hyla.report import about
from hyla.report.colours import GREY, PALETTE
from hyla.report.drawn import (
    Cell,
    Cells,
    Drawn,
    Grid,
    Key,
    MissingError,
    Panel,
    Trace,
    axis,
    need,
    usable,
    values_of,
)
from hyla.report.text import at, hover, label, number, rounded, shown, spoken, with_error

FIRST_SEED_NOTE = (
    "The grid was searched on the first seed only, whose training is then the best of all "
    "settings: such a mean leans upwards."
)
GIVEN_NOTE = "Hyperparameters were given, not searched."
MARKS = {"†": (is_chosen_on_one_seed, FIRST_SEED_NOTE), "‡": (is_given, GIVEN_NOTE)}
ONLY_PAPER = "only_paper"  # marks what stands in the place of a row that is not there
OURS, PAPER, SINGLE = "here", "paper", "single trainings"
COLOURS = {OURS: PALETTE[0], PAPER: GREY, SINGLE: PALETTE[5]}
SYMBOLS = {OURS: "circle", PAPER: "diamond", SINGLE: "circle"}


def draw_table(figure: Figure, rows: Sequence[Row], axes: Sequence[str]) -> Drawn:
    """Rows x columns, ours beside the paper's; and the same as dots."""
    drawn = Drawn(figure.title)

    def check(row: Row) -> None:
        need(row, figure.x, figure.y)
        if number(row.get("mean")) is None and not _instead(row):
            raise MissingError("no mean")

    there = list(usable(drawn, rows, axes, check))
    if not there:
        return drawn
    found = {(row[figure.x], row[figure.y]): row for row in there}
    lines, columns = values_of(there, figure.x), values_of(there, figure.y)
    papers = any(number(row.get("paper_mean")) is not None for row in there)
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
    keys = [OURS, *([PAPER] * papers), *([SINGLE] * any(map(trainings, there)))]
    drawn.legend = [Key(name, COLOURS[name], "", SYMBOLS[name]) for name in keys]
    for column in columns:
        inside = [row for line in lines if (row := found.get((line, column)))]
        drawn.panels.append(_dots(figure, shown(column), inside, axes, keys))
    if papers:
        drawn.note = (
            f"Marked: differs from the paper by more than {ERRORS:g} standard errors of the "
            "difference (▲ above, ▼ below)."
        )
    drawn.note = " ".join([*notes(there), drawn.note]).strip()
    return drawn


def marked(text: str, row: Row) -> str:
    """A text about a row, marked if not every setting was searched on every seed."""
    return " ".join([text, *(mark for mark, (holds, _) in MARKS.items() if holds(row))])


def notes(rows: Sequence[Row]) -> list[str]:
    """What the marks of rows mean."""
    return [f"{mark} {note}" for mark, (holds, note) in MARKS.items() if any(map(holds, rows))]


def marked_mean(row: Row) -> str:
    """The mean of a row with its standard error, marked by how it was searched."""
    text = _instead(row)
    text = text or with_error(row["mean"], row.get("standard_error")) + of_seeds(row)
    return marked(text, row)


def against_paper(row: Row) -> float | None:
    """Ours less the paper's, in standard errors of the difference; None if one is not known.

    >>> against_paper({"mean": 5.0, "standard_error": 3.0, "paper_mean": 10.0,
    ...     "paper_standard_error": 4.0})
    -1.0
    """
    names = ("mean", "standard_error", "paper_mean", "paper_standard_error")
    mean, error, theirs, their_error = (number(row.get(name)) for name in names)
    if mean is None or error is None or theirs is None or their_error is None:
        return None
    return in_errors(mean - theirs, error, their_error)


def _pair(row: Row | None, axes: Sequence[str], papers: bool) -> list[Cell | str]:
    if row is None:
        return ["not measured", ""] if papers else ["not measured"]
    theirs = with_error(row.get("paper_mean"), row.get("paper_standard_error"))
    ours = marked_mean(row)
    if _instead(row):
        return [ours, theirs] if papers else [ours]
    errors = against_paper(row)
    mark = ""
    comparable = row.get("scale") == "paper"
    if comparable and errors is not None and abs(errors) > ERRORS:
        mark = "above" if errors > 0 else "below"
    cell = Cell(ours, "\n".join(about.lines(row, axes, OURS, row)), mark)
    return [cell, theirs] if papers else [cell]


def _instead(row: Row) -> str:
    """What is said in the place of a mean; nothing where there is one, or should be."""
    if ONLY_PAPER in row:
        return "not measured"
    seeds = row.get("per_seed")
    diverged = isinstance(seeds, list) and seeds and all(value is None for value in seeds)
    return "diverged" if diverged else ""


def _dots(
    figure: Figure, title: str, rows: Sequence[Row], axes: Sequence[str], keys: Sequence[str]
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


def _dot(name: str, names: Sequence[str], rows: Sequence[Row], mean: str, error: str) -> Trace:
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


def _single(names: Sequence[str], rows: Sequence[Row]) -> Trace:
    """Every training of the grid, the chosen and the others."""
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


def trainings(row: Row) -> list[tuple[float, str]]:
    """The value of each training of the row's grid, and what it is; of the chosen ones at least."""
    found = []
    grid, chosen = row.get("grid"), row.get("hyperparameters")
    names = chosen if isinstance(chosen, dict) else {}
    kept = [one for one in (grid if isinstance(grid, list) else []) if at(one, "per_seed")]
    for setting in kept or [names | {"per_seed": row.get("per_seed")}]:
        values = at(setting, "per_seed")
        text = about.settings({name: at(setting, name) for name in names})
        for value in map(number, values if isinstance(values, list) else []):
            if value is not None:
                found.append((value, hover([f"one training: {rounded(value)}", text])))
    return found


def draw_measures(figure: Figure, rows: Sequence[Row], axes: Sequence[str]) -> Drawn:
    """All measures of each row, after the values of its axes."""
    drawn = Drawn(figure.title)
    first = [name for name in (figure.x, figure.y, figure.facet, figure.colour) if name]

    def check(row: Row) -> None:
        need(row, *first)
        if not isinstance(row.get("measures"), dict):
            raise MissingError("no measures")

    there = list(usable(drawn, rows, axes, check))
    if not there:
        return drawn
    names = list(dict.fromkeys(name for row in there for name in row["measures"]))
    papers = any(number(row.get("paper_mean")) is not None for row in there)
    head = [*map(spoken, first), *names[:1], *([PAPER] * papers), *names[1:]]
    body: list[Cells] = []
    for row in there:
        cells: list[Cell | str] = [_value(row, name, axes) for name in names]
        if papers:
            theirs = with_error(row.get("paper_mean"), row.get("paper_standard_error"))
            cells.insert(1, theirs)
        body.append([*(shown(row[name]) for name in first), *cells])
    drawn.table = Grid(head, body, len(first))
    return drawn


def _value(row: Row, name: str, axes: Sequence[str]) -> Cell:
    values: Any = at(row, "measures", name)
    text = with_error(at(values, "mean"), at(values, "standard_error"))
    return Cell(text, "\n".join(about.lines(row, axes, name, values)))
