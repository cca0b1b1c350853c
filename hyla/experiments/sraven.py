"""SRAVEN over data, width, depth, heads, features and the fraction held out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hyla.experiments.ablation import SRAVEN_GRID
from hyla.experiments.declare import (
    HELD_OUT,
    IN_DISTRIBUTION,
    PER_FEATURE,
    SEEDS,
    TRAINING_LOSS,
    Claim,
    Experiment,
    Figure,
    Point,
    Row,
    Verdict,
)
from hyla.experiments.judge import (
    NOT_MEASURED,
    Judge,
    above,
    all_above,
    find,
    in_brackets,
    outcome,
    shown,
    so_far,
)
from hyla.experiments.rows import measured
from hyla.tasks.sraven import SravenConfig
from hyla.tasks.sraven_readers import YARDSTICKS
from hyla.train.config import RunConfig, grid, sraven_run

ATTENTIONS = ("softmax", "linear", "hyla")
MILLION = 1_000_000
MILLIONS = (10, 20, 40)  # of instances to train on
# The grid of the ablations and, where the paper searches more, the other warm-up.
FULL_GRID = (*SRAVEN_GRID, *grid(SEEDS, [1e-3, 3e-4], [0.1, 0.3], [3000]))
SOLVED = 80.0  # percent, of which the paper says that all kinds reach it
HEADS = (1, 2, 4, 8, 16, 32)
FEATURE_NUMBERS = (2, 3, 4, 5)


def _points(axis: str, values: Sequence[Any], run: Callable[..., RunConfig]) -> list[Point]:
    return [
        Point({"kind": attention, axis: value}, run(attention, value))
        for value in values
        for attention in ATTENTIONS
    ]


def scaling_points(
    axis: str, values: Sequence[int], run: Callable[[str, int, int], RunConfig]
) -> list[Point]:
    """Instances x width or depth; the smallest and largest corners first."""
    corners = (MILLIONS[0], values[0]), (MILLIONS[-1], values[-1])
    grid_ = [(millions, value) for value in values for millions in MILLIONS]
    return [
        Point(
            {"kind": attention, "millions": millions, axis: value},
            run(attention, millions * MILLION, value),
        )
        for millions, value in sorted(grid_, key=lambda place: place not in corners)
        for attention in ATTENTIONS
    ]


def width_run(attention: str, instances: int, width: int) -> RunConfig:
    """Width, hidden size and number of heads times a factor."""
    return sraven_run(FULL_GRID, kind=attention, instances=instances, width_factor=width)


def depth_run(attention: str, instances: int, depth: int) -> RunConfig:
    """A number of layers."""
    return sraven_run(FULL_GRID, kind=attention, instances=instances, layers=depth)


def heads_run(attention: str, heads: int) -> RunConfig:
    """The number of heads at a constant size of all together."""
    config = sraven_run(SRAVEN_GRID, kind=attention)
    return replace(config, model=config.model.with_heads(heads))


def features_run(attention: str, features: int) -> RunConfig:
    """K features of a panel."""
    return sraven_run(SRAVEN_GRID, kind=attention, task=SravenConfig(features=features))


def held_out_run(attention: str, fraction: float) -> RunConfig:
    """A fraction of the rule combinations kept from training."""
    return sraven_run(SRAVEN_GRID, kind=attention, task=SravenConfig(held_out=fraction))


def all_solve(axis: str, value: int) -> Judge:
    """Judges the largest models with most data, by their means.

    Of models that are not measured, or with a single seed, as in `all_above`.
    """

    def judge(rows: Sequence[Row]) -> Verdict:
        place = {"millions": MILLIONS[-1], axis: value}
        found = [find(rows, kind=attention, **place) for attention in ATTENTIONS]
        there = [row for row in found if row is not None]
        if not there:
            return NOT_MEASURED
        solved = [row["mean"] >= SOLVED for row in there]
        judged, told = outcome(solved, [False]), f"{sum(solved)} of {len(there)} do"
        asides = []
        if len(there) < len(found):
            asides.append(f"{len(found) - len(there)} of {len(found)} not measured")
        errors = [row["measures"][HELD_OUT].get("standard_error") for row in there]
        if single := errors.count(None):
            asides.append(f"{single} with a single seed")
        judged = so_far(judged) if asides else judged
        told += in_brackets(asides, there)
        evidence = "; ".join(f"{row['attention']} {shown(row)}" for row in there)
        return Verdict(judged, f"{told}: {axis} {value}, 40 M instances, {evidence}")

    return judge


def better_when_small(rows: Sequence[Row]) -> Verdict:
    """Judges the smallest models with least data."""
    place = {"millions": MILLIONS[0], "width": 1}
    hyla = find(rows, kind="hyla", **place)
    others = [(a, find(rows, kind=a, **place)) for a in ATTENTIONS[:2]]
    return all_above([(hyla, row, f"HYLA against {name}") for name, row in others])


SMALL = Claim("With little data and small models HYLA is better than the others", better_when_small)


def _scaling(
    axis: str, values: Sequence[int], run: Callable[[str, int, int], RunConfig], where: str
) -> Experiment:
    widens = axis == "width"  # the smallest model is in both figures: it is judged in one of them
    larger = values if widens else values[1:]
    groups = [{"kind": a, axis: v} for a in ATTENTIONS for v in larger]
    sizes = [{"kind": a, "millions": n} for a in ATTENTIONS for n in MILLIONS]

    def lines(title: str, measure: str, **options: Any) -> Figure:
        return Figure("lines", title, "millions", measure, "attention", axis, log=True, **options)

    return Experiment(
        name=f"scaling-{axis}",
        title=f"SRAVEN: more data, more {axis}",
        where=where,
        points=lambda: scaling_points(axis, values, run),
        make=measured,
        axes=("attention", "millions", axis),
        figures=(
            lines("Held-out accuracy", HELD_OUT, ceiling=True),
            lines("Held-out accuracy of single features", PER_FEATURE),
            lines("Accuracy on combinations of training", IN_DISTRIBUTION),
            lines("Training loss", TRAINING_LOSS, percent=False),
            *(
                figure
                for value in values
                for figure in _details("attention", {"millions": MILLIONS[-1], axis: value})
            ),
        ),
        claims=(
            Claim("More data helps", above("millions", MILLIONS[-1], MILLIONS[0], groups)),
            Claim(f"More {axis} helps", above(axis, values[-1], values[0], sizes)),
            Claim(
                "With enough data and size all kinds solve 80 % of held-out instances",
                all_solve(axis, values[-1]),
            ),
            *([SMALL] if widens else []),
        ),
        smoke={"millions": MILLIONS[-1:], axis: tuple(values[:2])},
        note="The smallest model has 4 layers of width 128; width 2 and 4 are multiples of its "
        "width, hidden size and number of heads. It is in both scaling figures: claims on it are "
        "judged with those on the width.",
    )


def _details(axis: str, where: dict[str, Any]) -> list[Figure]:
    """By rule: in the end, and while training."""
    place = ", ".join(f"{name} {value}" for name, value in where.items())
    title = f"Held-out accuracy over the instances that contain a rule ({place})"
    curves = f"When each rule is learned: held-out accuracy of the features it governs ({place})"
    return [
        Figure("rules", title, y="accuracy_by_rule", colour=axis, where=where, ceiling=True),
        Figure("curves", curves, facet=axis, where=where),
    ]


def _yardstick(row: Row) -> Row | None:
    """A reader as a line among the kinds of attention."""
    is_one = row.get("reader") in YARDSTICKS
    return {**row, "kind": f"{row['reader']}, no model"} if is_one else None


def _figures(axis: str, **options: Any) -> tuple[Figure, ...]:
    """Over an axis; for HYLA also by rule."""

    def lines(title: str, measure: str, **more: Any) -> Figure:
        return Figure("lines", title, axis, measure, "attention", **more, **options)

    return (
        lines("Held-out accuracy", HELD_OUT, ceiling=True),
        lines("Held-out accuracy of single features", PER_FEATURE),
        lines("Accuracy on combinations of training", IN_DISTRIBUTION),
        *(figure for a in ATTENTIONS for figure in _details(axis, {"kind": a})),
    )


WIDTH = _scaling("width", (1, 2, 4), width_run, "figures 4A and 10A")
DEPTH = _scaling("depth", (4, 8, 16), depth_run, "figures 4B and 10B")

HEADS_EXPERIMENT = Experiment(
    name="heads",
    title="SRAVEN: the number of heads",
    where="figure 5C",
    points=lambda: _points("heads", HEADS, heads_run),
    make=measured,
    axes=("attention", "heads"),
    figures=_figures("heads", log=True),
    claims=(
        Claim(
            "A single head, without the hypernetwork, hurts",
            above("heads", 16, 1, [{"kind": attention} for attention in ATTENTIONS]),
        ),
    ),
    smoke={"heads": (1, 4)},
    note="Queries, keys and values of all heads together keep their size of 64. Of a single head "
    "RMSHead leaves only the sign of the score, whose gradient is 0 but for scores near 0.",
)
FEATURES = Experiment(
    name="features",
    title="SRAVEN: the number of features",
    where="figure 5D",
    points=lambda: _points("features", FEATURE_NUMBERS, features_run),
    make=measured,
    axes=("attention", "features"),
    figures=_figures("features"),
    claims=(
        Claim(
            "More features are harder",
            above("features", 2, 5, [{"kind": attention} for attention in ATTENTIONS]),
        ),
    ),
    smoke={"features": (2, 3)},
    note="Two yardsticks: who finds each answer by itself, and who also does not tell addition "
    "from subtraction.",
    beside={"readers-sraven": _yardstick},
)
HELD_OUT_FRACTION = Experiment(
    name="held-out",
    title="SRAVEN: the fraction of rule combinations held out",
    where="figure 11",
    points=lambda: _points("held_out", (0.25, 0.5, 0.75), held_out_run),
    make=measured,
    axes=("attention", "held_out"),
    figures=_figures("held_out"),
    smoke={"held_out": (0.25, 0.5)},
    note="The paper says nothing of it in words, so there is no verdict.",
)
