"""What an experiment is: the runs it wants, what is made of them, and how to draw it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hyla.train.config import RunConfig

Axes = Mapping[str, Any]  # names of numbers and texts
Row = dict[str, Any]  # a result: its axes, mean, standard_error, per_seed, and where it comes from

# Names of measures, as in the results and on the axes of figures.
HELD_OUT, IN_DISTRIBUTION, UNKNOWN = "held out", "in distribution", "unknown terms"
PER_FEATURE = "held out, per feature"
TRAINING_LOSS = "training loss"

SEEDS = range(3)  # of every experiment at full scale, as in the paper


@dataclass(frozen=True)
class Point:
    """One place in a table or figure: a population whose best hyperparameters are reported.

    axes: where it stands. config: with a member for each setting and seed; None if there is
        nothing to train.
    paper: the paper's mean and standard error, in percent.
    """

    axes: Axes
    config: RunConfig | None
    paper: tuple[float, float] | None = None


@dataclass(frozen=True)
class Figure:
    """How rows of results are drawn.

    kind: "table" (rows x columns), "lines" (y over x), "rules" (bars: accuracy by rule), "curves"
        (accuracy by rule over steps), "scatter" (maps of codes), "matrix" (similarity, mean codes,
        samples), "bars" (y over x as bars, with a control), "measures" (a table of all measures).
    x, y: for a table, the axes of its rows and columns; else an axis and a measure.
    colour, facet: axes that tell lines and panels apart; of measures, each is one more column.
    where: only the rows with these values.
    percent: whether the numbers of y are percent. log: whether x is drawn so.
    ceiling: draw the solver's ceiling of SRAVEN, where a row has one.
    """

    kind: str
    title: str
    x: str = ""
    y: str = ""
    colour: str = ""
    facet: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    percent: bool = True
    log: bool = False
    ceiling: bool = False
    caption: str = ""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim of the paper holds here.

    outcome: "reproduced", "in part", "not reproduced", "open", "not measured".
    summary: the numbers, or how the comparisons come out. comparisons: each in words, and what
    else there is to say.
    """

    outcome: str
    summary: str
    comparisons: tuple[str, ...] = ()

    @property
    def evidence(self) -> str:
        """All of it, in one line."""
        each = "; ".join(self.comparisons)
        return f"{self.summary}: {each}" if each else self.summary


@dataclass(frozen=True)
class Claim:
    """Something the paper says, and how to judge it from the rows of an experiment."""

    text: str
    judge: Callable[[Sequence[Row]], Verdict]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, declared.

    points: the populations to be trained, at the paper's scale.
    make: rows from a point, its finished runs and the scale (`measured`, or an analysis: if
        its models are kept, `say` tells how far it has come).
    axes: those that tell the rows apart; a new row replaces the old one with the same.
    scales: those at which it can be run, the one it is meant for first.
    needs: packages that its rows need: missing ones are told before anything is trained.
    keep: whether the models that are chosen are kept beside the results, to be analysed again.
    smoke: of each axis named here, the values that are enough to see that everything works.
    where: what in the paper it stands for.
    beside: by their names, experiments whose rows are shown too, as lines and in what is told
        beyond the paper: each makes of a row one with the axes of this experiment, or None.
    """

    name: str
    title: str
    where: str
    points: Callable[[], list[Point]]
    make: Callable[..., list[Row]]
    axes: tuple[str, ...]
    figures: tuple[Figure, ...]
    claims: tuple[Claim, ...] = ()
    scales: tuple[str, ...] = ("paper", "small", "smoke")
    keep: bool = False
    needs: tuple[str, ...] = ()
    smoke: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    note: str = ""
    beside: Mapping[str, Callable[[Row], Row | None]] = field(default_factory=dict)
