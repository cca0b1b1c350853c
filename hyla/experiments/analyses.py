"""What is measured on tasks without a model: the exact solver, baselines, ambiguity."""

import math
from typing import Any

from torch import Tensor

from hyla.experiments.spec import CEILING, HELD_OUT, IN_DISTRIBUTION, UNKNOWN, Analysis
from hyla.tasks import fuzzy_readers, sraven_readers
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.sraven import RULES, Sraven, SravenConfig
from hyla.tasks.sraven_stats import (
    number_of_instances,
    number_of_laid_out_tasks,
    number_of_tasks,
    statistics,
)
from hyla.train.population import FIRST_EVALUATION_INSTANCE
from hyla.train.store import Entry

BY_RULE = "feature_accuracy_by_rule"
TASKS, LAID_OUT = "log10 of tasks", "log10 of tasks, laid out"
POSSIBLE = "log10 of possible instances"
AMBIGUOUS = "ambiguous"


def _instances(count: int) -> range:
    return range(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + count)


def _solver(task: SravenConfig, seed: int, instances: int) -> list[Entry]:
    """What the exact solver gets right of held-out instances, if all combinations are possible.

    The accuracy is a ceiling. That of the features which a rule governs may be exceeded, at the
    cost of others.
    """
    found = statistics(task, "held_out", instances, prior="all", seed=seed)
    by_rule: dict[str, float | None] = {
        rule: 100 * one.value for rule, one in found.feature_accuracy_by_rule.items()
    }
    return [Entry(measures={CEILING: 100 * found.ceiling.value}, details={"solver": by_rule})]


SOLVER = Analysis("solver", "data", {"instances": 16_384}, _solver)


def _fuzzy_reader(task: FuzzyLogicConfig, seed: int, reader: str, instances: int) -> list[Entry]:
    splits = {HELD_OUT: "held_out", IN_DISTRIBUTION: "train", UNKNOWN: "unknown"}
    measures: dict[str, float | None] = {}
    for name, split in splits.items():
        r2 = fuzzy_readers.explained(reader, task, split, _instances(instances), seed)
        measures[name] = 100 * float(r2.double().mean())
    return [Entry(measures=measures)]


def fuzzy_reader(reader: str) -> Analysis:
    """A baseline on fuzzy logic, on as many instances as models are evaluated on."""
    return Analysis("fuzzy reader", "data", {"reader": reader, "instances": 16_000}, _fuzzy_reader)


def _sraven_reader(task: SravenConfig, seed: int, reader: str, instances: int) -> list[Entry]:
    measures: dict[str, float | None] = {}
    by_rule: dict[str, float | None] = {}
    for name, split in ((HELD_OUT, "held_out"), (IN_DISTRIBUTION, "train")):
        batch = Sraven(task, seed).batch(split, _instances(instances))
        answers = sraven_readers.read(reader, batch.panels, task)
        right_BK = answers.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
        measures[name] = 100 * float(right_BK.prod(dim=-1).mean())
        by_rule = by_rule or _percent_by_rule(right_BK, batch.target_rules)
    return [Entry(measures=measures, details={BY_RULE: by_rule})]


def sraven_reader(reader: str) -> Analysis:
    """A baseline on SRAVEN, on as many instances as models are evaluated on."""
    settings = {"reader": reader, "instances": 51_200}
    return Analysis("sraven reader", "data", settings, _sraven_reader)


def _percent_by_rule(right_BK: Tensor, rules_BK: Tensor) -> dict[str, float | None]:
    """Of the features that each rule governs; None if there are none."""
    by_rule = {name: right_BK[rules_BK == rule] for rule, name in enumerate(RULES)}
    return {name: 100 * float(x.mean()) if len(x) else None for name, x in by_rule.items()}


def _ambiguity(task: SravenConfig, seed: int, instances: int) -> list[Entry]:
    """How many instances have several answers, and how many are solved at most."""
    found = statistics(task, "all", instances, seed=seed)
    held_out = statistics(task, "held_out", instances, prior="all", seed=seed)
    estimates: dict[str, Any] = {
        AMBIGUOUS: found.ambiguous,
        "ambiguous in every feature": found.ambiguous_every_feature,
        "ambiguous feature by feature": found.ambiguous_feature_by_feature,
        "ceiling": found.ceiling,
        "ceiling on held-out": held_out.ceiling,
    }
    counts = {
        TASKS: number_of_tasks(task.features),
        LAID_OUT: number_of_laid_out_tasks(task.features),
        POSSIBLE: number_of_instances(task.features, task.values),
    }
    measures = {name: 100 * one.value for name, one in estimates.items()}
    errors = {name: 100 * one.standard_error for name, one in estimates.items()}
    logarithms = {name: math.log10(count) for name, count in counts.items()}
    return [Entry(measures=measures | logarithms, errors=errors)]


AMBIGUITY = Analysis("ambiguity", "task", {"instances": 65_536}, _ambiguity)
