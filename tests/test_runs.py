"""The list of runs names every run folder and its state, even of damaged folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyla.experiments.paper.runs import sraven_run
from hyla.train.config import Member
from hyla.train.folder import RunFolder
from hyla.train.runs import RunState, list_runs, read_state

CONFIG = sraven_run(tuple(Member(seed) for seed in range(3)), kind="softmax").to_dict()


def make(path: Path, step: int | None = None, summary: dict[str, Any] | None = None) -> Path:
    with RunFolder.open(path, CONFIG, {}) as folder:
        if step is not None:
            folder.save_checkpoint(step, {})
        if summary is not None:
            folder.write_summary(summary)
    return path


def test_the_states_of_runs(tmp_path: Path) -> None:
    finished = {"state": "finished", "accuracy": 0.5}
    make(tmp_path / "a")
    make(tmp_path / "b" / "b", 7)
    make(tmp_path / "b" / "c", 9, {"state": "stopped"})
    make(tmp_path / "d", 156_250, finished)
    with RunFolder.open(tmp_path / "e", CONFIG, {}) as folder:
        folder.save_checkpoint(8, {})
        runs = list_runs(tmp_path)
    assert [(str(run.path.relative_to(tmp_path)), run.state, run.step) for run in runs] == [
        ("a", "new", 0),
        ("b/b", "interrupted", 7),
        ("b/c", "stopped", 9),
        ("d", "finished", 156_250),
        ("e", "running", 8),
    ]
    assert runs[3] == RunState(
        tmp_path / "d", "finished", 156_250, 156_250, "sraven", "softmax", 3, "", finished
    )
    assert list_runs(tmp_path / "d") == [runs[3]] == [read_state(tmp_path / "d")]


def truncate(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-5])


@pytest.mark.parametrize(
    "damage, problem",
    [
        (truncate("config.json"), "config.json: expected a JSON object"),
        (truncate("summary.json"), "summary.json: expected a JSON object"),
        (lambda path: (path / "config.json").write_text("[]"), "config.json"),
        (lambda path: (path / "config.json").write_text("{}"), "config.json"),
        (lambda path: (path / "config.json").unlink(), "config.json"),
        (lambda path: (path / "summary.json").write_text('{"state": [1]}'), "state: unknown name"),
    ],
)
def test_a_damaged_folder_is_named_and_hides_no_other(
    tmp_path: Path, damage: Callable[[Path], object], problem: str
) -> None:
    for name in "abc":
        make(tmp_path / name, 7, {"state": "finished"})
    damage(tmp_path / "b")
    runs = list_runs(tmp_path)
    assert [run.state for run in runs] == ["finished", "damaged", "finished"]
    assert str(tmp_path / "b") in runs[1].problem
    assert problem in runs[1].problem


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, {"name": None}])
def test_a_configuration_of_another_make_is_listed(tmp_path: Path, value: Any) -> None:
    config = dict.fromkeys(("task", "model", "members", "steps"), value)
    RunFolder.open(tmp_path, config, {}).close()
    [run] = list_runs(tmp_path)
    assert run.state == "new"


def test_what_is_no_run_is_not_listed(tmp_path: Path) -> None:
    assert not list_runs(tmp_path / "missing")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "lock").touch()
    make(tmp_path / ".hidden")
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert not list_runs(tmp_path)
    run = make(tmp_path / "run", 7)
    make(run / "checkpoints" / "inside")
    (tmp_path / "latest").symlink_to(run)
    assert [found.path for found in list_runs(tmp_path)] == [run]


def test_a_copy_without_the_lock_is_a_run(tmp_path: Path) -> None:
    (make(tmp_path / "run", 7) / "lock").unlink()
    assert [run.state for run in list_runs(tmp_path)] == ["interrupted"]
