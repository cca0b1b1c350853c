"""What there is to report: the rows of each experiment at its largest scale, and verdicts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hyla.experiments import EXPERIMENTS
from hyla.experiments.declare import Claim, Experiment, Figure, Point, Row, Verdict
from hyla.experiments.judge import NOT_MEASURED
from hyla.experiments.results import (
    is_at,
    is_first_seed,
    is_given,
    place_of,
    read_rows,
    results_file,
)
from hyla.experiments.rows import Settings, paper_values
from hyla.experiments.runner import Options
from hyla.experiments.scales import points_at, settings
from hyla.experiments.search import setting_of
from hyla.report.tables import ONLY_PAPER
from hyla.train.config import PRECISIONS

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
    beside: rows of other experiments that are shown too.
    problems: files and rows that could not be used, each in one line.
    """

    experiment: Experiment
    scale: str = ""
    rows: Sequence[Row] = ()
    file: Path | None = None
    points: int = 0
    left: Sequence[Point] = ()
    in_paper: Sequence[Row] = ()
    beside: Sequence[Row] = ()
    problems: Sequence[str] = ()
    verdicts: Sequence[tuple[Claim, Verdict]] = field(default_factory=list)

    @property
    def measured(self) -> int:
        """How many points have a row."""
        return self.points - len(self.left)

    def commands_left(self) -> list[str]:
        """The commands for what is left, with the options of what is there.

        Of one kind at a time where each has its own setting; a row that has another stays. A search
        on the first seed goes on without repeating those of the whole grid.
        """
        scale, kind = self.scale or self.experiment.scales[0], self.experiment.axes[0]
        search = "first-seed" if any(map(is_first_seed, self.rows)) else "full"
        known = Counter(p for row in self.rows if (p := str(row.get("precision"))) in PRECISIONS)
        precision = known.most_common(1)[0][0] if known else "fp32"
        usual = Options(scale, search=search, precision=precision)
        chosen = {str(point.axes.get(kind)): usual for point in self.left}
        for row in self.rows:
            name, given = str(row.get(kind)), str(row.get("search"))
            if name in chosen and self._all_have(setting_of(given), kind, name):
                chosen[name] = replace(usual, search=given)
        if all(options == usual for options in chosen.values()):
            return [usual.command(self.experiment)] if chosen else []
        return [
            options.command(self.experiment, only)
            for name, options in chosen.items()
            for only in self._places_left(kind, name, options.search)
        ]

    def _places_left(self, kind: str, name: str, search: str) -> list[list[tuple[str, object]]]:
        """Values of axes that name the points left of a kind, and no row of another setting."""
        left = [point.axes for point in self.left if str(point.axes.get(kind)) == name]
        others = [row for row in self.rows if is_given(row) and row["search"] != search]
        theirs = {axis: [*dict.fromkeys(str(place[axis]) for place in left)] for axis in left[0]}
        for values in ({kind: [name]}, theirs):
            if not any(all(str(row.get(a)) in values[a] for a in values) for row in others):
                return [[(axis, value) for axis in values for value in values[axis]]]
        return [[*place.items()] for place in left]

    def _all_have(self, setting: Settings | None, kind: str, name: str) -> bool:
        """Whether the points that are left of a kind have a setting in their grids."""
        left = [point.config for point in self.left if str(point.axes.get(kind)) == name]
        return all(c is not None and setting in [*map(settings, c.members)] for c in left)

    def rows_for(self, figure: Figure) -> Sequence[Row]:
        """The rows for a figure: for a table, with the paper's where there are none, in order."""
        if figure.kind == "lines":
            return [*self.rows, *(row for row in self.beside if figure.y in row["measures"])]
        if figure.kind != "table":
            return self.rows
        points = [point.axes for point in self.experiment.points()]
        return sorted([*self.rows, *self.in_paper], key=lambda row: place_of(row, points))


def load(results: Path, runs: Path) -> list[Found]:
    """All declared experiments, each with the rows of the largest scale that has any.

    Those that have some come first.
    """
    found = {name: _load(one, results, runs) for name, one in EXPERIMENTS.items()}
    for name, one in found.items():
        if one.rows and one.experiment.beside:
            found[name] = replace(one, beside=_beside(one, found))
    return sorted(found.values(), key=lambda one: not one.rows)


def _beside(one: Found, found: dict[str, Found]) -> list[Row]:
    """Rows of other experiments at the same scale; odd ones are told of where they belong."""
    return [
        ours
        for name, as_ours in one.experiment.beside.items()
        if found[name].scale == one.scale
        for row in found[name].rows
        if isinstance(row.get("measures"), dict) and (ours := as_ours(row)) is not None
    ]


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
