"""Training gives the same numbers whether interrupted or not, and split or not."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, evaluated_run, run, timeless, tiny_run

from hyla.train import RunConfig, TimeUp
from hyla.train.checkpoint import load, paths
from hyla.train.folder import RunFolderError
from hyla.train.watch import Progress

# Run as a separate process: trains the run of a JSON file, with a checkpoint after every step.
PROGRAM = """
import sys, torch
from pathlib import Path
from hyla.train import RunConfig, TimeUp, train
torch.set_num_threads(1)
config = RunConfig.from_json(Path(sys.argv[1]).read_text())
train(config, sys.argv[2], device="cpu", compiled=False, checkpoint_seconds=0)
"""


def start(config: RunConfig, folder: Path, limit: Callable[[], None] | None = None) -> Any:
    file = folder.with_suffix(".json")
    file.write_text(config.to_json())
    arguments = [sys.executable, "-c", PROGRAM, str(file), str(folder)]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, preexec_fn=limit)


def wait_for_checkpoint(folder: Path, process: Any) -> None:
    while not paths(folder / "checkpoints") and process.poll() is None:
        time.sleep(0.01)


@pytest.fixture
def whole(tmp_path: Path) -> tuple[bytes, dict[str, Any]]:
    """Metrics and summary of the run without any interruption."""
    summary = run(evaluated_run(), tmp_path / "whole")
    return (tmp_path / "whole" / "metrics.jsonl").read_bytes(), timeless(summary)


def test_what_a_run_leaves(tmp_path: Path) -> None:
    config, watcher = evaluated_run(), Recorder()
    summary = run(config, tmp_path, watchers=[watcher])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == watcher.records
    losses = [line for line in lines if "split" not in line]
    assert [line["step"] for line in losses if line["member"] == 1] == [5, 10, 15, 20, 25, 29]
    measured = [(line["step"], line["split"]) for line in lines if line.get("split")]
    steps = [(step, split) for step in (9, 18, 27, 29) for split in config.splits]
    assert [pair for pair in measured if measured.count(pair) == 3][::3] == steps
    saved = json.loads((tmp_path / "config.json").read_text())
    assert RunConfig.from_dict(saved["config"]) == config
    assert saved["environment"]["torch"] == torch.__version__
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert summary["state"] == "finished"
    for member, settings in zip(summary["members"], config.members, strict=True):
        assert member["seed"] == settings.seed
        assert member["diverged_at"] is None
        assert 0 <= member["evaluation"]["held_out"]["accuracy"] <= 1
        assert member["evaluation"]["held_out"]["instances"] == 23
    assert [load(path).step for path in paths(tmp_path / "checkpoints")] == [29]
    assert watcher.seen[-1].step == 29
    assert all(loss is not None for loss in watcher.seen[-1].losses)


def test_the_mean_loss_is_that_of_the_steps_since_the_last_record(tmp_path: Path) -> None:
    config, each, some = tiny_run("fuzzy_logic"), Recorder(), Recorder()
    run(replace(config, log_every=1), tmp_path / "each", watchers=[each])
    run(replace(config, log_every=12), tmp_path / "some", watchers=[some])
    losses = [record["loss"] for record in each.records if record["member"] == 1]
    means = [record["loss"] for record in some.records if record["member"] == 1]
    expected = [sum(part) / len(part) for part in (losses[:12], losses[12:24], losses[24:29])]
    assert means[:3] == pytest.approx(expected, rel=1e-6)


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    first = run(evaluated_run(), tmp_path)
    before = {
        path: path.read_bytes() for path in tmp_path.glob("*.json*") if "log" not in str(path)
    }
    watcher = Recorder()
    assert run(evaluated_run(), tmp_path, watchers=[watcher]) == first
    assert {path: path.read_bytes() for path in before} == before
    assert ["finished at step 29" in text for text in watcher.said] == [True]


@pytest.mark.parametrize("stops", [[1], [5, 6], [9, 18, 28]])
def test_stopped_early_it_goes_on_to_the_same_end(
    tmp_path: Path, whole: tuple[bytes, dict[str, Any]], stops: list[int]
) -> None:
    for stop in stops:
        summary = run(evaluated_run(), tmp_path / "run", stop_at=stop)
        assert (summary["state"], summary["step"], summary["steps"]) == ("stopped", stop, 29)
        assert all(member["evaluation"]["held_out"] for member in summary["members"])
    summary = run(evaluated_run(), tmp_path / "run")
    assert ((tmp_path / "run" / "metrics.jsonl").read_bytes(), timeless(summary)) == whole


def test_a_shorter_schedule_is_not_a_run_stopped_early(tmp_path: Path) -> None:
    stopped = run(evaluated_run(), tmp_path / "stopped", stop_at=12)
    short = run(evaluated_run(steps=12), tmp_path / "short")
    assert (short["state"], short["steps"]) == ("finished", 12)
    assert (stopped["state"], stopped["steps"]) == ("stopped", 29)
    assert stopped["members"] != short["members"]


def test_bad_stops_are_refused(tmp_path: Path) -> None:
    for stop in (0, 30):
        with pytest.raises(ValueError, match=r"stop_at: expected from 1 to the 29 steps"):
            run(evaluated_run(), tmp_path, stop_at=stop)
    first = run(evaluated_run(), tmp_path, stop_at=7)
    names = ("config.json", "metrics.jsonl", "summary.json")
    before = [(tmp_path / name).read_bytes() for name in names]
    with pytest.raises(ValueError, match="stop_at: expected at least 7"):
        run(evaluated_run(), tmp_path, stop_at=6)
    assert run(evaluated_run(), tmp_path, stop_at=7) == first
    assert [(tmp_path / name).read_bytes() for name in names] == before


@pytest.mark.parametrize("at_once", [1, 2])
def test_split_into_several_populations_it_gives_the_same(tmp_path: Path, at_once: int) -> None:
    config = evaluated_run(precision="fp64")
    whole = run(config, tmp_path / "whole")
    summary = run(config, tmp_path / "run", members_at_once=at_once)
    for given, expected in zip(summary["members"], whole["members"], strict=True):
        assert given["loss"] == pytest.approx(expected["loss"], rel=1e-9)
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert f'"populations": {[1, 1, 1] if at_once == 1 else [2, 1]}' in log


def test_it_goes_on_split_in_another_way(tmp_path: Path) -> None:
    run(evaluated_run(), tmp_path, stop_at=11, members_at_once=2)
    watcher = Recorder()
    summary = run(evaluated_run(), tmp_path, members_at_once=3, watchers=[watcher])
    assert summary["state"] == "finished"
    assert any("members_at_once: 2 in the folder, 3 now" in text for text in watcher.said)


def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    config = evaluated_run(steps=79)
    folder, chance = tmp_path / "run", random.Random(os.getpid())
    kills = 0
    for _ in range(4):
        process = start(config, folder)
        wait_for_checkpoint(folder, process)
        time.sleep(chance.uniform(0, 0.4))
        kills += process.poll() is None
        process.kill()
        process.wait()
        process.stderr.close()
    process = start(config, folder)
    assert process.wait() == 0, process.stderr.read()
    process.stderr.close()
    assert kills
    summary = timeless(run(config, tmp_path / "whole"))
    metrics = (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert (folder / "metrics.jsonl").read_bytes() == metrics
    assert timeless(json.loads((folder / "summary.json").read_text())) == summary


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_end_saves_first(
    tmp_path: Path, whole: tuple[bytes, dict[str, Any]], number: int
) -> None:
    config, folder = evaluated_run(), tmp_path / "run"

    class Impatient(Recorder):
        def metrics(self, records: Any) -> None:
            if records[0]["step"] == 10:
                os.kill(os.getpid(), number)

    watcher = Impatient()
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        run(config, folder, watchers=[watcher])
    assert [load(path).step for path in paths(folder / "checkpoints")] == [10]
    assert "step 10 of 29" in watcher.said[-1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run(config, folder)
    assert (folder / "metrics.jsonl").read_bytes() == whole[0]


def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path, whole: tuple[bytes, dict[str, Any]]
) -> None:
    folder = tmp_path / "run"
    for stop in (7, 19):
        run(evaluated_run(), folder, stop_at=stop)
    newest = paths(folder / "checkpoints")[0]
    content = bytearray(newest.read_bytes())
    content[-3] ^= 1
    newest.write_bytes(content)
    watcher = Recorder()
    run(evaluated_run(), folder, watchers=[watcher])
    assert newest.name in watcher.said[0]
    assert "step 7" in watcher.said[1]
    assert (folder / "metrics.jsonl").read_bytes() == whole[0]


def test_a_full_disk_ends_clearly_and_loses_nothing(
    tmp_path: Path, whole: tuple[bytes, dict[str, Any]]
) -> None:
    folder = tmp_path / "run"
    run(evaluated_run(), folder, stop_at=7)
    [checkpoint] = paths(folder / "checkpoints")

    def limit() -> None:
        size = checkpoint.stat().st_size // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    process = start(evaluated_run(), folder, limit)
    message = process.communicate()[1].splitlines()[-1]
    assert process.returncode == 1
    assert "RunFolderError" in message
    assert "The last checkpoint, of step 7, is intact" in message
    assert load(checkpoint).step == 7
    run(evaluated_run(), folder)
    assert (folder / "metrics.jsonl").read_bytes() == whole[0]


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    run(evaluated_run(), tmp_path, stop_at=3)
    config = evaluated_run(batch=11)
    config = replace(config, model=replace(config.model, layers=1))
    with pytest.raises(ValueError, match=r"model\.layers: 2 in the folder, 1 .*batch: 13"):
        run(config, tmp_path)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises((RunFolderError, ValueError), match="expected a folder"):
        run(evaluated_run(), tmp_path / "run")


def test_a_finished_run_whose_models_are_damaged_is_trained_again(
    tmp_path: Path, whole: tuple[bytes, dict[str, Any]]
) -> None:
    for path in paths(tmp_path / "whole" / "checkpoints"):
        path.write_bytes(path.read_bytes()[:-1])
    summary = run(evaluated_run(), tmp_path / "whole")
    assert ((tmp_path / "whole" / "metrics.jsonl").read_bytes(), timeless(summary)) == whole
    assert load(paths(tmp_path / "whole" / "checkpoints")[0]).step == 29


def test_a_watcher_that_fails_is_left_out(
    tmp_path: Path, whole: tuple[bytes, dict[str, Any]]
) -> None:
    class Broken(Recorder):
        def progress(self, progress: Progress) -> None:
            raise BrokenPipeError

    good = Recorder()
    run(evaluated_run(), tmp_path / "run", watchers=[Broken(), good])
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == whole[0]
    assert good.seen
    assert "BrokenPipeError" in (tmp_path / "run" / "log.jsonl").read_text()


class Signalling(Recorder):
    """Sends signals to this process when the run does something at its last step."""

    def __init__(self, doing: str, *numbers: int) -> None:
        super().__init__()
        self.doing, self.numbers = doing, numbers

    def progress(self, progress: Progress) -> None:
        if progress.doing == self.doing and progress.step == 29:
            for number in self.numbers:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGHUP, signal.SIGHUP]])
def test_a_request_to_end_during_the_last_save(tmp_path: Path, numbers: list[int]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # handled, even under nohup
    with pytest.raises(KeyboardInterrupt if signal.SIGINT in numbers else SystemExit):
        run(evaluated_run(), tmp_path, watchers=[Signalling("saving", *numbers)])
    signal.signal(signal.SIGHUP, before)
    assert load(paths(tmp_path / "checkpoints")[0]).step == 29
    assert not (tmp_path / "summary.json").exists()


def test_what_was_ignored_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        watcher = Signalling("saving", signal.SIGHUP)
        assert run(evaluated_run(), tmp_path, watchers=[watcher])["state"] == "finished"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_deadline_saves_and_the_same_call_goes_on(tmp_path: Path) -> None:
    config = evaluated_run()
    whole = run(config, tmp_path / "whole")
    for _ in range(3):
        with pytest.raises(TimeUp, match="of 29"):
            run(config, tmp_path / "cut", deadline=time.monotonic())
    assert timeless(run(config, tmp_path / "cut")) == timeless(whole)
    files = [tmp_path / name / "metrics.jsonl" for name in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_validation_has_the_tasks_of_training_and_instances_of_its_own(tmp_path: Path) -> None:
    config = evaluated_run(evaluation_instances=500)
    splits = ("train", "held_out", "validation")
    before = run(config, tmp_path / "two")["members"]
    after = run(replace(config, splits=splits), tmp_path / "three")["members"]
    for one, other in zip(before, after, strict=True):
        assert {k: other["evaluation"][k] for k in splits[:2]} == one["evaluation"]
        train_loss, validation = (other["evaluation"][k]["loss"] for k in splits[::2])
        assert 0 < abs(train_loss - validation) < 0.1  # 500 instances each, of the same tasks
    records = (tmp_path / "three" / "metrics.jsonl").read_text().splitlines()
    steps = {json.loads(line)["step"] for line in records if '"validation"' in line}
    assert steps == {29}
