"""What an experiment is: points to be measured, a plan of trainings, claims, and figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hyla.errors import bad_value, unknown_name
from hyla.statistics import Sample
from hyla.tasks.base import AS_DESCRIBED
from hyla.train.config import Member, RunConfig
from hyla.train.store import Entry, Search, Trained

Axes = Mapping[str, Any]  # names of numbers and texts

# Names of measures, as in the results and on the axes of figures.
HELD_OUT, IN_DISTRIBUTION, UNKNOWN = "held out", "in distribution", "unknown terms"
PER_FEATURE = "held out, per feature"
TRAINING_LOSS, VALIDATION_LOSS = "training loss", "validation loss"

SEEDS = 3  # of every point, as in the paper


@dataclass(frozen=True)
class Plan:
    """What a point needs.

    seeds: how many; None: three, and of a finished point all that there are.
    search_seeds: on how many of them every setting is trained; None: a choice that is published
        will do, else one.
    setting: (learning rate, weight decay, warm-up), in the place of a search.
    choose_by: "validation loss", or "held out" as in the paper.
    precision: None: any but fp64.
    """

    seeds: int | None = None
    search_seeds: int | None = None
    setting: Member | None = None
    choose_by: str = VALIDATION_LOSS
    precision: str | None = None

    def __post_init__(self) -> None:
        for name in ("seeds", "search_seeds"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise bad_value(name, count, "a whole number of at least 1")
        if (self.search_seeds or 1) > self.least_seeds:
            raise bad_value("search_seeds", self.search_seeds, f"at most {self.least_seeds} seeds")
        if self.choose_by not in (VALIDATION_LOSS, HELD_OUT):
            raise unknown_name("choose_by", self.choose_by, (VALIDATION_LOSS, HELD_OUT))

    @property
    def least_seeds(self) -> int:
        """How many seeds a point must have."""
        return SEEDS if self.seeds is None else self.seeds


@dataclass(frozen=True)
class Analysis:
    """Something that is measured without training.

    of: "weights" of every chosen model, or "data" of the task under every seed, or "task": once.
    settings: all that its values depend on. compute: its entries, from a `Trained` that has weights
    and `say`, or from a task and a seed. needs: packages.
    """

    name: str
    of: str
    settings: dict[str, Any]
    compute: Callable[..., Iterable[Entry]]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Point:
    """One place in a table or figure.

    axes: where it stands. config: a run whose members are the settings of the grid; None if there
    is nothing to train. task: of the analyses where there is nothing to train.
    paper: the paper's mean and standard error, in percent.
    """

    axes: Axes
    config: RunConfig | None = None
    analyses: tuple[Analysis, ...] = ()
    paper: tuple[float, float] | None = None
    task: Any = None
    preset: str = AS_DESCRIBED

    @property
    def settings(self) -> list[Member]:
        """The grid."""
        members = () if self.config is None else self.config.members
        return list(dict.fromkeys(replace(member, seed=0) for member in members))


@dataclass(frozen=True)
class Row:
    """A result: measures of a point over seeds, and what they come from.

    measures: by name; the first is the main one. details: by group and name, such as by rule.
    setting: the hyperparameters. search: how they were chosen; None if there was one to choose.
    trainings: those of the seeds.
    """

    axes: Axes
    measures: Mapping[str, Sample] = field(default_factory=dict)
    details: Mapping[str, Mapping[str, Sample]] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    paper: tuple[float, float] | None = None
    kind: str = ""
    setting: Member | None = None
    search: Search | None = None
    trainings: tuple[Trained, ...] = ()
    picture: Mapping[str, Any] = field(default_factory=dict)
    preset: str = AS_DESCRIBED
    frozen: bool = False

    @cached_property
    def main(self) -> Sample:
        """The measure that the row is about."""
        return next(iter(self.measures.values()), Sample(()))

    @property
    def precisions(self) -> list[str]:
        """Of its trainings."""
        return list(dict.fromkeys(one.precision for one in self.trainings))

    @property
    def is_local(self) -> bool:
        """Whether some of its trainings are not published."""
        return any(one.path is not None for one in self.trainings)

    def is_at(self, axes: Axes) -> bool:
        """Whether it stands at these values."""
        return all(self.axes.get(axis) == value for axis, value in axes.items())


@dataclass(frozen=True)
class Term:
    """A part of a contrast: a weight times a measure of the row at some axes."""

    weight: float
    axes: Axes
    measure: str = HELD_OUT


@dataclass(frozen=True)
class Contrast:
    """What a claim says in numbers: the sum of the terms is above the threshold."""

    terms: tuple[Term, ...]
    threshold: float = 0.0

    def __sub__(self, other: "Contrast") -> "Contrast":
        """The claim that this difference is larger than another."""
        negated = (replace(term, weight=-term.weight) for term in other.terms)
        return Contrast((*self.terms, *negated), self.threshold - other.threshold)


def above(one: Axes, other: Axes, measure: str = HELD_OUT, than: str = "") -> Contrast:
    """The contrast that one row is above another. than: the measure of the other, if it differs."""
    return Contrast((Term(1.0, one, measure), Term(-1.0, other, than or measure)))


def at_least(value: float, axes: Axes, measure: str = HELD_OUT) -> Contrast:
    """The contrast that a row is above a number."""
    return Contrast((Term(1.0, axes, measure),), value)


def at_most(value: float, axes: Axes, measure: str = HELD_OUT) -> Contrast:
    """The contrast that a row is below a number."""
    return Contrast((Term(-1.0, axes, measure),), -value)


@dataclass(frozen=True)
class Claim:
    """Something the paper says, as contrasts, which may depend on the rows."""

    text: str
    contrasts: tuple[Contrast, ...] | Callable[[Sequence[Row]], Sequence[Contrast]]


@dataclass(frozen=True)
class Figure:
    """How rows are drawn.

    kind: "table" (rows x columns), "lines" (y over x), "rules" (bars: a detail by rule), "scatter"
        (maps of codes), "matrix" (similarity, mean codes, samples), "bars" (y over x as bars, with
        a control), "measures" (a table of all measures).
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
class Experiment:
    """A table or figure of the paper, declared.

    where: what in the paper it stands for. axes: those that tell its rows apart.
    points: what is to be measured, at the paper's scale. tiny: of each axis named here, the values
        that are enough to see that everything works. is_demo: of a task of its own, so that
        nothing can be compared with the paper. question: what it answers. note: a caveat.
    """

    name: str
    title: str
    where: str
    points: Callable[[], list[Point]]
    axes: tuple[str, ...]
    figures: tuple[Figure, ...]
    claims: tuple[Claim, ...] = ()
    tiny: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    is_demo: bool = False
    question: str = ""
    note: str = ""


@dataclass(frozen=True)
class Headline:
    """A comparison on the first screen of the report.

    places: the axes of the rows to compare, by short names. unit: of the measure, in a word.
    control: a measure with shuffled labels.
    """

    question: str
    experiment: str
    claim: Claim
    places: Mapping[str, Axes]
    unit: str
    measure: str = HELD_OUT
    control: str = ""
