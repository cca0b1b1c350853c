"""Whether trained models tell addition from subtraction, and which rows they look at."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import mean

from torch import Tensor

from hyla.analysis.answers import (
    ArithmeticAnswers,
    arithmetic_answers,
    best_symbols,
    judge_answers,
    kept_answers,
)
from hyla.experiments.ablation import SRAVEN_GRID
from hyla.experiments.declare import Experiment, Figure, Point, Row
from hyla.experiments.rows import FinishedRun, Trained, chosen_models, hyperparameters, spread
from hyla.experiments.sraven import ATTENTIONS, MILLION, depth_run, heads_run
from hyla.layers import member
from hyla.tasks.sraven import Sraven, SravenConfig
from hyla.train.config import RunConfig, sraven_run
from hyla.train.population import FIRST_EVALUATION_INSTANCE
from hyla.train.trained import load_run

INSTANCES = {"paper": 8192, "small": 4096, "smoke": 256}
OTHER = {"addition": "subtraction", "subtraction": "addition"}
TOLD_APART = "told apart"


def points() -> list[Point]:
    """Models of table 1, the deepest with least and most data, two with other numbers of heads."""
    table = [
        _point(attention, sraven_run(SRAVEN_GRID, kind=attention)) for attention in ATTENTIONS
    ]
    deepest = [_point("softmax", depth_run("softmax", n * MILLION, 16)) for n in (10, 40)]
    other_heads = [_point(one, heads_run(one, n)) for one, n in (("softmax", 4), ("hyla", 32))]
    return [*table, *deepest, *other_heads]


def _point(attention: str, config: RunConfig) -> Point:
    size = {"heads": config.model.heads, "depth": config.model.layers}
    millions = config.steps * config.batch // MILLION
    return Point({"kind": attention, **size, "millions": millions}, config)


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
    for row, part in kept_answers(model, batch).items():
        parts[f"kept, another {row}"] = part
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
    axes=("attention", "heads", "depth", "millions"),
    keep=True,
    figures=(
        Figure(
            "measures",
            "Answers to held-out instances, percent",
            x="attention",
            y="heads",
            facet="depth",
            colour="millions",
            caption="Told apart: of the answers that one of the two rules gives, where these "
            "differ, the percent that are right, 50 by chance. Solved: all features of an "
            "instance; but for signs: if those with the other sign counted too. Kept: answers that "
            "stay if a complete row is another instance's, 100 if it is not looked at. On fewer "
            "instances than other tables, whose numbers differ a little for that.",
        ),
    ),
    smoke={"heads": (16, 32), "millions": (10, 20)},  # 4 heads and 40 million are the same runs
    note="The models of table 1 whose codes are looked at, those of 16 layers with 10 and 40 "
    "million instances, and two with 4 and 32 heads.",
)
