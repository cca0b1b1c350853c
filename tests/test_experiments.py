"""The declared experiments: what is chosen, reported, skipped, judged; each at its smallest."""

import itertools
import math
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from helpers import tiny_run

from hyla.experiments import EXPERIMENTS, code_rows, runner
from hyla.experiments.ablation import ABLATION, ROWS, title
from hyla.experiments.declare import Point
from hyla.experiments.results import is_at, read_rows, results_file, write_rows
from hyla.experiments.runner import (
    Options,
    chosen_points,
    keep,
    run_experiment,
    trained,
)
from hyla.experiments.scales import points_at
from hyla.experiments.search import SEARCHES, populations, run_names
from hyla.experiments.status import status
from hyla.files import without_nan
from hyla.report.summary import OUTCOMES
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig, describe, split_combinations
from hyla.train import TimeUp, load_run
from hyla.train.config import grid
from hyla.train.runs import folder_name
from hyla.train.watch import Watcher

ROOT = Path(__file__).parents[1]


def test_runs_are_split_by_warmup_and_by_search() -> None:
    members = grid(range(3), [1e-3, 3e-3], [0.1], [2, 5])
    config = tiny_run("fuzzy_logic", members=members)
    assert [len(part.members) for part in populations(config, "full")] == [6, 6]
    first = populations(config, "first-seed")
    assert [len(part.members) for part in first] == [2, 2]
    assert {m.seed for part in first for m in part.members} == {0}
    (one,) = populations(config, "1e-3,0.1,5")
    assert one.members == grid(range(3), [1e-3], [0.1], [5])


# Table 1 of the paper, and the grids of its appendix, written out once more.
TABLE_1 = """
Softmax attention 63.28 2.31 56.56 1.05
Linear attention 59.89 5.22 56.30 1.11
HYLA 81.13 7.77 69.13 1.90
Linear attention + RMSHead 68.93 5.10 59.01 2.50
Linear attention + RMSHead + nonlinear value 56.91 4.25 55.38 0.32
HYLA - RMSHead 81.27 7.88 62.53 5.73
HYLA - nonlinearity 84.54 5.32 56.54 0.21
HYLA - nonlinearity - RMSHead 79.42 7.43 56.33 1.41
HYLA - RMSHead + softmax 70.98 7.08 38.21 2.98
HYLA + deep value network 87.65 4.54 66.59 0.08
Softmax attention + MoE 63.83 6.07 57.68 1.31
Linear attention + MoE 60.09 6.16 64.34 4.3
HYLA + MoE 82.37 6.55 66.94 3.94
"""


def test_the_papers_numbers() -> None:
    found = {(p.axes["row"], p.axes["task"]): p.paper for p in ABLATION.points()}
    for line in TABLE_1.strip().splitlines():
        row, *numbers = line.rsplit(" ", 4)
        fuzzy, fuzzy_error, sraven, sraven_error = map(float, numbers)
        assert found.pop((row, "fuzzy logic")) == (fuzzy, fuzzy_error)
        assert found.pop((row, "SRAVEN")) == (sraven, sraven_error)
    assert not found
    ambiguity = {tuple(p.axes.values()): p.paper for p in EXPERIMENTS["ambiguity"].points()}
    assert ambiguity[4, 4] == (6.42, 0.38)
    assert ambiguity[4, 8] == (0.32, 0.09)
    assert ambiguity[4, 16] == (0.05, 0.03)


@pytest.mark.parametrize("name", [n for n in EXPERIMENTS if "paper" in EXPERIMENTS[n].scales])
def test_the_papers_settings(name: str) -> None:
    for point in points_at(EXPERIMENTS[name], "paper"):
        config = point.config
        if config is None:
            continue
        assert config.batch == 128
        assert {m.seed for m in config.members} == {0, 1, 2}
        rates, decays, warmups = (
            {getattr(m, field) for m in config.members}
            for field in ("learning_rate", "weight_decay", "warmup")
        )
        assert len(config.members) == 3 * len(rates) * len(decays) * len(warmups)
        model = config.model
        if config.task_name == "fuzzy_logic":
            assert (rates, decays, warmups) == ({1e-3, 3e-3}, {0.03, 0.1}, {100})
            assert (config.steps, config.evaluation_instances) == (50_000, 16_000)
            sizes = (model.layers, model.width, model.heads, model.head_size, model.hidden_size)
            assert sizes == (2, 128, 8, 2, 256)
            continue
        depth = point.axes.get("depth", 16 if name == "codes-depth" else 4)
        searched = name.startswith("scaling") or depth == 16
        assert (rates, decays) == ({3e-4, 1e-3}, {0.1, 0.3})
        assert warmups == ({1000, 3000} if searched else {1000})
        millions = point.axes.get("millions", 20)
        assert config.steps * 128 == millions * 1_000_000
        factor = point.axes.get("width", 1)
        assert (model.width, model.hidden_size) == (128 * factor, 256 * factor)
        assert model.heads * model.head_size == 64 * factor
        assert model.layers == depth
        assert config.evaluation_instances == 51_200


def test_small_is_a_tenth_with_one_setting() -> None:
    for small, paper in zip(
        points_at(ABLATION, "small"), points_at(ABLATION, "paper"), strict=True
    ):
        assert small.config is not None
        assert paper.config is not None
        assert small.config.steps == paper.config.steps // 10
        assert len(small.config.members) == 3
        first = paper.config.members[0]
        assert {m.learning_rate for m in small.config.members} == {first.learning_rate}
        assert small.config.model == paper.config.model


def test_the_ablation_table_is_the_papers() -> None:
    points = ABLATION.points()
    assert len(points) == 26
    assert len(ROWS) == 13
    by_place = {(p.axes["row"], p.axes["task"]): p for p in points}
    hyla = by_place["HYLA", "SRAVEN"]
    assert hyla.paper == (69.13, 1.90)
    assert hyla.config is not None
    assert (hyla.config.steps, hyla.config.batch, len(hyla.config.members)) == (156250, 128, 12)
    assert by_place[title("softmax", "moe"), "fuzzy logic"].config.model.feed_forward == "moe"  # type: ignore[union-attr]
    assert {m.warmup for m in hyla.config.members} == {1000}


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if "demo" not in name])
def test_every_result_is_at_a_point(name: str) -> None:
    rows, points = read_rows(ROOT / f"results/{name}.json"), EXPERIMENTS[name].points()
    assert rows
    for row in rows:
        assert sum(is_at(row, point.axes) for point in points) == 1


def test_every_experiment_has_points_with_its_axes_at_every_scale() -> None:
    for experiment in EXPERIMENTS.values():
        for scale in experiment.scales:
            points = points_at(experiment, scale)
            assert points, (experiment.name, scale)
            places = [tuple(point.axes.items()) for point in points]
            assert len(set(places)) == len(places)
            assert set(points[0].axes) <= set(experiment.axes)
            for search in SEARCHES:
                runs = [name for point in points for name in run_names(point, search)]
                assert len(set(runs)) == len(runs)  # so that points can be trained side by side
            for point in points:
                if point.config is not None:
                    assert "validation" in point.config.splits
    with pytest.raises(ValueError, match="scale of demo"):
        points_at(EXPERIMENTS["demo"], "paper")


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "ablation"])
def test_every_experiment_runs_and_is_judged(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    options = Options(scale="smoke", runs=tmp_path / "runs", results=tmp_path / "results")
    said: list[str] = []
    rows = run_experiment(experiment, options, say=said.append)
    points = chosen_points(experiment, options)
    told = sum("s of model " in text for text in said)
    # Of two models, their codes in two ways each.
    assert told == (2 * len(points) * (1 + ("codes" in name)) if experiment.keep else 0)
    file = results_file(name, "smoke", options.results, options.runs)
    assert read_rows(file) == without_nan(rows)
    found = status(experiment, options)
    assert found.points == found.measured == found.as_asked == len(points)
    assert found.begun == 0
    for claim in experiment.claims:
        verdict = claim.judge(rows)
        assert verdict.outcome in (*OUTCOMES, "not measured")
        assert verdict.outcome != "not measured" or "codes" not in name  # all points are there
        assert claim.judge([]).outcome == "not measured"
    needed = {"command", "scale"} | (
        {"members", "device", "seconds"} if points[0].config else set()
    )
    for row in rows:
        assert needed <= row.keys()
    if name == "codes-depth":
        kinds = {(row["what"], row["keys"]) for row in rows}
        whats, keys = ("decoding", "answers", "explained"), ("self", "row")
        assert kinds == {("map", "self"), *itertools.product(whats, keys)}
        assert {row["layer"] for row in rows if row["what"] == "map"} == set(range(8))


def test_every_row_of_the_ablations_runs(tmp_path: Path) -> None:
    options = Options(scale="smoke", runs=tmp_path, results=tmp_path)
    rows = run_experiment(ABLATION, options)
    assert [(row["row"], row["task"]) for row in rows] == [
        (point.axes["row"], point.axes["task"]) for point in ABLATION.points()
    ]
    for row in rows:
        assert len(row["per_seed"]) == 2
        if row["task"] == "SRAVEN":
            # All features of an answer are right less often than one of them.
            assert 50 < row["ceiling"] <= mean(row["solver_by_rule"].values()) <= 100
            assert set(row["signs"]) == {"right", "other"}
            assert row["curves"]["step"] == [2, 4]
            assert len(row["accuracy_by_rule"]) == 8
            # The curves end where the chosen members were measured.
            for rule, values in row["feature_accuracy_by_rule"].items():
                assert row["curves"]["by_rule"][rule][-1] == pytest.approx(values["mean"], abs=1e-3)


def test_rows_keep_the_order_of_the_declaration(tmp_path: Path) -> None:
    file = tmp_path / "ablation.json"
    places = [point.axes for point in ABLATION.points()]
    for axes in reversed(places):
        write_rows(file, ABLATION, [{**axes, "mean": 1.0}])
    write_rows(file, ABLATION, [{**places[3], "mean": 2.0}])
    rows = read_rows(file)
    assert [{k: row[k] for k in ("row", "task")} for row in rows] == places
    assert [row["mean"] for row in rows] == [2.0 if i == 3 else 1.0 for i in range(26)]


def test_rows_of_a_point_go_together(tmp_path: Path) -> None:
    """An analysis has many rows for a point: none of an older one is left among them."""
    experiment, file = EXPERIMENTS["codes-sraven"], tmp_path / "codes-sraven.json"
    first, second = (point.axes for point in experiment.points()[:2])
    for layers, value in ((3, 1.0), (2, 2.0)):
        rows = [{**first, "what": "decoding", "layer": n, "mean": value} for n in range(layers)]
        write_rows(file, experiment, rows)
        write_rows(file, experiment, [{**second, "what": "decoding", "layer": 7, "mean": 5.0}])
    assert [(row["layer"], row["mean"]) for row in read_rows(file)] == [(0, 2), (1, 2), (7, 5)]


def test_wrong_names_are_told(tmp_path: Path) -> None:
    options = Options(scale="smoke", runs=tmp_path)
    for only, message in (
        ({"rwo": ("HYLA",)}, "only, axis of ablation: unknown name 'rwo'. Did you mean 'row'"),
        (
            {"row": ("HILA",)},
            "only, row of the experiment ablation at scale smoke: "
            "unknown name 'HILA'. Did you mean 'HYLA'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            chosen_points(ABLATION, replace(options, only=only))
    with pytest.raises(ValueError, match="search: unknown name"):
        Options(search="frist-seed")
    damaged = tmp_path / "x.json"
    damaged.write_text('{"not": "a list"}')
    with pytest.raises(ValueError, match=r"x\.json: expected a list of results"):
        read_rows(damaged)


def test_kept_models_are_analysed_again_without_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in (code_rows.DECODED, code_rows.MAPPED, code_rows.SHUFFLES):
        monkeypatch.setitem(table, "paper", table["smoke"])
    tiny = points_at(EXPERIMENTS["codes-fuzzy"], "smoke")[2]
    assert tiny.config is not None
    # Two warm-ups make two runs, of which one has the chosen members.
    members = [replace(m, warmup=w) for w in (1, 2) for m in tiny.config.members]
    config = replace(tiny.config, members=tuple(members), splits=("train", "held_out"))
    experiment = replace(EXPERIMENTS["codes-fuzzy"], points=lambda: [Point(tiny.axes, config)])
    options = Options(runs=tmp_path / "runs", results=tmp_path / "results")
    rows = run_experiment(experiment, options)
    (folder,) = (tmp_path / "results" / "models").iterdir()
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 100_000
    members_of_kept = load_run(folder)[0].members
    shutil.rmtree(tmp_path / "runs")
    for part in populations(config, "full"):  # of runs that never began
        (tmp_path / "runs" / "paper" / folder_name(part)).mkdir(parents=True)
    again = run_experiment(experiment, replace(options, again=True))
    assert not list((tmp_path / "runs").rglob("config.json"))
    assert again == rows
    # Nor are they needed, or a device to train on, where the rows are gone.
    (tmp_path / "results" / "codes-fuzzy.json").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(runner, "find_devices", None)
        assert run_experiment(experiment, options) == rows
    # The choice is another one now: so is what is kept.
    shutil.rmtree(tmp_path / "results")
    runs = trained(chosen_points(experiment, options)[0], options, Watcher)
    for run in runs:
        for result in run.summary["members"]:
            result["evaluation"]["validation"]["loss"] *= -1
    keep(runs, options)
    (other,) = (tmp_path / "results" / "models").iterdir()
    assert load_run(other)[0].members != members_of_kept


def test_options_reach_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def record(config: Any, path: Path, **options: Any) -> None:
        given.update(options, precision=config.precision, folder=path.parent)
        raise TimeUp

    monkeypatch.setattr(runner, "train", record)
    options = Options(
        scale="smoke", runs=tmp_path, precision="bf16", members=5, device="cpu", deadline=math.inf
    )
    with pytest.raises(TimeUp):
        run_experiment(EXPERIMENTS["heads"], options)
    assert (given["members_at_once"], given["deadline"], given["device"]) == (5, math.inf, "cpu")
    assert (given["precision"], given["folder"]) == ("bf16", tmp_path / "smoke")


def test_maps_show_held_out_functions(tmp_path: Path) -> None:
    options = Options(scale="smoke", runs=tmp_path, only={"kind": ("linear",)})
    rows = run_experiment(EXPERIMENTS["demo-codes"], options)
    task = EXPERIMENTS["demo-codes"].points()[0].config.task  # type: ignore[union-attr]
    assert isinstance(task, FuzzyLogicConfig)
    held_out = {describe(c, task.variables) for c in split_combinations(task, "held_out", 0)}
    maps = [row for row in rows if row["what"] == "map"]
    assert [row["layer"] for row in maps] == [0, 1]
    for row in maps:
        assert set(row["colours"]["function"]) <= held_out


@pytest.mark.parametrize("name", ["seeds", "members"])
def test_how_many_is_at_least_one(name: str) -> None:
    for odd in (0, -1):
        with pytest.raises(ValueError, match=f"{name}: expected a whole number of at least 1"):
            Options(**{name: odd})
