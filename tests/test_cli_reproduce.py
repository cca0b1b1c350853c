"""`hyla reproduce`: what it lists, refuses, runs and skips."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Hyla
from test_report_rows import write_results

from hyla.experiments import EXPERIMENTS, Row
from hyla.experiments.results import read_rows
from hyla.experiments.runner import Options, chosen_points
from hyla.experiments.search import populations
from hyla.train.run import TimeUp
from hyla.train.runs import folder_name


def test_the_list_has_every_experiment_with_its_cost(hyla: Hyla) -> None:
    place = f"--runs {hyla.folder / 'runs'} --results {hyla.folder / 'results'}"
    found = hyla.json(f"reproduce --list {place}")
    assert list(found) == list(EXPERIMENTS)
    assert found["ablation"]["points"] == 26
    assert found["ablation"]["members"] == 26 * 12
    less = hyla.json(f"reproduce --list --search first-seed {place}")
    assert less["ablation"]["members"] == 26 * 6
    assert less["ablation"]["hours"] < found["ablation"]["hours"]
    assert "figures 2C and 9" in hyla(f"reproduce --list {place}")
    one = hyla.json(f"reproduce --list --search 3e-4,0.3,1000 {place}")
    assert one["heads"]["members"] == 18 * 3
    assert "fuzzy" not in one  # whose grid is another


def test_the_list_names_the_options_with_which_rows_stay(hyla: Hyla) -> None:
    results, _ = write_results(hyla.folder, names=("heads",))  # in bf16
    file = results / "heads.json"
    first, *rows = json.loads(file.read_text())
    file.write_text(json.dumps([first | {"search": "first-seed"}, *rows]))
    place = f"--runs {hyla.folder / 'runs'} --results {results}"
    hint = "To keep those, ask with the options they were made with: "
    one = "--search first-seed --precision bf16 (1)"
    assert f"{hint}--search full --precision bf16 (17), {one}." in hyla(f"reproduce --list {place}")
    assert f"{hint}{one}." in hyla(f"reproduce --list --precision bf16 {place}")
    file.write_text(json.dumps(rows))
    assert hint not in hyla(f"reproduce --list --precision bf16 {place}")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("", "names: expected one or more of ablation"),
        ("ablatoin", "names: unknown name 'ablatoin'. Did you mean 'ablation'"),
        ("heads --scale smok", "scale: unknown name 'smok'. Did you mean 'smoke'"),
        ("heads --scale demo", "scale of heads: unknown name 'demo'"),
        ("heads --only heads", "--only: expected AXIS=VALUE"),
        ("heads --only", "--only: expected AXIS=VALUE, such as kind=hyla, got nothing"),
        ("heads --only None", "--only: expected AXIS=VALUE, such as kind=hyla, got 'None'"),
        (
            "heads --only haeds=1",
            "--only, axis of heads: unknown name 'haeds'. Did you mean 'heads'",
        ),
        ("heads --precision bf61", "precision: unknown name 'bf61'. Did you mean 'bf16'"),
        (
            "heads --only heads=4,8",
            "--only: expected one value each: heads=4 heads=8, got 'heads=4,8'",
        ),
        ("heads --seeds 0", "--seeds: expected a whole number of at least 1, got 0"),
        ("heads --seeds 4", "--seeds: expected at most 3, which experiments have, got 4"),
        ("heads --members 0", "members: expected a whole number of at least 1, got 0"),
        ("heads --processes 0", "processes: expected a whole number of at least 1, got 0"),
        ("heads --processes 2 --again", "processes: expected 1 with --again"),
        ("heads --only heads=1 --only heads=2", "--only: given more than once"),
        ("heads --device nonsense", "device: expected one of this machine"),
        ("heads --time-limit 0", "--time-limit: expected a number of minutes above 0, got 0"),
        (
            "heads --search frist-seed",
            "search: unknown name 'frist-seed'. Did you mean 'first-seed'",
        ),
        (
            "heads --search 3e-4,0.3",
            "search: expected LEARNING_RATE,WEIGHT_DECAY,WARMUP",
        ),
        ("heads --search 3e-4,0.3,0.5", "three numbers such as 3e-4,0.3,1000, got 3e-4,0.3,0.5"),
        (
            "heads --search 3e-4,0.2,1000",
            "--search: expected a setting of the grid: 0.001",
        ),
        (
            "heads --search 3e-4,0.2,1000",
            "got 0.0003,0.2,1000, in heads, attention softmax, heads 1.",
        ),
    ],
)
def test_what_is_wrong_is_named(hyla: Hyla, arguments: str, message: str) -> None:
    assert message in hyla.error(f"reproduce {arguments}")


def test_the_command_of_a_row_with_one_setting_makes_that_row(tmp_path: Path) -> None:
    from hyla import cli

    file = tmp_path / "smoke" / "results" / "ablation.json"

    def make(words: str) -> Row:
        cli.main([*shlex.split(words), "--runs", str(tmp_path), "--device", "cpu", "--json"])
        (row,) = read_rows(file)
        return row

    only = "--only 'row=HYLA - RMSHead' task=SRAVEN"
    row = make(f"reproduce ablation --scale smoke {only} --search 3e-4,0.10,1")
    assert row["command"].endswith(f"{only} --search 0.0003,0.1,1")
    file.unlink()
    assert make(row["command"].removeprefix("hyla ")) == row


def test_runs_and_skips(hyla: Hyla, capsys: pytest.CaptureFixture[str]) -> None:
    from hyla import cli

    command = "reproduce heads --scale smoke --only kind=hyla heads=1 --device cpu --json"
    arguments = [*command.split(), "--runs", str(hyla.folder)]
    outputs = []
    for _ in range(2):
        cli.main(arguments)
        outputs.append(capsys.readouterr())
    assert outputs[0].out == outputs[1].out
    assert outputs[1].err.strip().endswith("heads.json")


def reproduce(options: str, runs: Path, name: str = "heads") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hyla.cli", "reproduce", name, "--scale", "smoke"]
    command += ["--only", "kind=linear", "--device", "cpu", "--runs", str(runs)]
    return subprocess.run([*command, *options.split()], capture_output=True, text=True)


def test_only_the_first_seeds(hyla: Hyla, capsys: pytest.CaptureFixture[str]) -> None:
    from hyla import cli

    command = "reproduce heads --scale smoke --only kind=linear heads=1 --device cpu --json"
    cli.main([*command.split(), "--runs", str(hyla.folder), "--seeds", "1"])
    (row,) = json.loads(capsys.readouterr().out)["heads"]
    assert (row["seeds"], len(row["per_seed"])) == (1, 1)
    listed = hyla(f"reproduce heads --list --scale smoke --seeds 1 --runs {hyla.folder}")
    assert "made with --search full --precision fp32 --seeds 1 or by a wider search or" in listed


def test_a_row_of_other_runs_is_named_before_it_is_replaced(
    hyla: Hyla, capsys: pytest.CaptureFixture[str]
) -> None:
    from hyla import cli

    command = "reproduce heads --scale smoke --only kind=hyla heads=1 --device cpu --json"
    cli.main([*command.split(), "--runs", str(hyla.folder)])
    assert "has it" not in capsys.readouterr().err
    cli.main([*command.split(), "--runs", str(hyla.folder), "--precision", "bf16"])
    assert (
        "heads.json has it, made with --search full --precision fp32; what is asked for"
        in capsys.readouterr().err
    )
    file = hyla.folder / "smoke" / "results" / "heads.json"
    assert [row["precision"] for row in read_rows(file)] == ["bf16"]
    # Again: as it was made, whatever is asked for; and nothing is trained.
    again = [*command.split(), "--runs", str(hyla.folder), "--again"]
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        cli.main([word.replace("heads=1", "heads=4") for word in again])
    assert stopped.value.code == 2
    found = capsys.readouterr()
    assert "heads 4 has no row to make anew" in found.err
    assert "again: expected rows of these points, with runs in --runs or kept models" in found.err
    assert f"got none in {file}." in found.err
    assert found.out == ""
    cli.main(again)
    assert [row["precision"] for row in read_rows(file)] == ["bf16"]
    for run in (hyla.folder / "smoke").glob("sraven-*"):
        shutil.rmtree(run)
    with pytest.raises(SystemExit):
        cli.main(again)
    assert "again: expected a finished run" in capsys.readouterr().err
    assert len(read_rows(file)) == 1


def test_a_training_for_a_gpu_is_announced_on_a_cpu(
    hyla: Hyla, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hyla import cli

    def stopped(*arguments: object, **options: object) -> None:
        raise TimeUp("time is up")

    monkeypatch.setattr("hyla.experiments.runner.train", stopped)
    command = "reproduce heads --scale small --only kind=hyla heads=1 --device cpu"
    cli.main([*command.split(), "--runs", str(hyla.folder)])
    told = capsys.readouterr().err
    assert "on one H200, far more on this CPU" in told
    assert "the same command goes on" in told


def test_processes_make_the_same_rows(tmp_path: Path) -> None:
    found = [reproduce(f"--processes {n}", tmp_path / str(n)) for n in (1, 2)]
    rows = [read_rows(tmp_path / str(n) / "smoke" / "results" / "heads.json") for n in (1, 2)]
    assert [row["heads"] for row in rows[1]] == [1, 4]
    for one, other in zip(*rows, strict=True):
        assert one["per_seed"] == other["per_seed"]
        assert one["runs"] == other["runs"]
    assert "linear, 4: step 2/4" in found[1].stderr  # the lines of a process say whose they are


def test_a_failed_process_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    options = Options(scale="smoke", only={"kind": ("linear",), "heads": ("1",)})
    (point,) = chosen_points(EXPERIMENTS["heads"], options)
    assert point.config is not None
    in_the_way = tmp_path / "smoke" / folder_name(populations(point.config, "full")[0])
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("a file")
    found = reproduce("--processes 2", tmp_path)
    assert found.returncode == 2
    assert "linear, 1: error: " in found.stderr
    assert "heads: points that failed, the others are kept: linear, 1 (exit code 1)" in found.stderr
    rows = read_rows(tmp_path / "smoke" / "results" / "heads.json")
    assert [row["heads"] for row in rows] == [4]


def test_time_is_up_for_all_processes(tmp_path: Path) -> None:
    found = reproduce("--processes 2 --time-limit 0.001", tmp_path)
    assert found.returncode == 0, found.stderr
    assert "heads: time is up; the same command goes on from there" in found.stderr
    assert not (tmp_path / "smoke" / "results").exists()


def test_all_experiments_are_looked_at_before_one_is_run(hyla: Hyla) -> None:
    for names, message in [
        (
            "heads features --scale smoke --only heads=1",
            "--only, axis of features: unknown name 'heads'",
        ),
        ("demo heads --scale demo", "scale of heads: unknown name 'demo'"),
    ]:
        assert message in hyla.error(f"reproduce {names} --runs {hyla.folder}")
        assert not list(hyla.folder.iterdir())


def test_what_is_done_is_printed_when_time_is_up(
    hyla: Hyla, capsys: pytest.CaptureFixture[str]
) -> None:
    from hyla import cli

    command = f"reproduce heads --scale smoke --device cpu --json --runs {hyla.folder}"
    cli.main([*command.split(), "--only", "kind=hyla", "heads=1"])
    done = json.loads(capsys.readouterr().out)
    cli.main([*command.split(), "--only", "kind=hyla", "--time-limit", "1e-9"])
    found = capsys.readouterr()
    assert "heads: time is up at step" in found.err
    assert json.loads(found.out) == done
    command = f"reproduce ambiguity --scale smoke --json --runs {hyla.folder} --time-limit 1e-9"
    cli.main(command.split())  # nothing is trained
    assert json.loads(capsys.readouterr().out) == {"ambiguity": []}


def test_points_are_trained_side_by_side(tmp_path: Path) -> None:
    found = reproduce("--processes 2 --json", tmp_path, "scaling-width")
    assert found.returncode == 0, found.stderr
    assert "step" not in found.stderr
    rows = json.loads(found.stdout)["scaling-width"]
    assert [row["width"] for row in rows] == [1, 2]
    assert len({*rows[0]["runs"], *rows[1]["runs"]}) == 2
