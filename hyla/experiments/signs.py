"""Whether the trained models tell addition from subtraction."""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any, cast

from hyla.analysis.arithmetic import ArithmeticAnswers, arithmetic_answers
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
Answers = dict[str, ArithmeticAnswers]  # by rule


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
    chosen = chosen_models(runs)
    if not chosen:
        return []
    held_out, training = [], []
    for number, one in enumerate(chosen, start=1):
        say(f"answers of model {number}/{len(chosen)}")
        held_out.append(_answers(one, "held_out", INSTANCES[scale]))
        training.append(_answers(one, "train", INSTANCES[scale]))
    measures = {TOLD_APART: _told_apart(held_out), f"{TOLD_APART}, training": _told_apart(training)}
    for rule, other in OTHER.items():
        for name, part in ((f"{rule}: right", "right"), (f"{rule}: as {other}", "other")):
            measures[name] = spread([100 * getattr(one[rule], part) for one in held_out])
    settings = {"hyperparameters": hyperparameters(chosen[0]), "instances": INSTANCES[scale]}
    return [{**point.axes, **measures[TOLD_APART], "measures": measures, **settings}]


def _answers(trained: Trained, split: str, instances: int) -> Answers:
    """To instances that no training reaches."""
    config, population = load_run(trained.run.path)
    task = Sraven(cast(SravenConfig, config.task), trained.seed)
    last = FIRST_EVALUATION_INSTANCE + instances
    batch = task.batch(split, range(FIRST_EVALUATION_INSTANCE, last))
    return arithmetic_answers(member(population, trained.number), batch)


def _told_apart(models: Sequence[Answers]) -> dict[str, Any]:
    """The mean of both rules, over seeds."""
    return spread([100 * mean(one[rule].told_apart for rule in OTHER) for one in models])


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
            "the answers that either gives the percent that are right, 50 by chance.",
        ),
    ),
    note="The models of table 1 whose codes are looked at, and those of 16 layers with 10 million "
    "instances.",
)
