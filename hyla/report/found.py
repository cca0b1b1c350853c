"""What there is to report: the rows of each experiment at its largest scale, and verdicts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hyla.experiments import EXPERIMENTS
from hyla.experiments.declare import Claim, Experiment, Figure, Point, Row, Verdict
from hyla.experiments.judge import NOT_MEASURED
from hyla.experiments.results import is_at, is_first_seed, place_of, read_rows, results_file
from hyla.experiments.rows import paper_values
from hyla.experiments.runner import Options
from hyla.experiments.scales import points_at
from hyla.experiments.search import setting_of
from hyla.report.tables import ONLY_PAPER

DAMAGE = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError),
    RecursionError,
)


@dataclass(frozen=True)
class Found:
    """An experiment and what is known of it.

    scale: of the rows; empty if there are none. file: the one they are in.
    points: how many there are to be at this scale. left: those of them that have no row.
    in_paper: in the place of rows, what the paper has at points without any.
    problems: files and rows that could not be used, each in one line.
    """

    experiment: Experiment
    scale: str = ""
    rows: Sequence[Row] = ()
    file: Path | None = None
    points: int = 0
    left: Sequence[Point] = ()
    in_paper: Sequence[Row] = ()
    problems: Sequence[str] = ()
    verdicts: Sequence[tuple[Claim, Verdict]] = field(default_factory=list)

    @property
    def measured(self) -> int:
        """How many points have a row."""
        return self.points - len(self.left)

    def commands_left(self) -> list[str]:
        """The commands for what is left, with the options of what is there.

        Of one kind at a time where each has its own setting. A search on the first seed goes on
        without repeating those of the whole grid.
        """
        scale, kind = self.scale or self.experiment.scales[0], self.experiment.axes[0]
        given = {
            str(row.get(kind)): Options(scale, search=search, precision=str(row.get("precision")))
            for row in self.rows
            if setting_of(search := str(row.get("search")))
        }
        kinds = dict.fromkeys(str(point.axes.get(kind)) for point in self.left)
        if given and kinds.keys() <= given.keys():
            return [given[name].command(self.experiment, {kind: name}) for name in kinds]
        search = "first-seed" if any(map(is_first_seed, self.rows)) else "full"
        precisions = Counter(str(row["precision"]) for row in self.rows if row.get("precision"))
        ((precision, _),) = precisions.most_common(1) or [("fp32", 0)]
        return [Options(scale, search=search, precision=precision).command(self.experiment)]

    def rows_for(self, figure: Figure) -> Sequence[Row]:
        """The rows for a figure: for a table, with the paper's where there are none, in order."""
        if figure.kind != "table":
            return self.rows
        points = [point.axes for point in self.experiment.points()]
        return sorted([*self.rows, *self.in_paper], key=lambda row: place_of(row, points))


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
            points = points_at(experiment, scale)
            left = [p for p in points if not any(is_at(row, p.axes) for row in rows)]
            known = [point for point in left if point.paper and scale == "paper"]
            return Found(
                experiment,
                scale,
                rows,
                file,
                points=len(points),
                left=left,
                in_paper=[{**p.axes, **paper_values(p), ONLY_PAPER: True} for p in known],
                problems=problems,
                verdicts=_verdicts(experiment, rows),
            )
    points = points_at(experiment, experiment.scales[0])
    nothing = [(claim, NOT_MEASURED) for claim in experiment.claims]
    return Found(experiment, points=len(points), left=points, problems=problems, verdicts=nothing)


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
