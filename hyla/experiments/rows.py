"""From trained populations to results: which hyperparameters are chosen, and what is reported.

Hyperparameters are chosen by the loss on validation instances (tasks of training, instances that
nothing else is measured on), averaged over seeds, or on the first one if only that was searched.
What is reported plays no part in it. The paper reports the optimal setting of its grid; the best by
what is reported, of those that all seeds have, stands beside ours as `paper_choice`.
"""

import json
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

import hyla
from hyla.analysis.activity import active_units, has_units
from hyla.experiments.declare import (
    HELD_OUT,
    IN_DISTRIBUTION,
    PER_FEATURE,
    TRAINING_LOSS,
    UNKNOWN,
    Point,
    Row,
)
from hyla.layers import member as one_member
from hyla.tasks.sraven import SravenConfig
from hyla.tasks.sraven_stats import Statistics, statistics
from hyla.train.config import MAIN_MEASURES, VALIDATION, RunConfig
from hyla.train.objective import make_objective
from hyla.train.runs import METRICS
from hyla.train.trained import ORIGIN, load_run

SPLIT_OF = {HELD_OUT: "held_out", IN_DISTRIBUTION: "train", UNKNOWN: "unknown"}
BY_RULE = ("accuracy_by_rule", "feature_accuracy_by_rule")
SIGN_PARTS = "signs"  # answers under addition and subtraction: right, or with the other sign
ACTIVE_INSTANCES = 64
CEILING_INSTANCES = {"paper": 16_384, "small": 4096, "demo": 4096, "smoke": 256}  # of each seed
Settings = tuple[float, float, int]
SETTING = ("learning_rate", "weight_decay", "warmup")


@dataclass(frozen=True)
class FinishedRun:
    """A run folder that has all it was to have."""

    path: Path
    config: RunConfig
    summary: dict[str, Any]
    environment: dict[str, Any]
    devices: Sequence[str] = ()


@dataclass(frozen=True)
class Trained:
    """One member of a run that has ended."""

    run: FinishedRun
    number: int
    result: dict[str, Any]  # its part of the summary

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.result["seed"]

    @property
    def settings(self) -> Settings:
        """Its hyperparameters."""
        return tuple(self.result[name] for name in SETTING)

    def measure(self, name: str) -> float | None:
        """Percent of a reported measure, or the training loss; None if it diverged."""
        if name == TRAINING_LOSS:
            return self.result["loss"]
        if name == PER_FEATURE:
            value = self._evaluated("held_out", "feature_accuracy")
        else:
            value = self._evaluated(SPLIT_OF[name], MAIN_MEASURES[self.run.config.task_name])
        return None if value is None else 100 * value

    @property
    def validation_loss(self) -> float:
        """What hyperparameters are chosen by; infinite for a member that diverged."""
        value = self._evaluated(VALIDATION, "loss")
        return math.inf if value is None else value

    def by_rule(self, name: str) -> dict[str, float | None]:
        """Percent for each rule (or sign), on held-out instances."""
        found = self._evaluated("held_out", name) or {}
        return {rule: None if value is None else 100 * value for rule, value in found.items()}

    def _evaluated(self, split: str, name: str) -> Any:
        return ((self.result["evaluation"] or {}).get(split) or {}).get(name)


def members_of(runs: Sequence[FinishedRun]) -> list[Trained]:
    """All members of the runs of a point."""
    return [
        Trained(run, number, result)
        for run in runs
        for number, result in enumerate(run.summary["members"])
    ]


def by_settings(members: Sequence[Trained]) -> dict[Settings, list[Trained]]:
    """Members with the same hyperparameters, by seed."""
    groups: dict[Settings, list[Trained]] = {}
    for member in sorted(members, key=lambda member: member.seed):
        groups.setdefault(member.settings, []).append(member)
    return groups


def choose(members: Sequence[Trained]) -> list[Trained]:
    """The members with the best hyperparameters: least mean validation loss over seeds.

    The mean is over the seeds that every setting has, so that a search on one seed is fair. A
    setting of which fewer members diverged comes first.
    """
    return _best(members, lambda member: member.validation_loss)


def chosen_models(runs: Sequence[FinishedRun]) -> list[Trained]:
    """The chosen members that have not diverged."""
    return [m for m in choose(members_of(runs)) if m.result["evaluation"] is not None]


def paper_choice(members: Sequence[Trained]) -> list[Trained]:
    """The members with the best mean of what is reported, as the paper chooses.

    Of the settings that have all seeds: after a search on the first seed that is one.
    """
    groups = by_settings(members).values()
    seeds = max(map(len, groups))
    members = [member for group in groups if len(group) == seeds for member in group]

    def lost(member: Trained) -> float:
        value = member.measure(HELD_OUT)
        return math.inf if value is None else -value

    return _best(members, lost)


def _best(members: Sequence[Trained], cost: Callable[[Trained], float]) -> list[Trained]:
    shared = shared_seeds(members)

    def order(group: list[Trained]) -> tuple[int, float]:
        costs = [cost(m) for m in group if m.seed in shared]
        there = [value for value in costs if math.isfinite(value)]
        return len(costs) - len(there), mean(there) if there else math.inf

    return min(by_settings(members).values(), key=order)


def shared_seeds(members: Sequence[Trained]) -> set[int]:
    """The seeds that every setting has; all of them if there is none."""
    groups = by_settings(members).values()
    shared = set.intersection(*({member.seed for member in group} for group in groups))
    return shared or {member.seed for member in members}


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and standard error over seeds; those that diverged have no value.

    >>> spread([1.0, 3.0])
    {'mean': 2.0, 'standard_error': 1.0, 'per_seed': [1.0, 3.0]}
    """
    there = [value for value in values if value is not None]
    error = stdev(there) / math.sqrt(len(there)) if len(there) > 1 else None
    return {
        "mean": mean(there) if there else None,
        "standard_error": error,
        "per_seed": list(values),
    }


def measured(point: Point, runs: Sequence[FinishedRun], scale: str) -> list[Row]:
    """One row: the held-out measure of the chosen members, and all else that they were asked."""
    members = members_of(runs)
    chosen, theirs = choose(members), paper_choice(members)
    config = runs[0].config
    is_sraven = isinstance(config.task, SravenConfig)
    names = [HELD_OUT, IN_DISTRIBUTION, TRAINING_LOSS]
    names += [PER_FEATURE] if is_sraven else []
    names += [UNKNOWN] if "unknown" in config.splits else []
    row: Row = {
        **point.axes,
        **spread([m.measure(HELD_OUT) for m in chosen]),
        **paper_values(point),
        "hyperparameters": hyperparameters(chosen[0]),
        "paper_choice": spread([m.measure(HELD_OUT) for m in theirs])
        | {"hyperparameters": hyperparameters(theirs[0])},
        "measures": {name: spread([m.measure(name) for m in chosen]) for name in names},
        "grid": list(_grid(members)),
        "chosen_members": [[m.run.path.name, m.number] for m in chosen],
    }
    if has_units(config.model):
        row["active_units"] = [
            active_by_layer(m) if m.result["evaluation"] else None for m in chosen
        ]
    if isinstance(config.task, SravenConfig):
        row |= {name: _by_rule(chosen, name) for name in (*BY_RULE, SIGN_PARTS)}
        # Each seed holds out other combinations.
        seeds = [member.seed for member in chosen]
        row |= solver_measures(config.task, CEILING_INSTANCES[scale], seeds)
        row |= {"curves": _curves(chosen)}
    return [row]


def paper_values(point: Point) -> dict[str, float | None]:
    """What the paper has at a point, if it says so in numbers."""
    mean_, error = point.paper or (None, None)
    return {"paper_mean": mean_, "paper_standard_error": error}


def active_by_layer(member: Trained) -> list[float]:
    """Of each layer, the percent of its value networks' units that are on: 0 is a dead layer."""
    config, population = load_run(member.run.path)
    task = make_objective(config.task, [member.seed], torch.device("cpu")).task
    inputs = task.batch("train", torch.arange(ACTIVE_INSTANCES)).inputs[0]
    inputs = inputs.to(next(population.parameters()).dtype)
    found = active_units(one_member(population, member.number), inputs)
    return [float(f"{100 * units.mean():.4g}") for units in found.values()]


def hyperparameters(member: Trained) -> dict[str, Any]:
    """By name, as in a member's configuration."""
    return dict(zip(SETTING, member.settings, strict=True))


def provenance(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Where a row comes from."""
    if ORIGIN in runs[0].summary:  # kept models
        return dict(runs[0].summary[ORIGIN])
    config, environment = runs[0].config, runs[0].environment
    versions = {name: environment.get(name) for name in ("hyla", "torch", "python", "cuda")}
    devices = dict.fromkeys(name for run in runs for name in run.devices)
    return {
        "members": sum(len(run.config.members) for run in runs),
        "instances": config.steps * config.batch,
        "precision": config.precision,
        "device": " and ".join(devices) or environment.get("device"),
        "versions": versions,
        "seconds": round(sum(run.summary["seconds"] for run in runs), 1),
        "runs": [run.path.name for run in runs],
    }


def untrained(seconds: float) -> dict[str, Any]:
    """Where a row comes from that needs no training."""
    versions = {"hyla": hyla.__version__, "torch": torch.__version__}
    versions["python"] = platform.python_version()
    return {"device": platform.machine(), "versions": versions, "seconds": round(seconds, 1)}


def solver_measures(task: SravenConfig, instances: int, seeds: Sequence[int]) -> dict[str, Any]:
    """What the exact solver gets right of held-out instances, if all rules are possible.

    In percent, means over seeds: the accuracy, a ceiling, and that of the features which a rule
    governs, of which one may be exceeded at the cost of others.
    """
    found = [_solver_statistics(task, instances, seed) for seed in seeds]
    by_rule: dict[str, list[float]] = {}
    for one in found:
        for rule, estimate in one.feature_accuracy_by_rule.items():
            by_rule.setdefault(rule, []).append(100 * estimate.value)
    return {
        "ceiling": 100 * mean(one.ceiling.value for one in found),
        "solver_by_rule": {rule: mean(values) for rule, values in by_rule.items()},
    }


@cache
def _solver_statistics(task: SravenConfig, instances: int, seed: int) -> Statistics:
    return statistics(task, "held_out", instances, prior="all", seed=seed)


def _grid(members: Sequence[Trained]) -> Iterator[dict[str, Any]]:
    """Each setting with the loss that it is chosen by, of the seeds that all settings have."""
    shared = shared_seeds(members)
    for group in by_settings(members).values():
        losses = [m.validation_loss for m in group if m.seed in shared]
        held_out = spread([m.measure(HELD_OUT) for m in group])
        setting = hyperparameters(group[0]) | {
            "validation_loss": mean(losses) if all(map(math.isfinite, losses)) else None,
            "held_out": held_out["mean"],
            "per_seed": held_out["per_seed"],
            "seeds": len(group),
        }
        if SPLIT_OF[UNKNOWN] in group[0].run.config.splits:
            setting[UNKNOWN] = [m.measure(UNKNOWN) for m in group]
        yield setting


def _by_rule(members: Sequence[Trained], name: str) -> dict[str, dict[str, Any]]:
    found = [member.by_rule(name) for member in members]
    rules = dict.fromkeys(rule for one in found for rule in one)
    return {rule: spread([one.get(rule) for one in found]) for rule in rules}


def _curves(members: Sequence[Trained]) -> dict[str, Any]:
    """Held-out accuracy while training, whole and for the features of each rule."""
    points: dict[int, list[dict[str, Any]]] = {}
    for member in members:
        with (member.run.path / METRICS).open() as lines:
            for line in lines:
                record = json.loads(line)
                if record.get("split") == "held_out" and record["member"] == member.number:
                    points.setdefault(record["step"], []).append(record)
    steps = sorted(points)
    rules = [*points[steps[0]][0][BY_RULE[1]]] if steps else []

    def percent(step: int, name: str, rule: str | None = None) -> float | None:
        values = [r[name] if rule is None else r[name][rule] for r in points[step]]
        there = [value for value in values if value is not None]
        return round(100 * mean(there), 3) if there else None

    return {
        "step": steps,
        "accuracy": [percent(step, "accuracy") for step in steps],
        "by_rule": {rule: [percent(step, BY_RULE[1], rule) for step in steps] for rule in rules},
    }
