"""The content of the report: the rows of each experiment and the verdicts on its claims."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hyla.experiments import EXPERIMENTS
from hyla.experiments.judge import Verdict, judge
from hyla.experiments.rows import DEFAULT_PLAN, points_of, rows
from hyla.experiments.run import RESULTS, RUNS
from hyla.experiments.spec import Claim, Experiment, Figure, Row
from hyla.report.adapter import Flat, flat, paper_only
from hyla.train.store import Store


@dataclass(frozen=True)
class Found:
    """An experiment and its results.

    flat: the rows as the drawings read them. with_paper: the same, with the published values of
    points that have no row. points: their number; measured: the number of those with a row.
    """

    experiment: Experiment
    rows: Sequence[Row]
    flat: Sequence[Flat]
    with_paper: Sequence[Flat]
    points: int
    measured: int
    verdicts: Sequence[tuple[Claim, Verdict]]

    @property
    def command(self) -> str:
        """The command that measures every missing point."""
        return f"hyla reproduce {self.experiment.name}"

    def rows_for(self, figure: Figure) -> Sequence[Flat]:
        """The rows of a figure; a table also shows published values alone."""
        return self.with_paper if figure.kind == "table" else self.flat


@dataclass(frozen=True)
class Content:
    """All experiments, those with results first, and what could not be read."""

    found: Sequence[Found]
    problems: Sequence[str]
    runs: Path


def load(runs: Path = RUNS, results: Path | None = RESULTS) -> Content:
    """Read all results; ValueError if a published file is damaged.

    A demonstration without results is left out.
    """
    store = Store.open(runs, results)
    each = [collect(experiment, store) for experiment in EXPERIMENTS.values()]
    found = [one for one in each if one.rows or not one.experiment.is_demo]
    problems = [*store.problems.values()]
    if results is not None and not results.is_dir():
        problems.append(f"No published results are shown: the folder {results} does not exist.")
    return Content(sorted(found, key=lambda one: not one.rows), problems, runs)


def collect(experiment: Experiment, store: Store) -> Found:
    """Collect the results of one experiment and judge its claims."""
    points = points_of(experiment, {}, tiny=False)
    by_point = [
        [row for row in rows(point, DEFAULT_PLAN, store) if row.measures or row.picture]
        for point in points
    ]
    found = [row for mine in by_point for row in mine]
    flat_by_point = [[flat(row) for row in mine] for mine in by_point]
    with_paper = [
        row
        for point, mine in zip(points, flat_by_point, strict=True)
        for row in (mine or ([paper_only(point)] if point.paper else []))
    ]
    return Found(
        experiment,
        found,
        [row for mine in flat_by_point for row in mine],
        with_paper,
        len(points),
        sum(map(bool, by_point)),
        [(claim, judge(claim, found)) for claim in experiment.claims],
    )
