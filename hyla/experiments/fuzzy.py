"""Fuzzy logic over the number of examples and the fraction held out."""

from collections.abc import Sequence

from hyla.experiments.ablation import FUZZY_GRID
from hyla.experiments.declare import (
    HELD_OUT,
    IN_DISTRIBUTION,
    TRAINING_LOSS,
    UNKNOWN,
    Claim,
    Experiment,
    Figure,
    Point,
    Row,
    Verdict,
)
from hyla.experiments.judge import (
    NOT_MEASURED,
    all_above,
    find,
    outcome,
    shown,
    so_far,
)
from hyla.experiments.rows import measured
from hyla.experiments.sraven import ATTENTIONS
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.train.config import fuzzy_logic_run

EXAMPLES, HELD_OUT_FRACTIONS = (16, 32, 64, 96), (0.3, 0.5, 0.7)


def points() -> list[Point]:
    """The setting of the ablation table first."""
    found = []
    for fraction in reversed(HELD_OUT_FRACTIONS):
        for examples in sorted(EXAMPLES, key=lambda n: n != 32):
            for attention in ATTENTIONS:
                task = FuzzyLogicConfig(examples=examples, held_out=fraction)
                config = fuzzy_logic_run(FUZZY_GRID, attention=attention, task=task)
                axes = {"attention": attention, "examples": examples, "held_out": fraction}
                found.append(Point(axes, config))
    return found


def none_solves_unknown_terms(rows: Sequence[Row]) -> Verdict:
    """Every single model explains less than half of what it explains in distribution.

    One that has diverged explains nothing, and is not counted.
    """
    found = [(row, _unknown_and_known(row)) for row in rows]
    there = [(row, models) for row, models in found if models is not None]
    models = [(unknown, known, row) for row, some in there for unknown, known in some]
    if not models:
        return NOT_MEASURED
    unsolved = [unknown <= max(0.0, known / 2) for unknown, known, _ in models]
    unknown, known, row = max(models, key=lambda model: model[0])
    where = f"{row['attention']}, {row['examples']} examples, {row['held_out']:.0%} held out"
    evidence = (
        f"{sum(unsolved)} of {len(models)} models ({len(there)} of {len(points())} points) have an "
        f"R2 of less than half of that in distribution: the most is {unknown:.1f}, in distribution "
        f"{known:.1f} ({where}, where the mean over seeds is {shown(row, UNKNOWN)})"
    )
    judged = outcome(unsolved, unsolved)
    if len(there) < len(points()):
        judged = so_far(judged)
    return Verdict(judged, evidence)


def _unknown_and_known(row: Row) -> list[tuple[float, float]] | None:
    """Both measures of each seed that has not diverged; None if the row does not have them."""
    values = [row["measures"].get(n, {}).get("per_seed") for n in (UNKNOWN, IN_DISTRIBUTION)]
    if not all(isinstance(one, list) for one in values) or len({len(v) for v in values}) > 1:
        return None
    return [(u, k) for u, k in zip(*values, strict=True) if None not in (u, k)]


def hyla_suffers_less(rows: Sequence[Row]) -> Verdict:
    """HYLA against the others where most is held out."""
    return all_above(
        [
            (
                find(rows, attention="hyla", examples=examples, held_out=0.7),
                find(rows, attention=other, examples=examples, held_out=0.7),
                f"{examples} examples, 70 % held out, HYLA against {other}",
            )
            for examples in EXAMPLES
            for other in ("softmax", "linear")
        ]
    )


def harder_with_more_held_out(rows: Sequence[Row]) -> Verdict:
    """30 % against 70 % held out."""
    return all_above(
        [
            (
                find(rows, attention=attention, examples=examples, held_out=0.3),
                find(rows, attention=attention, examples=examples, held_out=0.7),
                f"{attention}, {examples} examples, 30 against 70 % held out",
            )
            for examples in EXAMPLES
            for attention in ATTENTIONS
        ]
    )


def _regression(row: Row) -> Row | None:
    is_it = row.get("reader") == "regression"
    return {**row, "attention": "regression, no model"} if is_it else None


def r2_over_examples(colour: str) -> tuple[Figure, ...]:
    """The R2 of each split over the number of examples, a panel for each fraction held out."""
    measures = {
        HELD_OUT: "R2 on held-out combinations of known terms",
        IN_DISTRIBUTION: "R2 on functions of training",
        UNKNOWN: "R2 on functions of unknown terms",
    }
    return tuple(
        Figure("lines", title, "examples", measure, colour, "held_out", log=True)
        for measure, title in measures.items()
    )


FUZZY_LOGIC = Experiment(
    name="fuzzy",
    title="Fuzzy logic: examples in context and fraction held out",
    where="figures 2C and 9",
    points=points,
    make=measured,
    axes=("attention", "examples", "held_out"),
    figures=(
        *r2_over_examples("attention"),
        Figure(
            "lines",
            "Training loss",
            "examples",
            TRAINING_LOSS,
            "attention",
            "held_out",
            percent=False,
            log=True,
        ),
    ),
    claims=(
        Claim("With more held out, compositional generalisation falls", harder_with_more_held_out),
        Claim(
            "With most held out, HYLA generalises better than softmax and linear attention",
            hyla_suffers_less,
        ),
        Claim("No model solves functions of unknown terms", none_solves_unknown_terms),
    ),
    smoke={"examples": (16,), "held_out": (0.3, 0.7)},
    note="Regression on the context, which knows nothing of terms, is a yardstick; the next "
    "section has others.",
    beside={"readers": _regression},
)
