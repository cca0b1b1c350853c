"""Declared figures, drawn with matplotlib; `drawing` has what they share."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hyla.experiments.paper.baselines import CEILING
from hyla.experiments.spec import Figure, Headline, Row
from hyla.report.content import Results
from hyla.report.drawing import (
    COLUMNS,
    FIXED,
    GREY,
    HEIGHT,
    INK,
    OURS,
    PUBLISHED,
    STYLE,
    WIDTH,
    add_legend,
    limits,
    look_of,
    look_of_many,
    panels_for,
    short,
    to_svg,
)
from hyla.report.text import (
    is_number,
    mark,
    mean_of,
    notes,
    places,
    rounded,
    shown,
    spoken,
    with_error,
)
from hyla.statistics import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

CONTROL = ", labels shuffled"
SHORT = 20  # letters of a label beside others
MOST_CLASSES, MOST_POINTS, MOST_MAPS = 16, 400, 12  # of codes


@dataclass(frozen=True)
class Table:
    """A table with `texts` columns of text, then numbers. tints: percentages behind numbers."""

    head: Sequence[str]
    body: Sequence[Sequence[str]]
    texts: int = 1
    tints: Sequence[Sequence[float | None]] = ()


@dataclass
class View:
    """A figure for the page: a drawing, a table, or both.

    alt: what the drawing shows, in words. numbers: those of the drawing, shown folded.
    """

    title: str
    drawing: "Drawing | None" = None
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


def draw(figure: Figure, results: Results) -> View:
    """Draw a declared figure."""
    from matplotlib import rc_context

    there = [row for row in results.rows if row.is_at(figure.where)]
    view = View(figure.title)
    with rc_context(STYLE):
        DRAWINGS[figure.kind](view, figure, there, results)
    view.alt = f"{results.experiment.title}. {view.alt}"
    return view


def draw_headline(headline: Headline, rows: Sequence[Row]) -> View:
    """Draw the rows of a headline: every seed, the mean, the paper's value and the control."""
    from matplotlib import rc_context

    view, there = View(headline.question), []
    for name, place in headline.places.items():
        row = next((row for row in rows if row.is_at(place)), None)
        if row is not None and headline.measure in row.measures:
            there.append((name, row))
    with rc_context(STYLE | {"font.size": 8}):
        view.drawing, (axes,) = panels_for(1, 2.5, 0.62 + 0.21 * len(there))
        _dots(axes, [name for name, _ in there], [("here", row) for _, row in there],
              headline.measure)  # fmt: skip
        for i, (_, row) in enumerate(there):
            control = row.measures.get(headline.control)
            if control is not None and control.mean is not None:
                axes.plot(control.mean, i, "x", color=GREY, markersize=5)
        axes.set_xlabel(f"{headline.unit}, percent")
        axes.set_xlim(left=0 if headline.control or len(there) > 3 else None)
    values = (f"{name} {mean_of(row.measures[headline.measure])}" for name, row in there)
    view.alt = f"{headline.question} {', '.join(values)}"
    return view


def _table(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """Our values beside the paper's, as a table and as dots."""
    if not rows and not results.as_published:
        return
    expected = {(axes[figure.x], axes[figure.y]): paper for axes, paper in results.expected}
    lines, columns = (list(dict.fromkeys(key[i] for key in expected)) for i in (0, 1))
    ours = {(row.axes[figure.x], row.axes[figure.y]): row for row in rows}
    theirs = {(row.axes[figure.x], row.axes[figure.y]): row for row in results.as_published}
    head, body = [spoken(figure.x)], []
    for column in columns:
        names = ["as described", *(["authors' code"] * bool(theirs)), "paper"]
        head += [f"{shown(column)}: {name}" for name in names]
    for line in lines:
        cells = [shown(line)]
        for place in ((line, column) for column in columns):
            cells.append(marked_mean(ours.get(place)))
            if theirs:
                other = theirs.get(place)
                cells.append("" if other is None else mean_of(other.main))
            cells.append(with_error(*(expected[place] or (None, None))))
        body.append(cells)
    view.table = Table(head, body)
    view.drawing, panels = panels_for(len(columns), 5.2, 0.9 + 0.26 * len(lines), columns=2)
    for axes, column in zip(panels, columns, strict=True):
        there = [(row, "here") for line in lines if (row := ours.get((line, column)))]
        there += [(row, "as published") for line in lines if (row := theirs.get((line, column)))]
        _dots(axes, lines, [(kind, row) for row, kind in there], "", figure.x)
        axes.set_title(short(shown(column)))
        axes.set_xlabel("percent" if figure.percent else "")
        if axes is not panels[0]:
            axes.set_yticklabels([])
    looks = [(OURS, "o", "here, as described")]
    looks += [(PUBLISHED, "s", "here, as the authors' code")] * bool(theirs)
    for colour, shape, name in (*looks, (GREY, "D", "the paper")):
        panels[0].plot([], [], shape, color=colour, label=name)
    panels[0].plot([], [], "o", color=OURS, alpha=0.45, markersize=4, label="a seed")
    add_legend(view.drawing, panels[0])
    view.notes = notes(rows)
    view.alt = f"{figure.title}: {len(rows)} means with every seed, beside the paper's values"


def marked_mean(row: Row | None) -> str:
    """Format the main value of a row with the mark of its hyperparameter search."""
    return "not measured" if row is None else f"{mean_of(row.main)} {mark(row)}".rstrip()


def _dots(
    axes: "Axes",
    names: Sequence[Any],
    rows: Iterable[tuple[str, Row]],
    measure: str,
    axis: str = "",
) -> None:
    """A line for each name: every seed, the mean with its error, the paper's value."""
    for i, (kind, row) in enumerate(rows):
        y = list(names).index(row.axes[axis]) if axis else i
        sample = row.measures[measure] if measure else row.main
        if sample.mean is None:
            continue
        published = kind == "as published"
        colour, shape, shift = (PUBLISHED, "s", 0.25) if published else (OURS, "o", 0.0)
        axes.plot(sample.values, [y + shift] * len(sample.values), "o", color=colour,
                  alpha=0.45, markersize=4, markeredgewidth=0)  # fmt: skip
        axes.errorbar(sample.mean, y + shift, xerr=sample.standard_error, fmt=shape, color=colour,
                      markersize=5, capsize=2, linewidth=1.2)  # fmt: skip
        if row.paper and not published and measure in ("", next(iter(row.measures))):
            axes.errorbar(row.paper[0], y - 0.25, xerr=row.paper[1], fmt="D", color=GREY,
                          markerfacecolor="none", markersize=4, linewidth=1)  # fmt: skip
    axes.set_yticks(range(len(names)), [short(shown(name)) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.6)


def _lines(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """A measure over an axis: a panel for each facet, a line for each colour."""
    there = [row for row in rows if _mean(row, figure.y) is not None]
    if not there:
        return
    facets, colours = _values(there, figure.facet), _values(there, figure.colour)
    ticks = _values(there, figure.x)
    view.drawing, panels = panels_for(len(facets))
    ends = _ends(there, figure.y)
    for axes, facet in zip(panels, facets, strict=True):
        inside = [row for row in there if row.axes.get(figure.facet) == facet]
        for colour in colours:
            mine = [row for row in inside if row.axes.get(figure.colour) == colour]
            mine.sort(key=lambda row: ticks.index(row.axes[figure.x]))
            samples = [row.measures[figure.y] for row in mine]
            axes.errorbar(
                [ticks.index(row.axes[figure.x]) for row in mine],
                [math.nan if one.mean is None else one.mean for one in samples],
                yerr=[one.standard_error or 0.0 for one in samples], capsize=2,
                linewidth=1.5, markersize=4.5, **look_of(colour, colours),
                label=short(places([figure.colour], {figure.colour: colour}))
                if axes is panels[0] else "",
            )  # fmt: skip
        if figure.ceiling:
            ends += _ceiling(axes, inside, figure.x, ticks, labelled=axes is panels[0])
        axes.set_xticks(range(len(ticks)), [short(shown(tick)) for tick in ticks])
        axes.set_xlabel(spoken(figure.x))
        axes.set_ylim(*limits(ends, percent=figure.percent))
        if figure.facet:
            axes.set_title(short(places([figure.facet], {figure.facet: facet})))
    panels[0].set_ylabel(f"{figure.y}, percent" if figure.percent else figure.y)
    add_legend(view.drawing, panels[0])
    view.alt = f"{figure.title}: {figure.y} over {spoken(figure.x)}"
    shown_axes = [axis for axis in results.experiment.axes if any(axis in r.axes for r in there)]
    body = [
        [
            *(shown(row.axes.get(axis)) for axis in shown_axes),
            f"{mean_of(row.measures[figure.y])} {mark(row)}".rstrip(),
            ", ".join(map(rounded, row.measures[figure.y].per_seed)),
        ]
        for row in there
    ]
    view.numbers = Table([*map(spoken, shown_axes), figure.y, "by seed"], body, len(shown_axes))
    view.notes = ["Means over seeds with standard errors; a single seed has none."]
    view.notes += [f"In the numbers: {note}" for note in notes(there)]


def _ceiling(
    axes: "Axes", rows: Sequence[Row], x: str, ticks: Sequence[Any], *, labelled: bool
) -> list[float]:
    found = {
        ticks.index(row.axes[x]): value
        for row in rows
        if row.trainings and (value := _mean(row, CEILING)) is not None
    }
    places_ = sorted(found)
    if found:
        axes.plot(
            places_, [found[place] for place in places_], "--", color=GREY, linewidth=1,
            marker="_", label="best possible (exact solver)" if labelled else "",
        )  # fmt: skip
    return list(found.values())


def _bars(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """A measure over an axis as bars, with its control in pale beside it."""
    there = [row for row in rows if _mean(row, figure.y) is not None]
    if not there:
        return
    facets, colours = _values(there, figure.facet), _values(there, figure.colour)
    labels = _values(there, figure.x)
    groups = [None] if figure.x == figure.colour else colours
    many = len(labels) * len(groups) > 18
    size = (11.0 if many else WIDTH, HEIGHT)
    view.drawing, panels = panels_for(len(facets), *size, columns=1 if many else COLUMNS)
    control = figure.y + CONTROL
    for axes, facet in zip(panels, facets, strict=True):
        for row in (row for row in there if row.axes.get(figure.facet) == facet):
            colour = row.axes.get(figure.colour)
            width, place = 0.8 / len(groups), float(labels.index(row.axes[figure.x]))
            place += width * (groups.index(None if None in groups else colour) + 0.5) - 0.4
            look = {"color": look_of(colour, colours)["color"]}
            _bar(axes, place, row.measures[figure.y], 0.85 * width, look)
            if groups == [None]:
                values = row.measures[figure.y].values
                axes.plot([place] * len(values), values, "o", color=INK, markersize=3)
            if control in row.measures and _mean(row, control) is not None:
                pale = look | {"alpha": 0.35, "hatch": "///"}
                _bar(axes, place, row.measures[control], 0.85 * width, pale)
        axes.set_xticks(range(len(labels)), [short(shown(label), SHORT) for label in labels])
        if many or max(len(shown(label)) for label in labels) > 10:
            axes.tick_params(axis="x", labelrotation=35)
        axes.set_ylim(*limits(_ends(there, figure.y), percent=figure.percent))
        axes.set_title(short(places([figure.facet], {figure.facet: facet})))
        axes.set_ylabel(f"{figure.y}{', percent' * figure.percent}")
    if groups != [None]:
        for colour in colours:
            name = short(places([figure.colour], {figure.colour: colour}))
            panels[0].plot([], [], "s", color=look_of(colour, colours)["color"], label=name)
        add_legend(view.drawing, panels[0])
    has_control = any(control in row.measures for row in there)
    view.notes = ["Pale, hatched bars are the control, fitted to shuffled labels."] * has_control
    names = [figure.y, control] if has_control else [figure.y]
    axes_names = results.experiment.axes
    body = [
        [places(axes_names, row.axes), *(mean_of(row.measures.get(name)) for name in names)]
        for row in there
    ]
    view.numbers = Table(["", *names], body)
    view.alt = f"{figure.title}: {figure.y} by {spoken(figure.x)}"


def _bar(axes: "Axes", place: float, sample: Sample, width: float, look: dict[str, Any]) -> None:
    axes.bar(place, sample.mean or 0.0, width, yerr=sample.standard_error, ecolor=INK,
             error_kw={"linewidth": 0.8}, **look)  # fmt: skip


def _rules(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """A measure by rule: a table with a tint behind every number."""
    there = [row for row in rows if row.details.get(figure.y)]
    rules = list(dict.fromkeys(rule for row in there for rule in row.details[figure.y]))
    axes = [axis for axis in results.experiment.axes if axis not in figure.where]
    body, tints = [], []
    for row in there:
        samples = [row.details[figure.y].get(rule) for rule in rules]
        body.append([places(axes, row.axes), *map(mean_of, samples)])
        tints.append([None if one is None else one.mean for one in samples])
    if there:
        view.table = Table(["", *rules], body, 1, tints)
        view.notes = ["Percent; a tint grows with the number."]


def _measures(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """A table of all measures of each row."""
    first = [name for name in (figure.x, figure.y, figure.facet, figure.colour) if name]
    names = list(dict.fromkeys(name for row in rows for name in row.measures))
    papers = any(row.paper for row in rows)
    body = []
    for row in rows:
        cells = [mean_of(row.measures.get(name)) for name in names]
        if papers:
            cells.insert(1, with_error(*(row.paper or (None, None))))
        body.append([*(shown(row.axes[name]) for name in first), *cells])
    if rows:
        head = [*map(spoken, first), *names[:1], *(["paper"] * papers), *names[1:]]
        view.table = Table(head, body, len(first))


def _scatter(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """A map of codes for each row, coloured by a label."""
    there = [row for row in rows if figure.y in row.picture.get("colours", {})]
    if not there:
        return
    axes_names = [name for name in results.experiment.axes if name not in figure.where]
    everything = [value for row in there for value in row.picture["colours"][figure.y]]
    classes = sorted(set(everything), key=_order)
    numeric = all(map(is_number, everything))
    continuous = numeric and (len(classes) > MOST_CLASSES or any(c % 1 for c in classes))
    few = len(classes) <= MOST_CLASSES
    if len(there) > MOST_MAPS:
        view.notes = [f"{MOST_MAPS} of {len(there)} maps."]
        there = [there[i * (len(there) - 1) // (MOST_MAPS - 1)] for i in range(MOST_MAPS)]
    view.drawing, panels = panels_for(len(there), 2.3, 2.3, columns=4)
    for axes, row in zip(panels, there, strict=True):
        step = max(1, math.ceil(len(row.picture["x"]) / MOST_POINTS))
        x, y = row.picture["x"][::step], row.picture["y"][::step]
        values = row.picture["colours"][figure.y][::step]
        if continuous:
            axes.scatter(x, y, s=6, c=values, cmap="viridis", vmin=min(everything),
                         vmax=max(everything), linewidths=0, rasterized=True)  # fmt: skip
        else:
            for one in classes:
                chosen = [i for i, value in enumerate(values) if value == one]
                look = look_of(one, classes) if few else look_of_many(one, classes)
                axes.scatter(
                    [x[i] for i in chosen], [y[i] for i in chosen], s=7, color=look["color"],
                    marker=look["marker"], linewidths=0, rasterized=True,
                    label=short(shown(one)) if few and axes is panels[0] else None,
                )  # fmt: skip
        axes.set_axis_off()
        axes.set_title(short(places(axes_names, row.axes)))
    if few and not continuous:
        add_legend(view.drawing, panels[0])
    if continuous:
        view.notes.append(f"Dark: low {figure.y}; bright: high.")
    elif not few:
        view.notes.append(f"{len(classes)} classes of {figure.y}; colours repeat.")
    view.alt = f"{figure.title}: {len(there)} maps of codes, coloured by {figure.y}"


def _matrix(view: View, figure: Figure, rows: Sequence[Row], results: Results) -> None:
    """A heat map for each row."""
    there = [row for row in rows if row.picture.get("matrix")]
    if not there:
        return
    axes_names = [name for name in results.experiment.axes if name not in figure.where]
    finite = [v for row in there for line in row.picture["matrix"] for v in line if is_number(v)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    top = max(-low, high)
    low, high = (-top, top) if low < 0 < high else (low, high)
    tallest = max(len(row.picture["labels"]) for row in there)
    view.drawing, panels = panels_for(len(there), 3.6, max(3.2, 0.16 * tallest))
    for axes, row in zip(panels, there, strict=True):
        matrix = [[v if is_number(v) else math.nan for v in line] for line in row.picture["matrix"]]
        drawn = axes.imshow(
            matrix, vmin=low, vmax=high, cmap="RdBu_r" if low < 0 else "cividis", aspect="auto",
            interpolation="nearest",
        )  # fmt: skip
        names = [short(shown(name), SHORT) for name in row.picture["labels"]]
        if len(names) <= 40:
            axes.set_yticks(range(len(names)), names)
        if len(names) == len(matrix[0]) and row.axes.get("what") == "similarity":
            axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
        else:
            axes.set_xlabel("head, from 0")
        axes.set_title(short(places(axes_names, row.axes)))
        view.drawing.colorbar(drawn, ax=axes, shrink=0.8)
        axes.spines[:].set_visible(False)
    view.alt = f"{figure.title}: {len(there)} matrices"


DRAWINGS: dict[str, Callable[[View, Figure, Sequence[Row], Results], None]] = {
    "table": _table,
    "lines": _lines,
    "rules": _rules,
    "scatter": _scatter,
    "measures": _measures,
    "bars": _bars,
    "matrix": _matrix,
}


def _mean(row: Row, name: str) -> float | None:
    sample = row.measures.get(name)
    return None if sample is None or not is_number(sample.mean) else sample.mean


def _ends(rows: Sequence[Row], name: str) -> list[float]:
    """The ends of the error bars."""
    samples = [row.measures[name] for row in rows]
    each = [(one.mean or 0.0, one.standard_error or 0.0) for one in samples]
    return [mean + error for mean, error in each] + [mean - error for mean, error in each]


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
