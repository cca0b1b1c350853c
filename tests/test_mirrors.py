"""Mirrors: TensorBoard and Weights & Biases get the same numbers, and never stop a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hyla.experiments.paper.runs import fuzzy_logic_run
from hyla.train.config import Member
from hyla.train.mirrors import Mirror, TensorBoardMirror, WandbMirror, scalars

CONFIG = fuzzy_logic_run((Member(warmup=10), Member(1, warmup=10)))


def losses(step: int, *values: float) -> list[dict[str, Any]]:
    return [{"step": step, "member": i, "loss": value} for i, value in enumerate(values)]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def test_records_become_numbers_with_names() -> None:
    record = {
        "step": 1000, "member": 3, "split": "held_out", "accuracy": 0.5, "note": "text",
        "accuracy_by_rule": {"constant": 0.25, "sum": None},
    }  # fmt: skip
    assert scalars(record) == {
        "member_3/held_out/accuracy": 0.5, "member_3/held_out/accuracy_by_rule/constant": 0.25,
    }  # fmt: skip
    assert scalars({"step": 57, "member": 0, "diverged": True}) == {"member_0/diverged": 1.0}


def test_tensorboard_has_the_numbers_of_a_run_that_was_interrupted(
    folder: Path, said: list[str]
) -> None:
    first = TensorBoardMirror(folder, CONFIG, said.append)
    first.metrics([*losses(10, 2.0, 3.0), *losses(20, 1.5, 2.5)])
    first.metrics(losses(30, -1.0, -1.0))
    first.close()
    # Resumed from a checkpoint at step 20: step 30 is repeated.
    second = TensorBoardMirror(folder, CONFIG, said.append)
    second.metrics(losses(30, 1.0, 2.0))
    second.metrics([{"step": 30, "member": 1, "split": "held_out", "r2": 0.5}])
    second.close()
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    found = {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }
    assert found == {
        "member_0/loss": [(10, 2.0), (20, 1.5), (30, 1.0)],
        "member_1/loss": [(10, 3.0), (20, 2.5), (30, 2.0)],
        "member_1/held_out/r2": [(30, 0.5)],
    }
    assert not said


@pytest.mark.usefixtures("offline")
def test_wandb_offline_is_one_run_with_its_configuration(folder: Path, said: list[str]) -> None:
    for steps in ((10, 20), (20, 30)):
        mirror = WandbMirror(folder, CONFIG, said.append, project="some-project")
        assert steps == (20, 30) or not list(folder.iterdir())
        for step in steps:
            mirror.metrics(losses(step, 2.0, 3.0))
        assert mirror.run.project == "some-project"
        assert mirror.run.config["steps"] == CONFIG.steps
        assert json.loads(json.dumps(dict(mirror.run.config)["members"])) == [
            member.to_dict() for member in CONFIG.members
        ]
        assert mirror.run.summary["member_1/loss"] == 3.0
        assert mirror.run.summary["step"] == steps[-1]
        mirror.close()
    run_id = (folder / "wandb" / "run-id").read_text()
    names = [path.name for path in (folder / "wandb").glob("offline-run-*")]
    # Runs started in the same second have names that differ in a final number.
    assert len(names) == 2
    assert all(run_id in name for name in names)
    assert list((folder / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(said) == 2
    assert "wandb sync" in said[0]


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_mirror_that_cannot_write_says_so_once(name: str, folder: Path, said: list[str]) -> None:
    (folder / name).write_text("in the way")
    mirror: Mirror
    if name == "wandb":
        mirror = WandbMirror(folder, CONFIG, said.append, project="p")
    else:
        mirror = TensorBoardMirror(folder, CONFIG, said.append)
    for step in (10, 20):
        mirror.metrics(losses(step, 2.0, 3.0))
    mirror.close()
    assert len(said) == 1
    assert "is disabled" in said[0]
    assert "\n" not in said[0]


@pytest.mark.parametrize("fails_in", ["_write", "_flush", "_close"])
def test_a_mirror_may_fail_at_any_time(
    fails_in: str, folder: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("the disk\nis full")

    mirror = TensorBoardMirror(folder, CONFIG, said.append)
    mirror.metrics(losses(10, 2.0))
    monkeypatch.setattr(mirror, fails_in, fail)
    for step in (20, 30):
        mirror.metrics(losses(step, 2.0))
    mirror.close()
    assert [text.startswith("TensorBoard is disabled") for text in said] == [True]
    assert "the disk is full" in said[0]


def test_a_mirror_without_records_leaves_nothing(folder: Path, said: list[str]) -> None:
    mirror = TensorBoardMirror(folder, CONFIG, said.append)
    mirror.metrics([])
    mirror.close()
    assert not list(folder.iterdir())
