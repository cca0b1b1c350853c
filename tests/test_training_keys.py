"""Keys of trainings are stable, and differ for every change of a training."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hyla.attention.variants import KINDS
from hyla.experiments.paper.runs import fuzzy_logic_run, sraven_run
from hyla.model import ModelConfig
from hyla.tasks.base import task_class
from hyla.tasks.sraven import SravenConfig
from hyla.train import Member
from hyla.train import training as module
from hyla.train.store import Store, Trained
from hyla.train.training import INTRODUCED, Training, digest

ROOT = Path(__file__).parents[1]
HYLA = Training.of(sraven_run((Member(),)), Member())


def published() -> tuple[Trained, ...]:
    return Store.open(None, ROOT / "results").published


def rebuilt(description: dict[str, Any], model: type[ModelConfig] = ModelConfig) -> Training:
    """The training that a description is of."""
    task = task_class(description["task"])
    name = task.task_name
    values = {f"{name}.{field}": value for field, value in task.introduced.items()}
    values |= INTRODUCED | description

    def part(prefix: str) -> dict[str, Any]:
        return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}

    member = {name: values[name] for name in ("seed", "learning_rate", "weight_decay", "warmup")}
    names = ("steps", "batch", "precision", "decay_head_biases", "schedule")
    rest = {name: values[name] for name in names}
    return Training(
        task=task(**part(f"{name}.")),
        model=model(**part("model.")),
        member=Member(**member),
        splits=tuple(values["splits"]),
        evaluation_instances=values["evaluation_instances"],
        **rest,
    )


def test_all_published_trainings_are_found_by_their_keys() -> None:
    found = published()
    assert len(found) > 600
    for one in found:
        assert rebuilt(one.description).key == one.key


def test_a_new_field_and_a_new_default_leave_all_keys_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclass(frozen=True)
    class Later(ModelConfig):
        layers: int = 7  # a default that has changed
        novelty: float = 0.0  # a field that is new

    monkeypatch.setitem(INTRODUCED, "model.novelty", 0.0)
    for one in published():
        training = rebuilt(one.description, Later)
        assert training.key == one.key
    later = replace(HYLA, model=Later(**{**vars(HYLA.model), "novelty": 0.1}))
    assert later.key != HYLA.key
    assert Training.of(sraven_run((Member(),)), Member()).key == HYLA.key


def test_a_field_that_is_not_in_the_table_is_refused() -> None:
    @dataclass(frozen=True)
    class Unlisted(ModelConfig):
        novelty: float = 0.0

    with pytest.raises(LookupError, match=r"model\.novelty"):
        replace(HYLA, model=Unlisted(**vars(HYLA.model))).key  # noqa: B018


def changes() -> Iterator[Training]:
    yield replace(HYLA, task=SravenConfig(features=3))
    yield replace(HYLA, task=SravenConfig(split_seed=4))
    yield from (replace(HYLA, model=replace(HYLA.model, **{n: v})) for n, v in MODEL.items())
    yield from (replace(HYLA, member=replace(HYLA.member, **{n: v})) for n, v in MEMBER.items())
    yield from (replace(HYLA, **{n: v}) for n, v in OTHERS.items())
    yield Training.of(fuzzy_logic_run((Member(warmup=7),)), Member(warmup=7))


MODEL: dict[str, Any] = {
    "layers": 5, "width": 64, "heads": 8, "head_size": 8, "kind": "softmax", "causal": True,
    "activation": "gelu", "positions": "none", "buckets": 37, "feed_forward": "moe", "experts": 5,
    "hidden_size": 7, "top_k": 3, "attention_dropout": 0.1,
}  # fmt: skip
MEMBER = {"seed": 1, "learning_rate": 3e-4, "weight_decay": 0.3, "warmup": 3000}
OTHERS: dict[str, Any] = {
    "steps": 7, "batch": 64, "precision": "tf32", "decay_head_biases": True,
    "schedule": "early_cosine", "splits": ("train",), "evaluation_instances": 7,
}  # fmt: skip


def test_every_change_makes_another_key() -> None:
    keys = [one.key for one in (HYLA, *changes())]
    assert len(set(keys)) == len(keys)


def test_what_does_not_decide_the_result_is_not_in_the_key() -> None:
    run = sraven_run((Member(), Member(seed=1)))
    other = replace(run, log_every=7, evaluate_every=3, interim_instances=11)
    assert Training.of(other, Member()).key == HYLA.key
    assert replace(HYLA, splits=HYLA.splits[::-1]).key == HYLA.key
    assert replace(HYLA, member=replace(HYLA.member, weight_decay=0.1)).key == HYLA.key


def test_the_precision_is_in_the_key_even_if_it_is_the_default() -> None:
    assert "precision" in HYLA.description
    assert Training.of(sraven_run((Member(),)), Member(), "fp32").key == HYLA.key


def test_a_kind_that_is_not_built_in_enters_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = KINDS["hyla"]
    monkeypatch.setitem(KINDS, "mine", replace(parts, title="Mine"))
    mine = replace(HYLA, model=replace(HYLA.model, kind="mine"))
    first = mine.key
    monkeypatch.setitem(KINDS, "mine", replace(parts, title="Renamed"))
    assert replace(HYLA, model=replace(HYLA.model, kind="mine")).key == first
    monkeypatch.setitem(KINDS, "mine", KINDS["softmax"])
    other = replace(HYLA, model=replace(HYLA.model, kind="mine"))
    assert len({first, other.key, HYLA.key}) == 3


def test_keys_are_the_same_in_every_process_and_have_known_answers() -> None:
    assert digest({"task": "sraven", "seed": 3}) == "9ee066ee854e47f3"
    code = (
        "from hyla.train import *; from hyla.train.training import Training;"
        "print(Training.of(task_run('sraven', (Member(),)), Member()).key)"
    )
    for seed in "12":
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert found.stdout.strip() == HYLA.key, found.stderr
    assert module.ALWAYS not in HYLA.description.values()
