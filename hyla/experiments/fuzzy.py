"""Fuzzy logic over the number of examples and the fraction held out."""

from collections.abc import Sequence
from itertools import product

from hyla.experiments.ablation import FUZZY_GRID
from hyla.experiments.declare import (
    HELD_OUT,
    IN_DISTRIBUTION,
    TRAINING_LOSS,
    UNKNOWN,
    Axes,
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
    gap_row,
    outcome,
    shown,
    so_far,
)
from hyla.experiments.results import is_at
from hyla.experiments.rows import measured
from hyla.experiments.sraven import ATTENTIONS
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.train.config import fuzzy_logic_run

EXAMPLES, HELD_OUT_FRACTIONS = (16, 32, 64, 96), (0.3, 0.5, 0.7)
LEAST, MOST = HELD_OUT_FRACTIONS[0], HELD_OUT_FRACTIONS[-1]
SOLVED = 95.0  # R2 in percent, from which on functions are learned


def points() -> list[Point]:
    """The setting of the ablation table first."""
    found = []
    for fraction in reversed(HELD_OUT_FRACTIONS):
        for examples in sorted(EXAMPLES, key=lambda n: n != 32):
            for attention in ATTENTIONS:
                task = FuzzyLogicConfig(examples=examples, held_out=fraction)
                config = fuzzy_logic_run(FUZZY_GRID, kind=attention, task=task)
                axes = {"kind": attention, "examples": examples, "held_out": fraction}
                found.append(Point(axes, config))
    return found


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def solved_with_enough_examples(rows: Sequence[Row]) -> Verdict:
    """For every kind, whether there is a setting in which its mean is `SOLVED`."""
    settings = len(EXAMPLES) * len(HELD_OUT_FRACTIONS)
    best, solved, missing = [], [], False
    for attention in ATTENTIONS:
        there = [row for row in rows if is_at(row, {"kind": attention})]
        there = [row for row in there if row.get("mean") is not None]
        best += [max(there, key=lambda row: row["mean"])] if there else []
        solved.append(bool(there) and best[-1]["mean"] >= SOLVED)
        missing |= len(there) < settings and not solved[-1]
    if not best:
        return NOT_MEASURED
    judged = outcome(solved, [False])
    told = f"{sum(solved)} of {len(solved)} have an R2 of {SOLVED:.0f} or more in a setting"
    told += " (not all settings of the others are measured)" * missing
    each = tuple(f"{row['attention']}, {_setting(row)}: {shown(row)}" for row in best)
    return Verdict(so_far(judged) if missing else judged, told, each)


def _setting(axes: Axes) -> str:
    return f"{axes['examples']} examples, {_percent(axes['held_out'])} held out"


def harder_with_more_held_out(rows: Sequence[Row]) -> Verdict:
    """The least held out against the most."""
    return all_above(
        [
            (
                find(rows, kind=attention, examples=examples, held_out=LEAST),
                find(rows, kind=attention, examples=examples, held_out=MOST),
                f"{attention}, {examples} examples, {_percent(LEAST)} held out against "
                f"{_percent(MOST)}",
            )
            for examples in EXAMPLES
            for attention in ATTENTIONS
        ]
    )


def hyla_falls_less(rows: Sequence[Row]) -> Verdict:
    """What the others lose between the least and the most held out, against what HYLA loses."""
    return all_above(
        [
            (
                _fall(rows, other, examples),
                _fall(rows, "hyla", examples),
                f"{examples} examples, {other} against HYLA",
            )
            for examples in EXAMPLES
            for other in ("softmax", "linear")
        ],
        about=f"R2 lost between {_percent(LEAST)} and {_percent(MOST)} held out",
    )


def _fall(rows: Sequence[Row], attention: str, examples: int) -> Row | None:
    """What one kind loses, as what is compared."""
    place = {"kind": attention, "examples": examples}
    least, most = (find(rows, **place, held_out=fraction) for fraction in (LEAST, MOST))
    return None if least is None or most is None else gap_row(least, most)


def hyla_is_best_with_most_held_out(rows: Sequence[Row]) -> Verdict:
    """HYLA against the others."""
    return all_above(
        [
            (
                find(rows, kind="hyla", examples=examples, held_out=MOST),
                find(rows, kind=other, examples=examples, held_out=MOST),
                f"{_setting({'examples': examples, 'held_out': MOST})}, HYLA against {other}",
            )
            for examples in EXAMPLES
            for other in ("softmax", "linear")
        ]
    )


def closer_in_distribution(rows: Sequence[Row]) -> Verdict:
    """The largest difference between two kinds on held-out functions and on those of training."""
    pairs = []
    for examples, fraction in product(EXAMPLES, HELD_OUT_FRACTIONS):
        place = {"examples": examples, "held_out": fraction}
        found = [find(rows, kind=attention, **place) for attention in ATTENTIONS]
        beyond, within = (_spread(found, name) for name in (HELD_OUT, IN_DISTRIBUTION))
        pairs.append((beyond, within, _setting(place)))
    about = "Largest difference between two kinds, held out against in distribution"
    return all_above(pairs, about=about)


def _spread(rows: Sequence[Row | None], name: str) -> Row | None:
    """Between the best and the worst kind, as what is compared; None if one is missing."""
    there = [row for row in rows if row and row["measures"].get(name, {}).get("mean") is not None]
    if len(there) < len(rows):
        return None
    there.sort(key=lambda row: row["measures"][name]["mean"])
    return gap_row(there[-1], there[0], name)


def none_solves_unknown_terms(rows: Sequence[Row]) -> Verdict:
    """Every single model explains less than half of what it explains in distribution.

    One that has diverged explains nothing, and is not counted. Those that were not chosen are told
    of, but not judged.
    """
    found = [(row, _unknown_and_known(row)) for row in rows]
    there = [(row, models) for row, models in found if models is not None]
    models = [(unknown, known, row) for row, some in there for unknown, known in some]
    if not models:
        return NOT_MEASURED
    unsolved = [unknown <= max(0.0, known / 2) for unknown, known, _ in models]
    unknown, known, row = max(models, key=lambda model: model[0])
    where = f"{row['attention']}, {_setting(row)}"
    told = (
        f"{sum(unsolved)} of {len(models)} models ({len(there)} of {len(points())} points) have an "
        f"R2 of less than half of that in distribution"
    )
    most = (
        f"the most is {unknown:.1f}, in distribution {known:.1f} ({where}, where the mean over "
        f"seeds is {shown(row, UNKNOWN)})"
    )
    judged = outcome(unsolved, unsolved)
    if len(there) < len(points()):
        judged = so_far(judged)
    return Verdict(judged, told, (most, *_of_all_trainings(rows)))


def _of_all_trainings(rows: Sequence[Row]) -> tuple[str, ...]:
    """What to say of the most that any training explains of unknown terms, chosen or not."""
    found = [
        (value, row, setting)
        for row in rows
        for setting in row.get("grid", ())
        for value in setting.get(UNKNOWN, ())
        if value is not None
    ]
    if not found:
        return ()
    most, row, setting = max(found, key=lambda one: one[0])
    return (
        f"of {len(found)} trainings of the searches, chosen or not, "
        f"{sum(value >= SOLVED for value, _, _ in found)} have an R2 of {SOLVED:.0f} or more, the "
        f"most {most:.1f} ({row['attention']}, {_setting(row)}, learning rate "
        f"{setting['learning_rate']}, weight decay {setting['weight_decay']})",
    )


def _unknown_and_known(row: Row) -> list[tuple[float, float]] | None:
    """Both measures of each seed that has not diverged; None if the row does not have them."""
    values = [row["measures"].get(n, {}).get("per_seed") for n in (UNKNOWN, IN_DISTRIBUTION)]
    if not all(isinstance(one, list) for one in values) or len({len(v) for v in values}) > 1:
        return None
    return [(u, k) for u, k in zip(*values, strict=True) if None not in (u, k)]


def _regression(row: Row) -> Row | None:
    is_it = row.get("reader") == "regression"
    return {**row, "kind": "regression, no model"} if is_it else None


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
        Claim("Given enough examples, all kinds solve the task", solved_with_enough_examples),
        Claim("With more held out, compositional generalisation falls", harder_with_more_held_out),
        Claim("HYLA falls less than softmax and linear attention", hyla_falls_less),
        Claim(
            "With most held out, HYLA generalises better than softmax and linear attention",
            hyla_is_best_with_most_held_out,
        ),
        Claim(
            "In distribution the kinds differ less than on held-out functions",
            closer_in_distribution,
        ),
        Claim("No model solves functions of unknown terms", none_solves_unknown_terms),
    ),
    smoke={"examples": (16,), "held_out": (0.3, 0.7)},
    note="Regression on the context, which knows nothing of terms, is a yardstick; the next "
    "section has others.",
    beside={"readers": _regression},
)
