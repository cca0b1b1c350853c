"""What is measured on tasks without a model: the exact solver, baselines, ambiguity."""

import math
from typing import Any

from torch import Tensor

from hyla.tasks.base import FIRST_EVALUATION_INSTANCE
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.fuzzy_logic import baselines as fuzzy_baselines
from hyla.tasks.sraven import RULES, Sraven, SravenConfig
from hyla.tasks.sraven import baselines as sraven_baselines
from hyla.tasks.sraven.stats import (
    number_of_instances,
    number_of_laid_out_tasks,
    number_of_tasks,
    statistics,
)
from hyla.train.store import Entry

CEILING, BY_RULE = "ceiling", "feature_accuracy_by_rule"
SPLITS = {"held out": "held_out", "in distribution": "train", "unknown terms": "unknown"}
TASKS, LAID_OUT = "log10 of tasks", "log10 of tasks, laid out"
POSSIBLE = "log10 of possible instances"
AMBIGUOUS = "ambiguous"


def _instances(count: int) -> range:
    return range(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + count)


def solver(task: SravenConfig, seed: int, instances: int) -> list[Entry]:
    """Measure the exact solver on held-out instances, with all combinations possible.

    Its accuracy is a ceiling; that of the features of one rule is not.
    """
    found = statistics(task, "held_out", instances, prior="all", seed=seed)
    by_rule: dict[str, float | None] = {
        rule: 100 * one.value for rule, one in found.feature_accuracy_by_rule.items()
    }
    return [Entry(measures={CEILING: 100 * found.ceiling.value}, details={"solver": by_rule})]


def fuzzy_reader(task: FuzzyLogicConfig, seed: int, reader: str, instances: int) -> list[Entry]:
    """Measure the R2 of a baseline on fuzzy logic."""
    measures: dict[str, float | None] = {}
    for name, split in SPLITS.items():
        r2 = fuzzy_baselines.explained(reader, task, split, _instances(instances), seed)
        measures[name] = 100 * float(r2.double().mean())
    return [Entry(measures=measures)]


def sraven_reader(task: SravenConfig, seed: int, reader: str, instances: int) -> list[Entry]:
    """Measure the accuracy of a baseline on SRAVEN, and of its single features by rule."""
    measures: dict[str, float | None] = {}
    by_rule: dict[str, float | None] = {}
    for name, split in list(SPLITS.items())[:2]:
        batch = Sraven(task, seed).batch(split, _instances(instances))
        answers = sraven_baselines.read(reader, batch.panels, task)
        right_BK = answers.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
        measures[name] = 100 * float(right_BK.prod(dim=-1).mean())
        by_rule = by_rule or _percent_by_rule(right_BK, batch.target_rules)
    return [Entry(measures=measures, details={BY_RULE: by_rule})]


def _percent_by_rule(right_BK: Tensor, rules_BK: Tensor) -> dict[str, float | None]:
    """Of the features that each rule governs; None if there are none."""
    by_rule = {name: right_BK[rules_BK == rule] for rule, name in enumerate(RULES)}
    return {name: 100 * float(x.mean()) if len(x) else None for name, x in by_rule.items()}


def ambiguity(task: SravenConfig, seed: int, instances: int) -> list[Entry]:
    """Measure how many instances have several answers, and how many can be solved at most."""
    found = statistics(task, "all", instances, seed=seed)
    held_out = statistics(task, "held_out", instances, prior="all", seed=seed)
    estimates: dict[str, Any] = {
        AMBIGUOUS: found.ambiguous,
        "ambiguous in every feature": found.ambiguous_every_feature,
        "the same, counted loosely": found.ambiguous_every_feature_loose,
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
