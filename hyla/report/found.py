"""What there is to report: the rows of each experiment at its largest scale, and verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hyla.experiments import EXPERIMENTS
from hyla.experiments.declare import Claim, Experiment, Row, Verdict
from hyla.experiments.judge import NOT_MEASURED
from hyla.experiments.results import is_at, read_rows, results_file
from hyla.experiments.scales import points_at

DAMAGE = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError),
    RecursionError,
)


@dataclass(frozen=True)
class Found:
    """An experiment and what is known of it.

    scale: of the rows; empty if there are none. file: the one they are in.
    points, measured: how many there are to be at this scale, and how many have a row.
    problems: files and rows that could not be used, each in one line.
    """

    experiment: Experiment
    scale: str = ""
    rows: Sequence[Row] = ()
    file: Path | None = None
    points: int = 0
    measured: int = 0
    problems: Sequence[str] = ()
    verdicts: Sequence[tuple[Claim, Verdict]] = field(default_factory=list)


def load(results: Path, runs: Path) -> list[Found]:
    """All declared experiments, each with the rows of the largest scale that has any.

    Those that have some come first.
    """
    found = [_load(experiment, results, runs) for experiment in EXPERIMENTS.values()]
    return sorted(found, key=lambda one: not one.rows)


def _load(experiment: Experiment, results: Path, runs: Path) -> Found:
    problems: list[str] = []
    for scale in experiment.scales:
        file = results_file(experiment.name, scale, results, runs)
        rows = _rows(file, scale, problems)
        if rows:
            points = [point.axes for point in points_at(experiment, scale)]
            measured = sum(any(is_at(row, axes) for row in rows) for axes in points)
            verdicts = _verdicts(experiment, rows)
            return Found(experiment, scale, rows, file, len(points), measured, problems, verdicts)
    points = [point.axes for point in points_at(experiment, experiment.scales[0])]
    nothing = [(claim, NOT_MEASURED) for claim in experiment.claims]
    return Found(experiment, points=len(points), problems=problems, verdicts=nothing)


def _rows(file: Path, scale: str, problems: list[str]) -> list[Row]:
    """The rows of a file; those of another scale do not belong there."""
    try:
        rows = read_rows(file)
    except (OSError, ValueError) as error:
        problems.append(str(error))
        return []
    there = [row for row in rows if row.get("scale", scale) == scale]
    if len(there) < len(rows):
        problems.append(f"{file}: {len(rows) - len(there)} rows are of another scale, not shown")
    return there


def _verdicts(experiment: Experiment, rows: Sequence[Row]) -> list[tuple[Claim, Verdict]]:
    found = []
    for claim in experiment.claims:
        try:
            verdict = claim.judge(rows)
        except DAMAGE as error:
            reason = f"rows could not be judged ({type(error).__name__}: {error})"
            verdict = Verdict(NOT_MEASURED.outcome, reason)
        found.append((claim, verdict))
    return found
