"""The configuration of a run: JSON both ways, bad values by name."""

from dataclasses import replace
from typing import Any

import pytest
from helpers import tiny_run

from hyla.experiments.paper.runs import fuzzy_logic_run, sraven_run
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.sraven import SravenConfig
from hyla.train import Member, RunConfig, grid


def test_json_both_ways() -> None:
    members = grid(range(3), [3e-4, 1e-3], [0.1], [100])
    for config in (sraven_run(members), fuzzy_logic_run(members), tiny_run("sraven")):
        assert RunConfig.from_json(config.to_json()) == config


def test_the_papers_runs() -> None:
    members = grid(range(3), [3e-4, 1e-3], [0.1, 0.3], [1000, 3000])
    assert len(members) == 24
    assert len({*members}) == 24
    assert [member.seed for member in members[:4]] == [0, 1, 2, 0]
    assert sraven_run(members, instances=40_000_000).steps == 312_500
    large = sraven_run(members, layers=16, width_factor=4, task=SravenConfig(features=6))
    assert (large.model.layers, large.model.heads, large.model.buckets) == (16, 64, 54)
    fuzzy = fuzzy_logic_run(members, task=FuzzyLogicConfig(examples=96, held_out=0.5))
    assert (fuzzy.steps * fuzzy.batch, fuzzy.model.buckets) == (6_400_000, 96)
    assert fuzzy.splits == ("train", "held_out", "unknown")
    assert fuzzy_logic_run(members, task=FuzzyLogicConfig(unknown=0.0)).splits[-1] == "held_out"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"steps": 0}, "steps: expected a whole number of at least 1, got 0"),
        ({"steps": 2.5}, "steps: expected a value of type int"),
        ({"steps": 5}, "warmup: expected less than the 5 steps, got 5"),
        ({"precision": "bfloat16"}, "precision: unknown name 'bfloat16'. Did you mean 'bf16'"),
        ({"splits": ("held-out",)}, "splits: unknown name 'held-out'. Did you mean 'held_out'"),
        ({"splits": ()}, "splits: expected at least one split, got none"),
        ({"splits": ("train", "train")}, "splits: expected each split once"),
        (
            {"task": SravenConfig(features=1, values=5)},
            "task: expected a task with",
        ),
        ({"members": ()}, "members: expected at least one member, got none"),
        ({"task": SravenConfig(values=6)}, "model.input_size: expected 6 for this sraven task"),
        ({"task": FuzzyLogicConfig()}, "model.output_size: expected 1 for this fuzzy_logic task"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message.replace(".", r"\.")):
        replace(tiny_run("sraven"), **change)


def test_a_split_that_the_task_does_not_have_is_refused() -> None:
    config = fuzzy_logic_run((Member(),))
    with pytest.raises(ValueError, match="splits: unknown name 'unknown'"):
        replace(config, task=FuzzyLogicConfig(unknown=0.0))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"seed": -1}, "seed: expected a whole number from 0"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a finite number"),
        ({"weight_decay": -0.1}, "weight_decay: expected a finite number of at least 0"),
        ({"warmup": -1}, "warmup: expected a whole number of at least 0"),
    ],
)
def test_bad_members_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Member(**change)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    values = tiny_run("sraven").to_dict()
    for change, message in [
        ({"step": 3}, "RunConfig: unknown name 'step'. Did you mean 'steps'"),
        ({"task": 5}, "task: expected a value of type TaskConfig, got 5"),
        ({"task": {"name": []}}, "task.name: unknown name"),
        ({"model": None}, "model: expected a value of type ModelConfig, got None"),
        ({"members": 5}, "members: expected a tuple of Member, got 5"),
        ({"members": [1]}, "members: expected a tuple of Member"),
        ({"splits": [1]}, "splits: expected a tuple of str"),
        ({"task": {"name": "sravn"}}, "task.name: unknown name 'sravn'. Did you mean 'sraven'"),
        ({"members": [{"sed": 3}]}, "Member: unknown name 'sed'. Did you mean 'seed'"),
        ({"model": {"layer": 3}}, "ModelConfig: unknown name 'layer'. Did you mean 'layers'"),
    ]:
        with pytest.raises(ValueError, match=message.replace(".", r"\.")):
            RunConfig.from_dict(values | change)
