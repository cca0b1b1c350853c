"""Members that diverge are marked and frozen, and do not affect the others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import Recorder, evaluated_run, run, timeless, tiny_run

from hyla.train import RunConfig


def with_absurd_rate(config: RunConfig, rate: float) -> RunConfig:
    first, second, third = config.members
    absurd = replace(second, learning_rate=rate, warmup=0)
    return replace(config, members=(first, absurd, third))


@pytest.mark.parametrize("rate", [1e10, 1e30])
@pytest.mark.parametrize("log_every, evaluate_every", [(10, 4), (1, 1), (100, 3)])
def test_a_member_that_diverges_between_records_harms_nobody(
    tmp_path: Path, rate: float, log_every: int, evaluate_every: int
) -> None:
    config = tiny_run("fuzzy_logic", log_every=log_every, evaluate_every=evaluate_every)
    config = with_absurd_rate(config, rate)
    summary = run(config, tmp_path / "often", checkpoint_seconds=0)
    metrics = (tmp_path / "often" / "metrics.jsonl").read_bytes()
    assert summary["members"][1]["diverged_at"] is not None
    assert summary == json.loads((tmp_path / "often" / "summary.json").read_text())
    for stop in (1, 2, 3, 7, 8, 28):
        early = run(config, tmp_path / "run", stop_at=stop, checkpoint_seconds=0)
        diverged = early["members"][1]["diverged_at"]
        assert (diverged is None) == (early["members"][1]["evaluation"] is not None)
        assert early["members"][0]["loss"] is not None
    run(config, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics
    (tmp_path / "run" / "summary.json").unlink()  # as if killed in the last evaluation
    assert timeless(run(config, tmp_path / "run")) == timeless(summary)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics


def test_members_that_diverge_are_marked_once(tmp_path: Path) -> None:
    config, watcher = evaluated_run(), Recorder()
    absurd = replace(config.members[1], learning_rate=1e30)
    config = replace(config, members=(config.members[0], absurd, config.members[2]))
    run(config, tmp_path, stop_at=3)  # before the divergence is recorded
    run(config, tmp_path, stop_at=13, watchers=[watcher])
    summary = run(config, tmp_path, watchers=[watcher])
    step = summary["members"][1]["diverged_at"]
    assert 1 <= step <= 3
    assert summary["members"][1]["evaluation"] is None
    assert summary["members"][1]["loss"] is None
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line for line in lines if line["member"] == 1] == [
        {"step": step, "member": 1, "diverged": True}
    ]
    assert watcher.said.count(f"member 1 diverged at step {step}: frozen") == 1
    assert summary["members"][0]["evaluation"]["held_out"]


def test_a_run_whose_members_have_all_diverged_ends(tmp_path: Path) -> None:
    config = evaluated_run()
    members = tuple(replace(member, learning_rate=1e30, warmup=0) for member in config.members)
    summary = run(replace(config, members=members), tmp_path)
    assert (summary["state"], summary["step"]) == ("diverged", 5)
    assert all(member["diverged_at"] is not None for member in summary["members"])
    assert run(replace(config, members=members), tmp_path) == summary


@pytest.mark.parametrize("stop_at", [2, 3, 5, 6])
def test_stopped_between_divergence_and_its_record_it_goes_on(tmp_path: Path, stop_at: int) -> None:
    config = evaluated_run()
    members = tuple(replace(member, learning_rate=1e30, warmup=0) for member in config.members)
    config = replace(config, members=members, log_every=7)
    whole = run(config, tmp_path / "whole")
    assert (whole["state"], whole["step"]) == ("diverged", 7)
    assert run(config, tmp_path / "cut", stop_at=stop_at)["state"] == "stopped"
    assert timeless(run(config, tmp_path / "cut")) == timeless(whole)
    files = [tmp_path / name / "metrics.jsonl" for name in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert b"diverged" in files[0].read_bytes()
