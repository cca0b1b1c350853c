"""The run folder: an interrupted run leaves what an uninterrupted one leaves."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from hyla import files
from hyla.train.checkpoint import path_of, paths, step_of
from hyla.train.folder import RunFolder, RunFolderError
from hyla.train.runs import list_runs, read_id

CONFIG = {"steps": 40, "members": [{"seed": seed, "rate": 0.1} for seed in range(3)]}
ENVIRONMENT = {"torch": "2.11", "device": "cpu"}
STEPS, EVERY = 40, 7


class Killed(Exception):  # noqa: N818
    """What ends a training that is interrupted."""


def train(path: Path, until: int = STEPS, torn: bytes = b"") -> list[str]:
    """Sums the steps, an aggregate that only a true continuation gets right."""
    with RunFolder.open(path, CONFIG, ENVIRONMENT) as folder:
        total, start = torch.zeros(2, dtype=torch.float64), 0
        if folder.resumed:
            total, start = folder.resumed.tensors["total"], folder.resumed.step
        for step in range(start + 1, STEPS + 1):
            total = total + step
            loss = float("nan") if step % 5 == 0 else float(total[0]) / 3
            folder.append_metrics([{"step": step, "split": split, "loss": loss} for split in "ab"])
            folder.log({"event": "step", "step": step})
            if step % EVERY == 0 or step == STEPS:
                folder.save_checkpoint(step, {"total": total})
            if step == until != STEPS:
                with (path / "metrics.jsonl").open("ab") as handle:
                    handle.write(torn)
                raise Killed
        folder.write_summary({"state": "finished", "total": float(total[0]), "bad": float("inf")})
        return folder.messages


def contents(path: Path) -> dict[str, bytes]:
    """All that is a function of the configuration: not the id."""
    names = ["config.json", "metrics.jsonl", "summary.json"]
    names += [f"checkpoints/{one.name}" for one in (path / "checkpoints").iterdir()]
    found = {name: (path / name).read_bytes() for name in names}
    identity = f'"id": "{read_id(path)}"'.encode()
    return found | {"config.json": found["config.json"].replace(identity, b"")}


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("seed", range(4))
def test_an_interrupted_run_leaves_the_same_bytes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    train(tmp_path / "whole")
    done, kills = 0, 0
    while done < STEPS:
        until, torn = chance.randint(done + 1, STEPS), b'{"step": 3, "lo'[: chance.randrange(16)]
        done, kills = until - until % EVERY, kills + 1
        if until == STEPS:
            break
        with pytest.raises(Killed):
            train(tmp_path / "run", until, torn)
    train(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    log = read_log(tmp_path / "run")
    assert sum(event["event"] in ("created", "resumed") for event in log) == kills
    assert {event["step"] for event in log} >= set(range(1, STEPS + 1))


def test_metrics_and_summary_are_json_without_nan(tmp_path: Path) -> None:
    train(tmp_path)
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line, parse_constant=pytest.fail)
        assert (record["loss"] is None) == (record["step"] % 5 == 0)
    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary == {"state": "finished", "total": STEPS * (STEPS + 1) / 2, "bad": None}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {"id": read_id(tmp_path), "config": CONFIG, "environment": ENVIRONMENT}


def test_the_id_identifies_a_run(tmp_path: Path) -> None:
    for name in ("one", "other"):
        with pytest.raises(Killed):
            train(tmp_path / name, 23)
    identity = read_id(tmp_path / "one")
    assert identity != read_id(tmp_path / "other")
    with RunFolder.open(tmp_path / "one", CONFIG, ENVIRONMENT) as folder:
        folder.set_environment(ENVIRONMENT | {"torch": "2.13"})
    train(tmp_path / "one")  # resumes
    assert read_id(tmp_path / "one") == identity


def test_resuming_takes_metrics_back_to_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(tmp_path, 17)
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        assert folder.resumed is not None
        assert folder.resumed.step == 14
        assert ["step 14" in message for message in folder.messages] == [True]
        folder.append_metrics([])
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [
            s for s in range(1, 15) for _ in "ab"
        ]


def test_without_a_checkpoint_everything_begins_again(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(tmp_path, EVERY - 1)
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        assert folder.resumed is None
        assert folder.messages == ["no checkpoint: starting at step 0"]
        folder.append_metrics([])
        assert not (tmp_path / "metrics.jsonl").read_bytes()


def test_a_finished_run_that_is_opened_is_left_alone_until_it_is_written(tmp_path: Path) -> None:
    train(tmp_path)
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        folder.append_metrics([{"final": 1}])
        folder.write_summary({"state": "finished"})
    before = contents(tmp_path)
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        assert folder.summary == {"state": "finished"}
    assert contents(tmp_path) == before
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        folder.append_metrics([{"final": 2}])
        assert not (tmp_path / "summary.json").exists()
    after = (tmp_path / "metrics.jsonl").read_bytes()
    assert after == before["metrics.jsonl"].replace(b'{"final": 1}', b'{"final": 2}')


def test_a_stopped_run_that_goes_on_is_no_longer_stopped(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        folder.save_checkpoint(1, {})
        folder.write_summary({"state": "stopped"})
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        assert folder.summary == {"state": "stopped"}
        assert (tmp_path / "summary.json").exists()  # until it does go on
        folder.append_metrics([])
        assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("number", [1, 2])
def test_damaged_checkpoints_are_passed_over(tmp_path: Path, number: int) -> None:
    train(tmp_path / "whole")
    with pytest.raises(Killed):
        train(tmp_path / "run", 23)
    for path in paths(tmp_path / "run" / "checkpoints")[:number]:
        path.write_bytes(path.read_bytes()[:-1])
    messages = train(tmp_path / "run")
    assert len(messages) == number + 1
    assert "step-000000021.safetensors: damaged checkpoint" in messages[0]
    assert ("step 14", "step 0")[number - 1] in messages[-1]
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    assert messages in [event.get("messages") for event in read_log(tmp_path / "run")]


def test_a_damaged_checkpoint_pushes_out_no_good_one(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(tmp_path, 23)
    path_of(tmp_path / "checkpoints", 21).write_bytes(b"damaged")
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        folder.save_checkpoint(30, {})
    assert [step_of(path) for path in paths(tmp_path / "checkpoints")] == [30, 14]


def test_metrics_that_are_too_short_for_a_checkpoint(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    with pytest.raises(Killed):
        train(tmp_path / "run", 23)
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(lines[: 2 * 14 - 1]))
    with pytest.raises(
        ValueError, match=r"metrics\.jsonl: damaged.*step-000000021.*another folder"
    ):
        train(tmp_path / "run")
    metrics.write_bytes(b"".join(lines[: 2 * 14 + 1]))
    messages = train(tmp_path / "run")
    assert "step-000000021.safetensors" in messages[0]
    assert "step 14" in messages[1]
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_log_line_that_was_cut_off_stays_alone(tmp_path: Path) -> None:
    train(tmp_path)
    with (tmp_path / "log.jsonl").open("ab") as handle:
        handle.write(b'{"time": "20')
    before = (tmp_path / "log.jsonl").read_bytes()
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        folder.log({"event": "hello"})
    after = (tmp_path / "log.jsonl").read_bytes()
    assert after.startswith(before + b"\n")
    events = [json.loads(line) for line in after[len(before) + 1 :].splitlines()]
    assert [event["event"] for event in events] == ["resumed", "hello"]
    assert all(event["time"].endswith("+00:00") for event in events)


def test_another_configuration_is_refused_by_its_fields(tmp_path: Path) -> None:
    train(tmp_path)
    before = contents(tmp_path)
    other = CONFIG | {"steps": 41, "members": [{"seed": s, "rate": s * 0.1} for s in (0, 1, 2)]}
    with pytest.raises(ValueError, match="another configuration") as caught:
        RunFolder.open(tmp_path, other, ENVIRONMENT)
    text = str(caught.value)
    assert "steps: 40 in the folder, 41 requested; " in text
    assert "members[2].rate: 0.1 in the folder, 0.2 requested" in text
    assert "members[1]" not in text
    assert contents(tmp_path) == before
    RunFolder.open(tmp_path, CONFIG, ENVIRONMENT).close()  # the lock has been given back


def test_another_environment_is_told_and_logged(tmp_path: Path) -> None:
    train(tmp_path)
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT | {"torch": "2.13"}) as folder:
        [message, _] = folder.messages
    assert message == 'the environment has changed: torch: "2.11" in the folder, "2.13" now'
    event = read_log(tmp_path)[-1]
    assert event["environment"]["torch"] == "2.13"
    assert message in event["messages"]


def test_a_folder_killed_at_its_creation_is_taken(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").touch()
    (run / ".config.json.0123abcd.partial").touch()
    train(run)
    train(tmp_path / "whole")
    assert contents(run) == contents(tmp_path / "whole")
    assert not list(run.glob(".*"))


@pytest.mark.parametrize("name, content", [
    ("thesis.tex", b"precious"), ("download.partial", b""), ("metrics.jsonl", b""),
    ("config.json", b'{"model_type": "gpt2"}'), ("config.json", b""), ("config.json", b'{"config'),
])  # fmt: skip
def test_a_folder_that_is_not_a_run_is_refused_and_left_alone(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name.replace(".", r"\.") + ".*"):
        RunFolder.open(tmp_path, CONFIG, ENVIRONMENT)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    with pytest.raises(ValueError, match=f"{name}: expected a folder, got a file"):
        RunFolder.open(tmp_path / name, CONFIG, ENVIRONMENT)


HOLD = """
import sys, time
from pathlib import Path
from hyla.train.folder import RunFolder
with RunFolder.open(Path(sys.argv[1]), {}, {}) as folder:
    folder.append_metrics([{"step": 1}])
    folder.save_checkpoint(1, {})
    folder.append_metrics([{"step": 2}])
    print("ready", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        who = rf"another process .*\(process {process.pid} on .*\)"
        with pytest.raises(ValueError, match=who):
            RunFolder.open(tmp_path, {}, {})
        [running] = list_runs(tmp_path)
        assert (running.state, running.step) == (
            "running",
            2,
        )  # the last record, not the checkpoint
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert [run.state for run in list_runs(tmp_path)] == ["interrupted"]
    with RunFolder.open(tmp_path, {}, {}) as folder:
        assert folder.resumed is not None
        folder.append_metrics([])
        assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_a_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        assert ["locks" in message for message in folder.messages] == [True]
    train(tmp_path)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """The system refuses to write files beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WRITES: dict[str, Callable[[RunFolder], Any]] = {
    "metrics.jsonl": lambda folder: folder.append_metrics([{"text": "x" * 99}] * 200),
    "log.jsonl": lambda folder: folder.log({"text": "x" * 20_000}),
    "step-000000030.safetensors": lambda folder: folder.save_checkpoint(
        30, {"total": torch.ones(9999)}
    ),
    "summary.json": lambda folder: folder.write_summary({"text": "x" * 20_000}),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("begun", [False, True])
def test_a_full_disk_loses_nothing(tmp_path: Path, name: str, begun: bool) -> None:
    train(tmp_path / "whole")
    with pytest.raises(Killed):
        train(tmp_path / "run", 23 if begun else 3)
    with (
        RunFolder.open(tmp_path / "run", CONFIG, ENVIRONMENT) as folder,
        full_disk(8000),
        pytest.raises(RunFolderError) as caught,
    ):
        WRITES[name](folder)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert f"{name}: cannot be written: File too large. " in str(caught.value)
    assert ("step 21, is intact" if begun else "no checkpoint") in str(caught.value)
    assert not list((tmp_path / "run").rglob("*.partial"))
    train(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_metrics_go_on_after_a_write_that_failed(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        folder.append_metrics([{"a": 1}])
        with full_disk(50), pytest.raises(RunFolderError):
            folder.append_metrics([{"b": "x" * 99}])
        folder.append_metrics([{"c": 1}])
    assert (tmp_path / "metrics.jsonl").read_text() == '{"a": 1}\n{"c": 1}\n'


@pytest.mark.parametrize("name", WRITES)
def test_a_folder_that_is_gone_is_told(tmp_path: Path, name: str) -> None:
    with RunFolder.open(tmp_path / "run", CONFIG, ENVIRONMENT) as folder:
        folder.save_checkpoint(1, {})
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(RunFolderError, match="no checkpoint"):
            WRITES[name](folder)
    assert not (tmp_path / "run").exists()


def test_metrics_that_something_else_shortens_are_not_built_upon(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, ENVIRONMENT) as folder:
        folder.append_metrics([{"a": 1}])
        (tmp_path / "metrics.jsonl").write_text("{")
        for write in (lambda: folder.append_metrics([{}]), lambda: folder.save_checkpoint(1, {})):
            with pytest.raises(RunFolderError, match=r"metrics\.jsonl"):
                write()


def test_a_place_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="run: cannot be written: Not a directory"):
        RunFolder.open(tmp_path / "file" / "run", CONFIG, ENVIRONMENT)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # also where tests run as root
    with pytest.raises(RunFolderError, match=r"config\.json: cannot be written: "):
        RunFolder.open(tmp_path / "run", CONFIG, ENVIRONMENT)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_told(tmp_path: Path) -> None:
    train(tmp_path / "run")
    (tmp_path / "run" / "lock").unlink()
    (tmp_path / "run").chmod(0o500)
    for path in (tmp_path / "run", tmp_path / "run" / "new"):
        with pytest.raises(RunFolderError, match="cannot be written: Permission denied"):
            RunFolder.open(path, CONFIG, ENVIRONMENT)
    (tmp_path / "run").chmod(0o700)
