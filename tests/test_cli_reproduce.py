"""`hyla reproduce`: what it lists, refuses, trains, shows and publishes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import Hyla

from hyla import cli
from hyla.experiments import EXPERIMENTS
from hyla.experiments import run as module
from hyla.train import TimeUp
from hyla.train.runs import list_runs

ROOT = Path(__file__).parents[1]
ONE = "--only row=HYLA task=SRAVEN"


def tiny(hyla: Hyla, words: str = "ablation") -> str:
    return f"reproduce {words} --tiny --device cpu --runs {hyla.folder / 'runs'}"


def test_the_list_says_what_is_missing_and_what_it_costs(hyla: Hyla) -> None:
    place = f"--runs {hyla.folder / 'runs'} --results {ROOT / 'results'} --device cpu"
    found = hyla.json(f"reproduce --list {place}")
    assert list(found) == list(EXPERIMENTS)
    ablation = {"points": 26, "complete": 26, "trainings_left": 0, "hours_left": 0.0}
    assert found["ablation"] == ablation
    assert found["scaling-width"]["trainings_left"] > 0
    own = hyla.json(f"reproduce ablation demo --list --own {place}")
    assert own["ablation"]["trainings_left"] == 26 * (4 + 2)  # a search on a seed, two seeds more
    assert own["ablation"]["hours_left"] > 30 * own["demo"]["hours_left"] > 0
    published = json.loads((ROOT / "results" / "ablation.json").read_text())["rows"]
    more = hyla.json(f"reproduce ablation --list --seeds 20 {place}")
    there = sum(len(row["seeds"]) for row in published if row["preset"] == "as_described")
    assert more["ablation"]["trainings_left"] == 26 * 20 - there
    lines = hyla(f"reproduce --list {place}").splitlines()
    assert max(map(len, map(str.rstrip, lines))) <= 100


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("", "names: expected one or more of ablation"),
        ("ablatoin", "Did you mean 'ablation'"),
        ("heads --only heads", "--only: expected AXIS=VALUE"),
        ("heads --only", "--only: expected AXIS=VALUE"),
        ("heads --only haeds=1", "Did you mean 'heads'"),
        ("heads --only kind=hila", "Did you mean 'hyla'"),
        ("heads --only heads=4,8", "--only: expected one value each: heads=4 heads=8"),
        ("heads --only heads=1 --only heads=2", "--only: given more than once"),
        ("heads --precision bf61", "Did you mean 'bf16'"),
        ("heads --seeds 0", "--seeds: expected a whole number of at least 1"),
        ("heads --seeds 2 --search-seeds 3", "--search-seeds: expected at most 2"),
        ("heads --members 0", "--members: expected a whole number of at least 1"),
        ("heads --processes 0", "--processes: expected a whole number of at least 1"),
        ("heads --choose-by luck", "--choose-by: unknown name 'luck'"),
        ("heads --setting 3e-4,0.3", "--setting: expected learning rate, weight decay"),
        ("heads --setting 3e-4,0.3,x", "--setting: expected learning rate, weight decay"),
        ("heads --time-limit 0", "--time-limit: expected a number of minutes above 0"),
        ("heads --publish --tiny", "--publish: expected"),
        ("heads --results nowhere", "--results: expected"),
        ("heads --publish --seeds 5", "--publish: expected"),
        ("heads --tiny --setting 3e-4,0.3,1000", "--setting: expected"),
        ("demo --own --device nonsense", "--device: expected"),
    ],
)
def test_errors_name_the_option_and_what_was_expected(
    hyla: Hyla, arguments: str, message: str
) -> None:
    before = set(Path.cwd().iterdir())
    assert message in hyla.error(f"reproduce {arguments}")
    assert set(Path.cwd().iterdir()) == before


def test_the_table_sets_ours_beside_the_papers(
    hyla: Hyla, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"reproduce ablation {ONE} --runs {hyla.folder} --results {ROOT / 'results'}"
    text = hyla(command)
    (line,) = (line for line in text.splitlines() if "HYLA" in line)
    assert "69.1 ± 1.9" in line
    found = hyla.json(command)["ablation"]
    assert found[0]["paper"] == {"mean": 69.13, "standard_error": 1.90}
    assert f"{found[0]['mean']:.1f}" in line


def test_it_trains_what_is_missing_once(hyla: Hyla, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{tiny(hyla)} {ONE} --seeds 2 --json"
    cli.main(command.split())
    first = capsys.readouterr()
    assert "training" in first.err
    cli.main(command.split())
    again = capsys.readouterr()
    assert again.out == first.out
    assert not again.err


def test_own_ignores_what_is_published(hyla: Hyla, capsys: pytest.CaptureFixture[str]) -> None:
    found = hyla.json(f"reproduce ablation --list --own {ONE} --runs {hyla.folder} --device cpu")
    assert found["ablation"]["complete"] == 0


def test_processes_make_the_same_rows(hyla: Hyla, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for folder, processes in (("one", 1), ("two", 2)):
        runs = hyla.folder / folder
        cli.main(
            f"reproduce ablation --only row=HYLA --seeds 1 --tiny --device cpu --runs {runs} "
            f"--processes {processes} --json".split()
        )
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


def test_a_failed_process_is_named_and_the_others_are_kept(hyla: Hyla) -> None:
    runs = hyla.folder / "runs"
    runs.mkdir()
    cli.main([*f"{tiny(hyla)} {ONE} --seeds 1 --json".split()])
    (state,) = list_runs(runs)
    hyla.capsys.readouterr()
    shutil.rmtree(state.path)
    state.path.write_text("a file in place of the folder")
    with pytest.raises(SystemExit):
        cli.main(f"{tiny(hyla)} --only row=HYLA --seeds 1 --processes 2 --json".split())
    message = hyla.capsys.readouterr().err
    assert "task SRAVEN" in message
    assert any(s.state == "finished" and s.task == "fuzzy_logic" for s in list_runs(runs))


def test_what_is_there_is_shown_when_time_is_up(
    hyla: Hyla, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*tiny(hyla).split(), "--seeds", "1", "--json", "--only", "row=HYLA"]
    cli.main([*command, "task=fuzzy logic"])
    capsys.readouterr()

    def late(*arguments: object, **options: object) -> None:
        raise TimeUp("time is up")

    monkeypatch.setattr(module, "train", late)
    cli.main(command)
    output = capsys.readouterr()
    assert "the same command resumes" in output.err
    (row,) = json.loads(output.out)["ablation"]
    assert row["task"] == "fuzzy logic"


def test_a_killed_command_goes_on_and_leaves_a_clone_clean(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    command = [sys.executable, "-c", "from hyla.cli import main; main()", "reproduce", "demo"]
    command += ["--only", "kind=softmax", "--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    checkpoints = clone / "runs"

    def started() -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=clone, env=environment, stdout=pipe, stderr=pipe, text=True
        )

    with started() as first:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            if any(path.stat().st_size for path in checkpoints.rglob("metrics.jsonl")):
                break
            time.sleep(0.1)
        first.send_signal(signal.SIGTERM)
        _, said = first.communicate(timeout=60)
    assert first.returncode == 128 + signal.SIGTERM, said
    (state,) = list_runs(clone / "runs")
    assert state.state == "interrupted"
    with started() as second:
        assert second.stderr is not None
        for line in second.stderr:
            if f"from step {state.step}" in line:
                break
        else:
            pytest.fail("it did not resume")
        second.send_signal(signal.SIGTERM)
        second.communicate(timeout=60)
    status = ["git", "status", "--porcelain"]
    assert not subprocess.run(status, cwd=clone, capture_output=True, check=True).stdout
