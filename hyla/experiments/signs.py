"""Whether the trained models tell addition from subtraction."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import mean

from torch import Tensor

from hyla.analysis.arithmetic import (
    ArithmeticAnswers,
    arithmetic_answers,
    best_symbols,
    judge_answers,
)
from hyla.experiments.ablation import SRAVEN_GRID
from hyla.experiments.declare import Experiment, Figure, Point, Row
from hyla.experiments.rows import FinishedRun, Trained, chosen_models, hyperparameters, spread
from hyla.experiments.sraven import ATTENTIONS, MILLION, depth_run
from hyla.layers import member
from hyla.tasks.sraven import Sraven, SravenConfig
from hyla.train.config import sraven_run
from hyla.train.population import FIRST_EVALUATION_INSTANCE
from hyla.train.trained import load_run

INSTANCES = {"paper": 8192, "small": 4096, "smoke": 256}
OTHER = {"addition": "subtraction", "subtraction": "addition"}
TOLD_APART = "told apart"


def points() -> list[Point]:
    """The models whose codes are looked at: those of table 1, and the deepest with least data."""
    found = [
        Point(
            {"attention": attention, "depth": 4, "millions": 20},
            sraven_run(SRAVEN_GRID, attention=attention),
        )
        for attention in ATTENTIONS
    ]
    deepest = {"attention": "softmax", "depth": 16, "millions": 10}
    return [*found, Point(deepest, depth_run("softmax", 10 * MILLION, 16))]


def told_apart(
    point: Point, runs: Sequence[FinishedRun], scale: str, say: Callable[[str], None]
) -> list[Row]:
    """One row; `mean` is of the answers that either rule gives the percent that are right."""
    chosen, measures = chosen_models(runs), defaultdict(list)
    for number, one in enumerate(chosen, start=1):
        say(f"answers of model {number}/{len(chosen)}")
        for name, value in _of_model(one, INSTANCES[scale]).items():
            measures[name].append(100 * value)
    if not chosen:
        return []
    found = {name: spread(values) for name, values in measures.items()}
    settings = {"hyperparameters": hyperparameters(chosen[0]), "asked": INSTANCES[scale]}
    return [{**point.axes, **found[TOLD_APART], "measures": found, **settings}]


def _of_model(trained: Trained, instances: int) -> dict[str, float]:
    """What is measured of a model, on instances that no training reaches."""
    config, population = load_run(trained.run.path)
    assert isinstance(config.task, SravenConfig)
    model, task = member(population, trained.number), Sraven(config.task, trained.seed)
    numbers = range(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + instances)
    batch, training = (task.batch(split, numbers) for split in ("held_out", "train"))
    answers = best_symbols(model, batch)
    found = judge_answers(answers, batch)
    right, swapped = answers == batch.targets, answers == batch.other_sign
    parts = {
        TOLD_APART: _both(found),
        f"{TOLD_APART}, training": _both(arithmetic_answers(model, training)),
        "solved": _all(right),
        "solved but for signs": _all(right | swapped),
    }
    for rule, other in OTHER.items():
        parts |= {f"{rule}: right": found[rule].right, f"{rule}: as {other}": found[rule].other}
    return parts


def _all(right_BK: Tensor) -> float:
    """The part of the instances of which all features are right."""
    return float(right_BK.all(dim=-1).double().mean())


def _both(answers: dict[str, ArithmeticAnswers]) -> float:
    """The mean of both rules."""
    return mean(answers[rule].told_apart for rule in OTHER)


SIGNS = Experiment(
    name="signs",
    title="SRAVEN: is addition told from subtraction?",
    where="nothing; beside table 1 and figure 5E",
    points=points,
    make=told_apart,
    axes=("attention", "depth", "millions"),
    keep=True,
    figures=(
        Figure(
            "measures",
            "Answers to held-out features under addition and subtraction, percent",
            x="attention",
            y="depth",
            caption="Of features for which the two rules give different symbols. Told apart: of "
            "the answers that either gives the percent that are right, 50 by chance. Solved: all "
            "features of an instance; but for signs: if those with the other sign counted too.",
        ),
    ),
    note="The models of table 1 whose codes are looked at, and those of 16 layers with 10 million "
    "instances.",
)
