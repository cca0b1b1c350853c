"""Figures 2C and 9: fuzzy logic over the number of examples and the fraction held out."""

from itertools import product

from hyla.experiments.paper.runs import FUZZY_GRID, fuzzy_logic_run
from hyla.experiments.paper.sraven import THREE
from hyla.experiments.spec import (
    HELD_OUT,
    IN_DISTRIBUTION,
    TRAINING_LOSS,
    UNKNOWN,
    Axes,
    Claim,
    Contrast,
    Experiment,
    Figure,
    Point,
    Term,
    above,
    at_least,
)
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig

EXAMPLES, HELD_OUT_FRACTIONS = (16, 32, 64, 96), (0.3, 0.5, 0.7)
LEAST, MOST = HELD_OUT_FRACTIONS[0], HELD_OUT_FRACTIONS[-1]
SOLVED = 95.0  # R2 in percent, from which on functions are learned
EASIEST = {"examples": EXAMPLES[-1], "held_out": LEAST}


def _axes(kind: str, examples: int, held_out: float) -> Axes:
    return {"kind": kind, "examples": examples, "held_out": held_out}


def points() -> list[Point]:
    """The setting of table 1 first."""
    examples = sorted(EXAMPLES, key=lambda n: n != 32)
    found = []
    for fraction, count, kind in product(HELD_OUT_FRACTIONS[::-1], examples, THREE):
        task = FuzzyLogicConfig(examples=count, held_out=fraction)
        config = fuzzy_logic_run(FUZZY_GRID, kind=kind, task=task)
        found.append(Point(_axes(kind, count, fraction), config))
    return found


def _fall(kind: str, examples: int) -> Contrast:
    """What a kind loses between the least and the most held out."""
    return above(_axes(kind, examples, LEAST), _axes(kind, examples, MOST))


def _lead(other: str, examples: int, held_out: float, measure: str = HELD_OUT) -> Contrast:
    """By how much HYLA is above another kind."""
    return above(_axes("hyla", examples, held_out), _axes(other, examples, held_out), measure)


HARDER = tuple(_fall(kind, examples) for examples in EXAMPLES for kind in THREE)
FALLS_LESS = tuple(_fall(o, n) - _fall("hyla", n) for n in EXAMPLES for o in THREE[:2])
BEST_WITH_MOST = tuple(_lead(other, n, MOST) for n in EXAMPLES for other in THREE[:2])
CLOSER = tuple(
    _lead(other, n, fraction) - _lead(other, n, fraction, IN_DISTRIBUTION)
    for n, fraction, other in product(EXAMPLES, HELD_OUT_FRACTIONS, THREE[:2])
)
UNSOLVED = tuple(
    Contrast((Term(0.5, axes, IN_DISTRIBUTION), Term(-1.0, axes, UNKNOWN)))
    for n, fraction, kind in product(EXAMPLES, HELD_OUT_FRACTIONS, THREE)
    for axes in [_axes(kind, n, fraction)]
)


def _over_examples(title: str, measure: str, colour: str, *, percent: bool = True) -> Figure:
    return Figure(
        "lines", title, "examples", measure, colour, "held_out", percent=percent, log=True
    )  # fmt: skip


def r2_over_examples(colour: str) -> tuple[Figure, ...]:
    """The R2 of each split over the number of examples, a panel for each fraction held out."""
    measures = {
        HELD_OUT: "R2 on held-out combinations of known terms",
        IN_DISTRIBUTION: "R2 on functions of training",
        UNKNOWN: "R2 on functions of unknown terms",
    }
    return tuple(_over_examples(title, measure, colour) for measure, title in measures.items())


FUZZY_LOGIC = Experiment(
    name="fuzzy",
    title="Fuzzy logic: examples in context and fraction held out",
    where="figures 2C and 9",
    question="Who generalises to new combinations of known terms?",
    points=points,
    axes=("kind", "examples", "held_out"),
    figures=(
        *r2_over_examples("kind"),
        _over_examples("Training loss", TRAINING_LOSS, "kind", percent=False),
    ),
    claims=(
        Claim(
            "Given enough examples, all kinds solve the task",
            tuple(at_least(SOLVED, {"kind": kind, **EASIEST}) for kind in THREE),
        ),
        Claim("With more held out, compositional generalisation falls", HARDER),
        Claim("HYLA falls less than softmax and linear attention", FALLS_LESS),
        Claim(
            "With most held out, HYLA generalises better than softmax and linear attention",
            BEST_WITH_MOST,
        ),
        Claim("HYLA is ahead by less in distribution than on held-out functions", CLOSER),
        Claim("No model solves functions of unknown terms", UNSOLVED),
    ),
    tiny={"examples": (16,), "held_out": (0.3, 0.7)},
    note="Solved: an R2 of 95 percent. Unknown terms are unsolved where the R2 is less than half "
    "of that in distribution.",
)
