"""SRAVEN over data, width, depth, heads, features and the fraction held out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hyla.experiments.paper.ablation import SOLVER
from hyla.experiments.paper.runs import SRAVEN_GRID, sraven_run
from hyla.experiments.spec import (
    HELD_OUT,
    IN_DISTRIBUTION,
    PER_FEATURE,
    TRAINING_LOSS,
    Axes,
    Claim,
    Contrast,
    Experiment,
    Figure,
    Point,
    above,
    at_least,
)
from hyla.tasks.sraven import SravenConfig
from hyla.train.config import RunConfig, grid

THREE = ("softmax", "linear", "hyla")  # the kinds that figures compare
MILLION = 1_000_000
MILLIONS = (10, 20, 40)  # of instances to train on
# The grid of the ablations and, where the paper searches more, the other warm-up.
FULL_GRID = (*SRAVEN_GRID, *grid([0], [1e-3, 3e-4], [0.1, 0.3], [3000]))
SOLVED = 80.0  # percent, of which the paper says that all kinds reach it
HEADS = (1, 2, 4, 8, 16, 32)
FEATURE_NUMBERS = (2, 3, 4, 5)


def _points(axis: str, values: Sequence[Any], run: Callable[..., RunConfig]) -> list[Point]:
    return [
        Point({"kind": kind, axis: value}, run(kind, value), (SOLVER,))
        for value in values
        for kind in THREE
    ]


def scaling_points(
    axis: str, values: Sequence[int], run: Callable[[str, int, int], RunConfig]
) -> list[Point]:
    """Instances x width or depth; the smallest and largest corners first."""
    corners = (MILLIONS[0], values[0]), (MILLIONS[-1], values[-1])
    grid_ = [(millions, value) for value in values for millions in MILLIONS]
    return [
        Point(
            {"kind": kind, "millions": millions, axis: value},
            run(kind, millions * MILLION, value),
            (SOLVER,),
        )
        for millions, value in sorted(grid_, key=lambda place: place not in corners)
        for kind in THREE
    ]


def width_run(kind: str, instances: int, width: int) -> RunConfig:
    """Width, hidden size and number of heads times a factor."""
    return sraven_run(FULL_GRID, kind=kind, instances=instances, width_factor=width)


def depth_run(kind: str, instances: int, depth: int) -> RunConfig:
    """A number of layers."""
    return sraven_run(FULL_GRID, kind=kind, instances=instances, layers=depth)


def heads_run(kind: str, heads: int) -> RunConfig:
    """The number of heads at a constant size of all together."""
    config = sraven_run(SRAVEN_GRID, kind=kind)
    return replace(config, model=config.model.with_heads(heads))


def features_run(kind: str, features: int) -> RunConfig:
    """K features of a panel."""
    return sraven_run(SRAVEN_GRID, kind=kind, task=SravenConfig(features=features))


def held_out_run(kind: str, fraction: float) -> RunConfig:
    """A fraction of the rule combinations kept from training."""
    return sraven_run(SRAVEN_GRID, kind=kind, task=SravenConfig(held_out=fraction))


def over(axis: str, high: Any, low: Any, groups: Sequence[Axes]) -> tuple[Contrast, ...]:
    """In every group, one value of an axis above another."""
    return tuple(above({**group, axis: high}, {**group, axis: low}) for group in groups)


SMALLEST = {"millions": MILLIONS[0], "width": 1}
SMALL = Claim(
    "With little data and small models HYLA is better than the others",
    tuple(above({"kind": "hyla", **SMALLEST}, {"kind": kind, **SMALLEST}) for kind in THREE[:2]),
)


def _scaling(
    axis: str, values: Sequence[int], run: Callable[[str, int, int], RunConfig], where: str
) -> Experiment:
    widens = axis == "width"  # the smallest model is in both figures: it is judged in one of them
    larger = values if widens else values[1:]
    groups = [{"kind": kind, axis: value} for kind in THREE for value in larger]
    sizes = [{"kind": kind, "millions": millions} for kind in THREE for millions in MILLIONS]
    largest = {"millions": MILLIONS[-1], axis: values[-1]}

    def lines(title: str, measure: str, **options: Any) -> Figure:
        return Figure("lines", title, "millions", measure, "kind", axis, log=True, **options)

    return Experiment(
        name=f"scaling-{axis}",
        title=f"SRAVEN: more data, more {axis}",
        where=where,
        question=f"Do more data and more {axis} help?",
        points=lambda: scaling_points(axis, values, run),
        axes=("kind", "millions", axis),
        figures=(
            lines("Held-out accuracy", HELD_OUT, ceiling=True),
            lines("Held-out accuracy of single features", PER_FEATURE),
            lines("Accuracy on combinations of training", IN_DISTRIBUTION),
            lines("Training loss", TRAINING_LOSS, percent=False),
            *(_by_rule("kind", {"millions": MILLIONS[-1], axis: value}) for value in values),
        ),
        claims=(
            Claim("More data helps", over("millions", MILLIONS[-1], MILLIONS[0], groups)),
            Claim(f"More {axis} helps", over(axis, values[-1], values[0], sizes)),
            Claim(
                "With enough data and size all kinds solve 80 % of held-out instances",
                tuple(at_least(SOLVED, {"kind": kind, **largest}) for kind in THREE),
            ),
            *([SMALL] if widens else []),
        ),
        tiny={"millions": MILLIONS[-1:], axis: tuple(values[:2])},
        note="The smallest model has 4 layers of width 128; width 2 and 4 are multiples of its "
        "width, hidden size and number of heads. It is in both scaling figures: claims on it are "
        "judged with those on the width.",
    )


def _by_rule(axis: str, where: dict[str, Any]) -> Figure:
    place = ", ".join(f"{name} {value}" for name, value in where.items())
    title = f"Held-out accuracy over the instances that contain a rule ({place})"
    return Figure("rules", title, y="accuracy_by_rule", colour=axis, where=where, ceiling=True)


def _figures(axis: str, **options: Any) -> tuple[Figure, ...]:
    """Over an axis; by rule for each kind."""

    def lines(title: str, measure: str, **more: Any) -> Figure:
        return Figure("lines", title, axis, measure, "kind", **more, **options)

    return (
        lines("Held-out accuracy", HELD_OUT, ceiling=True),
        lines("Held-out accuracy of single features", PER_FEATURE),
        lines("Accuracy on combinations of training", IN_DISTRIBUTION),
        *(_by_rule(axis, {"kind": kind}) for kind in THREE),
    )


EACH: list[Axes] = [{"kind": kind} for kind in THREE]
WIDTH = _scaling("width", (1, 2, 4), width_run, "figures 4A and 10A")
DEPTH = _scaling("depth", (4, 8, 16), depth_run, "figures 4B and 10B")
HEADS_EXPERIMENT = Experiment(
    name="heads",
    title="SRAVEN: the number of heads",
    where="figure 5C",
    question="Does the number of heads matter?",
    points=lambda: _points("heads", HEADS, heads_run),
    axes=("kind", "heads"),
    figures=_figures("heads", log=True),
    claims=(Claim("A single head, without the hypernetwork, hurts", over("heads", 16, 1, EACH)),),
    tiny={"heads": (1, 4)},
    note="Queries, keys and values of all heads together keep their size of 64. Of a single head "
    "RMSHead leaves only the sign of the score, whose gradient is 0 but for scores near 0.",
)
FEATURES = Experiment(
    name="features",
    title="SRAVEN: the number of features",
    where="figure 5D",
    question="Are more features harder?",
    points=lambda: _points("features", FEATURE_NUMBERS, features_run),
    axes=("kind", "features"),
    figures=_figures("features"),
    claims=(Claim("More features are harder", over("features", 2, 5, EACH)),),
    tiny={"features": (2, 3)},
)
HELD_OUT_FRACTION = Experiment(
    name="held-out",
    title="SRAVEN: the fraction of rule combinations held out",
    where="figure 11",
    question="Is SRAVEN harder if more combinations are held out?",
    points=lambda: _points("held_out", (0.25, 0.5, 0.75), held_out_run),
    axes=("kind", "held_out"),
    figures=_figures("held_out"),
    tiny={"held_out": (0.25, 0.5)},
    note="The paper makes no claim about it in words.",
)
