"""What the report shows: the results of every experiment, verdicts on its claims, and headlines."""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyla.experiments import EXPERIMENTS, HEADLINES
from hyla.experiments.judge import OUTCOMES, Verdict, judge
from hyla.experiments.rows import DEFAULT_PLAN, is_complete, points_of, rows, rows_as_published
from hyla.experiments.run import RESULTS, RUNS
from hyla.experiments.spec import Claim, Experiment, Headline, Point, Row
from hyla.report.text import places
from hyla.train.store import Store


@dataclass(frozen=True)
class Results:
    """The results of an experiment.

    as_published: rows of trainings that follow the authors' code. measured: how many points have
    their row and all of their analyses.
    """

    experiment: Experiment
    points: Sequence[Point]
    rows: Sequence[Row]
    as_published: Sequence[Row]
    measured: int
    verdicts: Sequence[tuple[Claim, Verdict]]

    @property
    def local(self) -> Sequence[Row]:
        """The rows with trainings of local runs."""
        return [row for row in self.rows if row.is_local]

    def values(self, axis: str) -> list[Any]:
        """The values of an axis, in the order of the points."""
        return list(dict.fromkeys(point.axes[axis] for point in self.points))

    def place(self, row: Row, without: Container[str] = ()) -> str:
        """The values of the axes of a row in words."""
        return places([axis for axis in self.experiment.axes if axis not in without], row.axes)

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of claims with each outcome."""
        return tally(verdict.outcome for _, verdict in self.verdicts)


@dataclass(frozen=True)
class Content:
    """All experiments, the headlines that have results, and what could not be read."""

    results: Sequence[Results]
    headlines: Sequence[tuple[Headline, Sequence[Row], Verdict]]
    problems: Sequence[str]
    runs: Path

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of the paper's claims with each outcome; demonstrations do not count."""
        paper = [one for one in self.results if not one.experiment.is_demo]
        return tally(verdict.outcome for one in paper for _, verdict in one.verdicts)


def tally(outcomes: Iterable[str]) -> dict[str, int]:
    """Count outcomes, in the order of `OUTCOMES`."""
    counted = Counter(outcomes)
    return {outcome: counted[outcome] for outcome in OUTCOMES}


def load(runs: Path = RUNS, results: Path | None = RESULTS) -> Content:
    """Read all results; ValueError if a published file is damaged.

    Experiments with results come first. A demonstration without results is left out.
    """
    store = Store.open(runs, results)
    each = [collect(experiment, store) for experiment in EXPERIMENTS.values()]
    found = [one for one in each if one.rows or not one.experiment.is_demo]
    by_name = {one.experiment.name: one.rows for one in each}
    headlines = [
        (headline, there, judge(headline.claim, there))
        for headline in HEADLINES
        for there in [by_name[headline.experiment]]
        if any(row.is_at(place) for row in there for place in headline.places.values())
    ]
    problems = [*store.problems.values()]
    if results is not None and not results.is_dir():
        problems.append(f"No published results are shown: the folder {results} does not exist.")
    return Content(sorted(found, key=lambda one: not one.rows), headlines, problems, runs)


def collect(experiment: Experiment, store: Store) -> Results:
    """Collect the results of one experiment and judge its claims."""
    points = points_of(experiment)
    found = [row for point in points for row in rows(point, DEFAULT_PLAN, store)]
    found = [row for row in found if row.measures or row.picture]
    return Results(
        experiment,
        points,
        found,
        [] if experiment.is_demo else rows_as_published(experiment, store),
        sum(is_complete(point, DEFAULT_PLAN, store) for point in points),
        [(claim, judge(claim, found)) for claim in experiment.claims],
    )
