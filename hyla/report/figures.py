"""Declared figures, drawn with matplotlib; `drawing` has what they share."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from hyla.experiments.paper.baselines import CEILING
from hyla.experiments.spec import Figure, Headline, Row
from hyla.report.content import Results
from hyla.report.drawing import (
    COLUMNS,
    FIXED,
    GREY,
    INK,
    OURS,
    PUBLISHED,
    STYLE,
    WIDTH,
    add_legend,
    limits,
    look_of,
    panels_for,
    short,
    to_svg,
)
from hyla.report.tables import Table, beside_paper
from hyla.report.text import (
    is_number,
    marked,
    mean_of,
    named,
    notes,
    of_paper,
    rounded,
    shown,
    spoken,
)
from hyla.statistics import Sample
from hyla.tasks.published import AS_PUBLISHED

CONTROL = ", labels shuffled"
SHORT = 20  # letters of a label beside others
MOST_BARS, MOST_TICKS = 18, 40  # of a panel of the usual width
WIDE = 11.0  # of a panel with more bars, in inches
MOST_CLASSES, MOST_POINTS, MOST_MAPS = 16, 400, 9  # of codes
PALE: dict[str, Any] = {"alpha": 0.35, "hatch": "///"}
DOT: dict[str, Any] = {"s": 7, "linewidths": 0, "rasterized": True}


@dataclass
class View:
    """A figure for the page: a drawing, a table, or both.

    alt: what the drawing shows, in words. numbers: those of the drawing, shown folded.
    """

    title: str
    drawing: Drawing | None = None
    alt: str = ""
    table: Table | None = None
    numbers: Table | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def svg(self) -> str:
        """The drawing as an element of HTML."""
        return "" if self.drawing is None else to_svg(self.drawing, self.alt)

    def _repr_html_(self) -> str:
        """Show the drawing in a notebook."""
        return self.svg


def views(results: Results) -> list[View]:
    """Draw the figures of an experiment for which there are results."""
    each = [draw(figure, results) for figure in results.experiment.figures]
    return [view for view in each if view.drawing is not None or view.table is not None]


def draw(figure: Figure, results: Results) -> View:
    """Draw a declared figure; the view is empty if there are no results for it."""
    view = View(figure.title)
    rows = [*results.rows, *(results.as_published if figure.kind == "table" else ())]
    rows = [row for row in rows if row.is_at(figure.where) and has_data(figure, row)]
    if rows:
        with rc_context(STYLE):
            DRAWINGS[figure.kind](view, figure, rows, results)
        view.alt = f"{results.experiment.title}. {figure.title}: {view.alt}"
    return view


def has_data(figure: Figure, row: Row) -> bool:
    """Whether a row has what a figure shows."""
    match figure.kind:
        case "lines" | "bars":
            return bool(_ends([row], figure.y))
        case "rules":
            return bool(row.details.get(figure.y))
        case "scatter":
            return figure.y in row.picture.get("colours", {})
        case "matrix":
            return bool(row.picture.get("matrix"))
    return True


def draw_headline(headline: Headline, rows: Sequence[Row]) -> View:
    """Draw the rows of a headline: every seed, the mean, the paper's value and the control."""
    view, there = View(headline.question), dict[str, Row]()
    for name, place in headline.places.items():
        row = next((row for row in rows if row.is_at(place)), None)
        if row is not None and headline.measure in row.measures:
            there[name] = row
    with rc_context(STYLE | {"font.size": 8}):
        view.drawing, (axes,) = panels_for(1, 2.5, 0.62 + 0.21 * len(there))
        _dots(axes, list(there), enumerate(there.values()), headline.measure)
        controls, _ = _estimates(there.values(), headline.control)
        axes.plot(controls, range(len(there)), "x", color=GREY, markersize=5)
        axes.set_xlabel(f"{headline.unit}, percent")
        axes.set_xlim(left=0 if headline.control or len(there) > 3 else None)
    values = (f"{name} {mean_of(row.measures[headline.measure])}" for name, row in there.items())
    view.alt = f"{headline.question} {', '.join(values)}"
    return view


def _table(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """Our values beside the paper's, as a table and as dots."""
    view.table = beside_paper(figure, results)
    lines, columns = results.values(figure.x), results.values(figure.y)
    view.drawing, panels = panels_for(len(columns), 5.2, 0.9 + 0.26 * len(lines), columns=2)
    for axes, column in zip(panels, columns, strict=True):
        there = [row for row in rows if row.axes[figure.y] == column]
        _dots(axes, lines, ((lines.index(row.axes[figure.x]), row) for row in there))
        axes.set_title(short(shown(column)))
        axes.set_xlabel("percent" if figure.percent else "")
        if axes is not panels[0]:
            axes.set_yticklabels([])
    looks = [(OURS, "o", "here, as described")]
    looks += [(PUBLISHED, "s", "here, as the authors' code")] * bool(results.as_published)
    for colour, shape, name in (*looks, (GREY, "D", "the paper")):
        panels[0].plot([], [], shape, color=colour, label=name)
    panels[0].plot([], [], "o", color=OURS, alpha=0.45, markersize=4, label="a seed")
    add_legend(view.drawing, panels[0])
    view.notes = notes(rows)
    view.alt = f"{len(rows)} means with every seed, beside the paper's values"


def _dots(
    axes: Axes, names: Sequence[Any], rows: Iterable[tuple[int, Row]], measure: str = ""
) -> None:
    """A line for each name: every seed, the mean with its error, the paper's value.

    rows: with the numbers of their lines. measure: by default the main one of each row.
    """
    for y, row in rows:
        sample, main = row.measures[measure] if measure else row.main, next(iter(row.measures))
        if sample.mean is None:
            continue
        published = row.preset == AS_PUBLISHED
        colour, shape, shift = (PUBLISHED, "s", 0.25) if published else (OURS, "o", 0.0)
        axes.plot(sample.values, [y + shift] * len(sample.values), "o", color=colour,
                  alpha=0.45, markersize=4, markeredgewidth=0)  # fmt: skip
        axes.errorbar(sample.mean, y + shift, xerr=sample.standard_error, fmt=shape, color=colour,
                      markersize=5, capsize=2, linewidth=1.2)  # fmt: skip
        if row.paper and not published and measure in ("", main):
            axes.errorbar(row.paper[0], y - 0.25, xerr=row.paper[1], fmt="D", color=GREY,
                          markerfacecolor="none", markersize=4, linewidth=1)  # fmt: skip
    axes.set_yticks(range(len(names)), [short(shown(name)) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.6)


def _over_axis(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """Lines or bars of a measure over an axis: a panel for each facet, a look for each colour."""
    xs, colours, facets = (_values(rows, axis) for axis in (figure.x, figure.colour, figure.facet))

    def tick(row: Row) -> int:
        return xs.index(row.axes[figure.x])

    # Bars of the colours stand beside each other, unless each tick has a colour of its own.
    beside = 1 if figure.x == figure.colour else len(colours)
    wide = figure.kind == "bars" and len(xs) * beside > MOST_BARS
    columns, width = (1, WIDE) if wide else (COLUMNS, WIDTH)
    view.drawing, panels = panels_for(len(facets), width, columns=columns)
    for axes, facet in zip(panels, facets, strict=True):
        inside = sorted((row for row in rows if row.is_at({figure.facet: facet})), key=tick)
        for i, colour in enumerate(colours):
            mine = [row for row in inside if row.is_at({figure.colour: colour})]
            look = look_of(colour, colours)
            if figure.x != figure.colour:
                look["label"] = short(named(figure.colour, colour))
            if figure.kind == "bars":
                shift = 0.8 * ((i % beside + 0.5) / beside - 0.5)
                placed = {tick(row) + shift: row for row in mine}
                _bars(axes, figure.y, placed, 0.68 / beside, look)
            else:
                means, errors = _estimates(mine, figure.y)
                axes.errorbar([tick(row) for row in mine], means, yerr=errors, capsize=2,
                              linewidth=1.5, markersize=4.5, **look)  # fmt: skip
        solved = {tick(row): row for row in inside if figure.ceiling and CEILING in row.measures}
        if solved:
            axes.plot(list(solved), _estimates(solved.values(), CEILING)[0], "_--", color=GREY,
                      linewidth=1, label="best possible (exact solver)")  # fmt: skip
        axes.set_xticks(range(len(xs)), [short(shown(x), SHORT) for x in xs])
        if wide or max(len(shown(x)) for x in xs) > 10:
            axes.tick_params(axis="x", labelrotation=35)
        axes.set_xlabel(spoken(figure.x) if all(map(is_number, xs)) else "")
        axes.set_title(short(named(figure.facet, facet)))
    ends = [end for name in (figure.y, CEILING)[: 1 + figure.ceiling] for end in _ends(rows, name)]
    for i, axes in enumerate(panels):
        axes.set_ylim(*limits(ends, percent=figure.percent))
        axes.set_ylabel(f"{figure.y}{', percent' * figure.percent}" if i % columns == 0 else "")
    add_legend(view.drawing, panels[0])
    view.alt = f"{figure.y} by {spoken(figure.x)}"
    _add_numbers(view, figure, rows, results)


def _add_numbers(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """Add notes, and the numbers of a drawing as a table."""
    measures = [figure.y, figure.y + CONTROL]
    measures = [name for name in measures if any(name in row.measures for row in rows)]
    view.notes = ["Means over seeds with standard errors; a single seed has none."]
    if len(measures) > 1:
        view.notes.append("Pale, hatched bars are the control, fitted to shuffled labels.")
    view.notes += [f"In the numbers: {note}" for note in notes(rows)]
    cells = {"result": results.place} | _cells(measures)
    if figure.kind == "lines":
        cells["by seed"] = lambda row: ", ".join(map(rounded, row.measures[figure.y].per_seed))
    view.numbers = Table.of(rows, cells)


def _bars(
    axes: Axes, measure: str, rows: Mapping[float, Row], width: float, look: dict[str, Any]
) -> None:
    """Bars of one colour, with the control in pale on them; without a label, with every seed."""
    for name, more in ((measure, {}), (measure + CONTROL, PALE)):
        if any(name in row.measures for row in rows.values()):
            means, errors = _estimates(rows.values(), name)
            axes.bar(list(rows), means, width, yerr=errors, color=look["color"], ecolor=INK,
                     error_kw={"linewidth": 0.8}, **more)  # fmt: skip
    if "label" in look:
        axes.plot([], [], "s", color=look["color"], label=look["label"])
        return
    for place, row in rows.items():
        values = row.measures[measure].values
        axes.plot([place] * len(values), values, "o", color=INK, markersize=3)


def _rules(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """A measure by rule: a table with a tint behind every number."""
    rules = dict.fromkeys(rule for row in rows for rule in row.details[figure.y])
    body, tints = [], []
    for row in rows:
        samples = [row.details[figure.y].get(rule) for rule in rules]
        body.append([results.place(row, without=figure.where), *map(mean_of, samples)])
        tints.append([None if one is None else one.mean for one in samples])
    view.table = Table(["result", *rules], body, tints=tints)
    view.notes = ["Percent; a tint grows with the number."]


def _measures(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """A table of all measures of each row, the paper's value beside the first."""
    cells = _cells(name for row in rows for name in row.measures)
    first = dict(list(cells.items())[:1])
    paper = {"paper": lambda row: of_paper(row.paper)}
    view.table = Table.of(rows, {"result": results.place} | first | paper | cells)


def _cells(measures: Iterable[str]) -> dict[str, Callable[[Row], str]]:
    return {name: partial(marked, measure=name) for name in measures}


def _scatter(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """A map of codes for each row, coloured by a label."""
    values = [value for row in rows for value in row.picture["colours"][figure.y]]
    classes = sorted(set(values), key=_order)
    few = len(classes) <= MOST_CLASSES
    continuous = all(map(is_number, values)) and (not few or any(c % 1 for c in classes))
    if len(rows) > MOST_MAPS:
        view.notes = [f"{MOST_MAPS} of {len(rows)} maps."]
        rows = [rows[i * (len(rows) - 1) // (MOST_MAPS - 1)] for i in range(MOST_MAPS)]
    if continuous:
        view.notes.append(f"Dark: low {figure.y}; bright: high.")
    elif not few:
        view.notes.append(f"{len(classes)} classes of {figure.y}, from dark to bright.")
    levels = {one: one if continuous else i for i, one in enumerate(classes)}
    low, high = min(levels.values()), max(levels.values())
    view.drawing, panels = panels_for(len(rows), 2.3, 2.3, columns=4)
    for axes, row in zip(panels, rows, strict=True):
        step = max(1, math.ceil(len(row.picture["x"]) / MOST_POINTS))
        columns = (row.picture["x"], row.picture["y"], row.picture["colours"][figure.y])
        x, y, mine = (column[::step] for column in columns)
        if few and not continuous:
            for one in classes:
                chosen = [i for i, value in enumerate(mine) if value == one]
                look = look_of(one, classes)
                axes.scatter(
                    [x[i] for i in chosen], [y[i] for i in chosen], color=look["color"],
                    marker=look["marker"], label=short(shown(one)), **DOT,
                )  # fmt: skip
        else:
            axes.scatter(x, y, c=[levels[value] for value in mine], vmin=low, vmax=high, **DOT)
        axes.set_axis_off()
        axes.set_title(short(results.place(row, without=figure.where)))
    add_legend(view.drawing, panels[0])
    view.alt = f"{len(rows)} maps of codes, coloured by {figure.y}"


def _matrix(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """A heat map for each row."""
    matrices = [
        [[v if is_number(v) else math.nan for v in line] for line in row.picture["matrix"]]
        for row in rows
    ]
    finite = [v for matrix in matrices for line in matrix for v in line if is_number(v)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    top = max(-low, high)
    low, high = (-top, top) if low < 0 < high else (low, high)
    tallest = max(len(row.picture["labels"]) for row in rows)
    view.drawing, panels = panels_for(len(rows), 3.6, max(3.2, 0.16 * tallest))
    for axes, row, matrix in zip(panels, rows, matrices, strict=True):
        drawn = axes.imshow(
            matrix, vmin=low, vmax=high, cmap="RdBu_r" if low < 0 else "cividis", aspect="auto",
            interpolation="nearest",
        )  # fmt: skip
        names = [short(shown(name), SHORT) for name in row.picture["labels"]]
        if len(names) <= MOST_TICKS:
            axes.set_yticks(range(len(names)), names)
        if len(names) == len(matrix[0]) and row.axes.get("what") == "similarity":
            axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
        else:
            axes.set_xlabel("head, from 0")
        axes.set_title(short(results.place(row, without=figure.where)))
        view.drawing.colorbar(drawn, ax=axes, shrink=0.8)
        axes.spines[:].set_visible(False)
    view.alt = f"{len(rows)} matrices"


DRAWINGS: dict[str, Callable[[View, Figure, Sequence[Row], Results], None]] = {
    "table": _table,
    "lines": _over_axis,
    "bars": _over_axis,
    "rules": _rules,
    "measures": _measures,
    "scatter": _scatter,
    "matrix": _matrix,
}


def _estimates(rows: Iterable[Row], measure: str) -> tuple[list[float], list[float]]:
    """Means, not a number where there is none, and standard errors, 0 for a single seed."""
    samples = [row.measures.get(measure, Sample(())) for row in rows]
    means = [math.nan if one.mean is None else one.mean for one in samples]
    return means, [one.standard_error or 0.0 for one in samples]


def _ends(rows: Iterable[Row], measure: str) -> list[float]:
    """The ends of the error bars."""
    pairs = list(zip(*_estimates(rows, measure), strict=True))
    ends = [mean - error for mean, error in pairs] + [mean + error for mean, error in pairs]
    return [end for end in ends if math.isfinite(end)]


def _values(rows: Sequence[Row], axis: str) -> list[Any]:
    """The values of an axis: numbers, kinds and rules sorted, other texts as they come."""
    found = list(dict.fromkeys(row.axes.get(axis) for row in rows)) if axis else [None]
    if all(map(is_number, found)):
        return sorted(found)
    return sorted(found, key=lambda v: FIXED[v]) if all(v in FIXED for v in found) else found


def _order(value: Any) -> list[Any]:
    """Sort rules in their order and numbers by size, so that term 2 precedes term 10."""
    parts = re.split(r"(\d+)", str(value))
    number = value if is_number(value) else 0.0
    return [FIXED.get(str(value), 0), number, *(int(p) if p.isdecimal() else p for p in parts)]
