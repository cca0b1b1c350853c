"""Fuzzy logic over the number of examples and the fraction held out."""

from collections.abc import Sequence
from typing import Any

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
from hyla.experiments.judge import NOT_MEASURED, all_above, find, outcome, shown
from hyla.experiments.rows import measured
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.train.config import fuzzy_logic_run

ATTENTIONS = ("softmax", "linear", "hyla")
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
    """All models explain less than half of what they explain on functions of training."""
    names = (UNKNOWN, IN_DISTRIBUTION)
    there = [row for row in rows if all(_mean(row, name) is not None for name in names)]
    if not there:
        return NOT_MEASURED
    best = max(there, key=lambda row: row["measures"][UNKNOWN]["mean"])
    where = f"{best['attention']}, {best['examples']} examples, {best['held_out']} held out"
    evidence = f"best of {len(there)} (of {len(points())}): R2 {shown(best, UNKNOWN)} ({where}), "
    evidence += f"in distribution {shown(best, IN_DISTRIBUTION)}"
    unsolved = [_mean(row, UNKNOWN) <= max(0.0, _mean(row, IN_DISTRIBUTION) / 2) for row in there]
    whole = len(there) == len(points())
    return Verdict(outcome([*unsolved, whole], [all(unsolved)]), evidence)


def _mean(row: Row, name: str) -> Any:
    return row["measures"].get(name, {}).get("mean")


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
    """30 % against 70 % held out, with the examples of the ablation table."""
    return all_above(
        [
            (
                find(rows, attention=attention, examples=32, held_out=0.3),
                find(rows, attention=attention, examples=32, held_out=0.7),
                f"{attention}, 32 examples, 30 against 70 % held out",
            )
            for attention in ATTENTIONS
        ]
    )


def _lines(title: str, measure: str, *, percent: bool = True) -> Figure:
    return Figure(
        "lines", title, "examples", measure, "attention", "held_out", percent=percent, log=True
    )


FUZZY_LOGIC = Experiment(
    name="fuzzy",
    title="Fuzzy logic: examples in context and fraction held out",
    where="figures 2C and 9",
    points=points,
    make=measured,
    axes=("attention", "examples", "held_out"),
    figures=(
        _lines("R2 on held-out combinations of known terms", HELD_OUT),
        _lines("R2 on functions of training", IN_DISTRIBUTION),
        _lines("R2 on functions of unknown terms", UNKNOWN),
        _lines("Training loss", TRAINING_LOSS, percent=False),
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
)
