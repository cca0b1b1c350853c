"""Tables of the page: results beside the paper's, how they were made, evidence, run folders."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from hyla.experiments.judge import NOT_TESTED, Comparison, Verdict
from hyla.experiments.spec import Contrast, Figure, Point, Row
from hyla.report.content import Results
from hyla.report.text import (
    hyperparameters,
    marked,
    mean_of,
    of_paper,
    places,
    rounded,
    shown,
    spoken,
)
from hyla.train.runs import list_runs

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], str]]  # what makes a cell of an item, by the heading
MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Table:
    """A table with `texts` columns of text, then numbers. tints: percentages behind numbers."""

    head: Sequence[str]
    body: Sequence[Sequence[str]]
    texts: int = 1
    tints: Sequence[Sequence[float | None]] = ()

    @classmethod
    def of(cls, items: Iterable[T], columns: Columns[T], texts: int = 1) -> Self:
        """Make a line for each item."""
        body = [[cell(item) for cell in columns.values()] for item in items]
        return cls(list(columns), body, texts)


def beside_paper(figure: Figure, results: Results) -> Table:
    """Compare our values, as described and as published, with the paper's."""

    def place(one: Row | Point) -> tuple[Any, Any]:
        return one.axes[figure.x], one.axes[figure.y]

    ours, theirs = (
        {place(row): row for row in rows} for rows in (results.rows, results.as_published)
    )
    papers = {place(point): point.paper for point in results.points}
    columns = results.values(figure.y)
    kinds = ("as described", "authors' code", "paper")
    head = [f"{shown(column)}: {kind}" for column in columns for kind in kinds]
    body = []
    for line in results.values(figure.x):
        cells = [shown(line)]
        for here in ((line, column) for column in columns):
            published = mean_of(theirs[here].main) if here in theirs else ""
            cells += [marked(ours.get(here)), published, of_paper(papers[here])]
        body.append(cells)
    return Table([spoken(figure.x), *head], body)


def local(results: Results) -> Table:
    """The results with local trainings, beside the paper's values."""
    rows = [row for row in results.local if row.measures and row.axes.get("label", "all") == "all"]
    columns: Columns[Row] = {
        "result": results.place,
        "here": lambda row: mean_of(row.main),
        "paper": lambda row: of_paper(row.paper),
    }
    return Table.of(rows, columns)


def configuration(results: Results) -> Table:
    """How every trained result was made."""
    columns: Columns[Row] = {
        "result": results.place,
        "hyperparameters": hyperparameters,
        "by seed": lambda row: ", ".join(map(rounded, row.main.per_seed)),
        "preset": lambda row: row.preset.replace("_", " "),
        "precision": lambda row: ", ".join(row.precisions),
        "device": lambda row: _each(one.origin.device for one in row.trainings),
        "runs": lambda row: _each(one.run for one in row.trainings),
    }
    rows = [
        row
        for row in (*results.rows, *results.as_published)
        if row.trainings and not row.picture and "what" not in row.axes
    ]
    return Table.of(rows, columns, len(columns))


def _each(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def evidence(verdict: Verdict) -> Table:
    """The contrasts of a claim, those without results last."""
    head = ["contrast", "claimed", "outcome", "value", "95 % interval", "seeds", "paired"]
    body = [_evidence(one.contrast, one) for one in verdict.comparisons]
    return Table(head, body + [_evidence(one, None) for one in verdict.untested], 3)


def _evidence(contrast: Contrast, found: Comparison | None) -> list[str]:
    """Put a contrast into words. One with negative weights only is shown with the opposite sign."""
    sign = -1 if all(term.weight < 0 for term in contrast.terms) else 1
    text = ""
    for term in contrast.terms:
        weight = sign * term.weight
        text += f" {MINUS if weight < 0 else '+'} "
        text += f"{abs(weight):g} {TIMES} " if abs(weight) != 1 else ""
        text += f"{places(list(term.axes), term.axes)}: {term.measure}"
    side = "above" if sign > 0 else "below"
    cells = [text.removeprefix(" + ").strip(), f"{side} {sign * contrast.threshold + 0:g}"]
    if found is None:
        return [*cells, NOT_TESTED, rounded(None), "", "", "no"]
    interval = " to ".join(map(rounded, sorted(sign * end for end in found.interval)))
    value, paired = rounded(sign * found.value), "yes" if found.paired else "no"
    return [*cells, found.outcome, value, interval, str(found.seeds), paired]


def run_folders(root: Path) -> Table:
    """The state of all runs in a folder."""
    return Table.of(
        list_runs(root),
        {
            "run": lambda run: str(run.path.relative_to(root)) if run.path != root else root.name,
            "state": lambda run: run.state,
            "task": lambda run: run.task,
            "attention": lambda run: run.kind,
            "step": lambda run: f"{run.step:,}/{run.steps:,}" if run.steps else "",
            "models": lambda run: str(run.members or ""),
        },
        4,
    )
