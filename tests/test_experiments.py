"""The declared experiments: what is chosen, reported, skipped, judged; each at its smallest."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_run

from hyla.experiments import EXPERIMENTS, codes
from hyla.experiments.ablation import ABLATION, ROWS, title
from hyla.experiments.declare import HELD_OUT, Point
from hyla.experiments.judge import all_above, difference
from hyla.experiments.results import read_rows, results_file, write_rows
from hyla.experiments.rows import FinishedRun, choose, measured, members_of, paper_choice
from hyla.experiments.runner import Options, chosen_points, populations, run_experiment, status
from hyla.experiments.scales import points_at
from hyla.files import without_nan
from hyla.train import TimeUp
from hyla.train.config import grid

SETTINGS = ("seed", "learning_rate", "weight_decay", "warmup")


def member(seed: int, rate: float, validation: float | None, held_out: float) -> dict[str, Any]:
    evaluation = None
    if validation is not None:
        evaluation = {
            "held_out": {"r2": held_out, "loss": 1 - held_out},
            "train": {"r2": 0.5, "loss": 0.5},
            "validation": {"r2": 0.5, "loss": validation},
        }
    settings = dict(zip(SETTINGS, (seed, rate, 0.1, 100), strict=True))
    return settings | {"evaluation": evaluation, "loss": 0.1, "diverged_at": None}


def finished(*members: dict[str, Any]) -> FinishedRun:
    config = replace(tiny_run("fuzzy_logic"), splits=("train", "held_out", "validation"))
    return FinishedRun(Path("run"), config, {"members": list(members), "seconds": 1.0}, {})


def test_the_best_validation_loss_is_chosen_whatever_is_reported() -> None:
    run = finished(
        member(0, 1e-3, 0.20, 0.9), member(1, 1e-3, 0.30, 0.9),
        member(0, 3e-3, 0.22, 0.1), member(1, 3e-3, 0.26, 0.3),
    )  # fmt: skip
    (row,) = measured(Point({"attention": "hyla"}, run.config, (50.0, 1.0)), [run], "smoke")
    assert row["hyperparameters"]["learning_rate"] == 3e-3  # 0.24 against 0.25
    assert row["per_seed"] == [10.0, 30.0]
    assert (row["mean"], row["standard_error"]) == (20.0, 10.0)
    assert row["paper_choice"]["mean"] == 90.0
    assert (row["paper_mean"], row["paper_standard_error"]) == (50.0, 1.0)
    assert [round(g["validation_loss"], 3) for g in row["grid"]] == [0.25, 0.24]


@pytest.mark.parametrize("scramble", range(3))
def test_the_choice_does_not_look_at_what_is_reported(scramble: int) -> None:
    values = [0.3, 0.9, 0.1, 0.7]
    values = values[scramble:] + values[:scramble]
    losses = [0.5, 0.4, 0.1, 0.7]
    run = finished(*(member(0, 1e-3 * (i + 1), losses[i], values[i]) for i in range(4)))
    assert choose(members_of([run]))[0].number == 2


def test_a_setting_that_diverged_is_not_chosen() -> None:
    run = finished(member(0, 1e-3, 0.9, 0.1), member(0, 3e-3, None, 0.0))
    assert choose(members_of([run]))[0].number == 0
    assert paper_choice(members_of([run]))[0].number == 0
    lost = finished(member(0, 1e-3, None, 0.0), member(1, 1e-3, None, 0.0))
    (row,) = measured(Point({}, lost.config), [lost], "smoke")
    assert row["mean"] is None
    assert row["per_seed"] == [None, None]


def test_a_search_on_the_first_seed_compares_that_seed_alone() -> None:
    search = finished(member(0, 1e-3, 0.3, 0.5), member(0, 3e-3, 0.2, 0.4))
    others = finished(member(1, 3e-3, 9.0, 0.6), member(2, 3e-3, 9.0, 0.8))
    chosen = choose(members_of([search, others]))
    assert [m.seed for m in chosen] == [0, 1, 2]
    assert {m.settings[0] for m in chosen} == {3e-3}


def test_runs_are_split_by_warmup_and_by_search() -> None:
    members = grid(range(3), [1e-3, 3e-3], [0.1], [2, 5])
    config = tiny_run("fuzzy_logic", members=members)
    assert [len(part.members) for part in populations(config, "full")] == [6, 6]
    first = populations(config, "first-seed")
    assert [len(part.members) for part in first] == [2, 2]
    assert {m.seed for part in first for m in part.members} == {0}


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


def test_every_experiment_has_points_with_its_axes_at_every_scale() -> None:
    for experiment in EXPERIMENTS.values():
        for scale in experiment.scales:
            points = points_at(experiment, scale)
            assert points, (experiment.name, scale)
            places = [tuple(point.axes.items()) for point in points]
            assert len(set(places)) == len(places)
            assert set(points[0].axes) <= set(experiment.axes)
            for point in points:
                if point.config is not None:
                    assert "validation" in point.config.splits
    with pytest.raises(ValueError, match="scale of demo"):
        points_at(EXPERIMENTS["demo"], "paper")


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "ablation"])
def test_every_experiment_runs_and_is_judged(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    options = Options(scale="smoke", runs=tmp_path / "runs", results=tmp_path / "results")
    rows = run_experiment(experiment, options)
    points = chosen_points(experiment, options)
    file = results_file(name, "smoke", options.results, options.runs)
    assert read_rows(file) == without_nan(rows)
    found = status(experiment, options)
    assert (found.points, found.measured, found.begun) == (len(points), len(points), 0)
    for claim in experiment.claims:
        verdict = claim.judge(rows)
        assert verdict.outcome in ("reproduced", "in part", "not reproduced", "not measured")
        assert claim.judge([]).outcome == "not measured"
    needed = {"command", "scale"} | (
        {"members", "device", "seconds"} if points[0].config else set()
    )
    for row in rows:
        assert needed <= row.keys()


def test_every_row_of_the_ablations_runs(tmp_path: Path) -> None:
    options = Options(scale="smoke", runs=tmp_path, results=tmp_path)
    rows = run_experiment(ABLATION, options)
    assert [(row["row"], row["task"]) for row in rows] == [
        (point.axes["row"], point.axes["task"]) for point in ABLATION.points()
    ]
    for row in rows:
        assert len(row["per_seed"]) == 2
        if row["task"] == "SRAVEN":
            assert 50 < row["ceiling"] <= 100
            assert row["curves"]["step"] == [2, 4]
            assert len(row["accuracy_by_rule"]) == 8


def test_what_is_there_is_skipped_and_what_was_cut_goes_on(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["heads"]
    options = Options(scale="smoke", runs=tmp_path, only={"attention": ("hyla",)})
    with pytest.raises(TimeUp):
        run_experiment(experiment, replace(options, deadline=-1.0))
    assert status(experiment, options).begun == 1
    rows = run_experiment(experiment, options)
    logs = {path: path.read_bytes() for path in tmp_path.rglob("log.jsonl")}
    assert len(logs) == 2
    assert run_experiment(experiment, options) == rows
    assert all(path.read_bytes() == content for path, content in logs.items())


def test_a_search_on_the_first_seed_runs(tmp_path: Path) -> None:
    options = Options(
        scale="smoke", runs=tmp_path, search="first-seed", only={"attention": ("hyla",)}
    )
    (row, *_) = run_experiment(EXPERIMENTS["held-out"], options)
    assert len(row["per_seed"]) == 2
    assert len(row["runs"]) == 2
    assert row["members"] == 3  # two settings on one seed, the better one on the other
    assert "--search first-seed" in row["command"]


def test_rows_keep_the_order_of_the_declaration(tmp_path: Path) -> None:
    file = tmp_path / "ablation.json"
    places = [point.axes for point in ABLATION.points()]
    for axes in reversed(places):
        write_rows(file, ABLATION, [{**axes, "mean": 1.0}])
    write_rows(file, ABLATION, [{**places[3], "mean": 2.0}])
    rows = read_rows(file)
    assert [{k: row[k] for k in ("row", "task")} for row in rows] == places
    assert [row["mean"] for row in rows] == [2.0 if i == 3 else 1.0 for i in range(26)]


def test_wrong_names_are_told(tmp_path: Path) -> None:
    options = Options(scale="smoke", runs=tmp_path)
    for only, message in (
        ({"rwo": ("HYLA",)}, "only: unknown name 'rwo'. Did you mean 'row'"),
        ({"row": ("HILA",)}, "only row: unknown name 'HILA'. Did you mean 'HYLA'"),
    ):
        with pytest.raises(ValueError, match=message):
            chosen_points(ABLATION, replace(options, only=only))
    with pytest.raises(ValueError, match="search: unknown name"):
        Options(search="frist-seed")
    damaged = tmp_path / "x.json"
    damaged.write_text('{"not": "a list"}')
    with pytest.raises(ValueError, match=r"x\.json: expected a list of results"):
        read_rows(damaged)


def row(mean: float, error: float | None) -> dict[str, Any]:
    return {"mean": mean, "measures": {HELD_OUT: {"mean": mean, "standard_error": error}}}


def test_differences_are_counted_in_standard_errors() -> None:
    gap, errors = difference(row(10.0, 3.0), row(0.0, 4.0))
    assert (gap, errors) == (10.0, 2.0)
    assert difference(row(10.0, None), row(0.0, 4.0)) == (10.0, 0.0)
    assert difference(row(1.0, 0.0), row(0.0, 0.0))[1] == math.inf
    assert difference(row(0.0, 0.0), row(0.0, 0.0)) == (0.0, 0.0)


@pytest.mark.parametrize(
    "pairs, outcome",
    [
        ([(9.0, 0.0), (9.0, 0.0)], "reproduced"),
        ([(9.0, 0.0), (1.0, 0.0)], "in part"),
        ([(1.0, 0.0), (1.0, 0.0)], "in part"),
        ([(1.0, 0.0), (0.0, 1.0)], "not reproduced"),
        ([(9.0, 0.0), (0.0, 9.0)], "in part"),
        ([(0.0, 9.0)], "not reproduced"),
    ],
)
def test_outcomes(pairs: list[tuple[float, float]], outcome: str) -> None:
    assert all_above([(row(a, 1.0), row(b, 1.0), "") for a, b in pairs]).outcome == outcome


def test_a_comparison_that_is_missing_is_not_reproduced() -> None:
    verdict = all_above([(row(9.0, 1.0), row(0.0, 1.0), "a"), (None, row(0.0, 1.0), "b")])
    assert verdict.outcome == "in part"
    assert "1 of 2 comparisons not measured" in verdict.evidence
    assert all_above([(None, None, "")]).outcome == "not measured"


def test_kept_models_are_analysed_again_without_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in (codes.DECODED, codes.MAPPED, codes.SHUFFLES):
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
    shutil.rmtree(tmp_path / "runs")
    again = run_experiment(experiment, options)
    assert not list((tmp_path / "runs").rglob("config.json"))
    origin = ("members", "runs", "seconds")
    assert [{k: v for k, v in row.items() if k not in origin} for row in again] == [
        {k: v for k, v in row.items() if k not in origin} for row in rows
    ]
    assert again[0]["members"] == 4  # those of the run that is kept
