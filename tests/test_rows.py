"""Rows of results: which hyperparameters are chosen, and what is reported of them."""

import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_run

from hyla.experiments import runner
from hyla.experiments.declare import Point
from hyla.experiments.rows import (
    FinishedRun,
    choose,
    measured,
    members_of,
    paper_choice,
    provenance,
)
from hyla.train import train

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
    # Of HYLA, a row also says how much of the trained value networks is on.
    config = replace(config, model=replace(config.model, kind="linear"))
    return FinishedRun(Path("run"), config, {"members": list(members), "seconds": 1.0}, {})


def test_the_best_validation_loss_is_chosen_whatever_is_reported() -> None:
    run = finished(
        member(0, 1e-3, 0.20, 0.9), member(1, 1e-3, 0.30, 0.9),
        member(0, 3e-3, 0.22, 0.1), member(1, 3e-3, 0.26, 0.3),
    )  # fmt: skip
    (row,) = measured(Point({"kind": "hyla"}, run.config, (50.0, 1.0)), [run], "smoke")
    assert row["hyperparameters"]["learning_rate"] == 3e-3  # 0.24 against 0.25
    assert row["per_seed"] == [10.0, 30.0]
    assert (row["mean"], row["standard_error"]) == (20.0, 10.0)
    assert row["paper_choice"]["mean"] == 90.0
    assert (row["paper_mean"], row["paper_standard_error"]) == (50.0, 1.0)
    assert [round(g["validation_loss"], 3) for g in row["grid"]] == [0.25, 0.24]
    assert [g["per_seed"] for g in row["grid"]] == [[90.0, 90.0], [10.0, 30.0]]


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


def test_of_settings_that_all_diverged_the_one_that_did_least_is_chosen() -> None:
    run = finished(
        member(0, 1e-3, None, 0.0), member(1, 1e-3, None, 0.0),
        member(0, 3e-3, 0.5, 0.3), member(1, 3e-3, None, 0.0),
    )  # fmt: skip
    for chosen in (choose(members_of([run])), paper_choice(members_of([run]))):
        assert [m.number for m in chosen] == [2, 3]
    (row,) = measured(Point({}, run.config), [run], "smoke")
    assert (row["mean"], row["standard_error"], row["per_seed"]) == (30.0, None, [30.0, None])


def test_each_measure_is_of_its_split() -> None:
    values = {"held_out": 0.1, "train": 0.2, "unknown": 0.3, "validation": 0.4}
    evaluation = {split: {"r2": value, "loss": 1.0} for split, value in values.items()}
    one = member(0, 1e-3, 0.1, 0.1) | {"evaluation": evaluation, "loss": 0.7}
    run = finished(one)
    run = replace(
        run, config=replace(run.config, splits=("train", "held_out"), task=run.config.task)
    )
    (found,) = members_of([run])
    names = ("held out", "in distribution", "unknown terms", "training loss")
    assert [found.measure(name) for name in names] == [10.0, 20.0, 30.0, 0.7]


def test_the_grid_tells_what_each_training_explains_of_unknown_terms() -> None:
    run = finished(member(0, 1e-3, 0.2, 0.5), member(1, 1e-3, None, 0.5), member(0, 3e-3, 0.9, 0.9))
    point = Point({}, run.config)
    assert all("unknown terms" not in one for one in measured(point, [run], "smoke")[0]["grid"])
    run = replace(run, config=replace(run.config, splits=(*run.config.splits, "unknown")))
    for one, value in zip(run.summary["members"], (0.25, None, 0.75), strict=True):
        if one["evaluation"]:
            one["evaluation"]["unknown"] = {"r2": value, "loss": 1.0}
    (row,) = measured(point, [run], "smoke")
    assert [one["unknown terms"] for one in row["grid"]] == [[25.0, None], [75.0]]


def test_the_papers_choice_has_all_seeds() -> None:
    run = finished(
        member(0, 1e-3, 0.2, 0.5), member(1, 1e-3, 0.2, 0.7), member(0, 3e-3, 0.9, 0.9)
    )  # fmt: skip
    assert [m.number for m in paper_choice(members_of([run]))] == [0, 1]


def test_a_search_on_the_first_seed_compares_that_seed_alone() -> None:
    search = finished(member(0, 1e-3, 0.3, 0.5), member(0, 3e-3, 0.2, 0.4))
    others = finished(member(1, 3e-3, 9.0, 0.6), member(2, 3e-3, 9.0, 0.8))
    chosen = choose(members_of([search, others]))
    assert [m.seed for m in chosen] == [0, 1, 2]
    assert {m.settings[0] for m in chosen} == {3e-3}
    # What decided is what is told of the settings, not a mean over other seeds.
    (row,) = measured(Point({}, search.config), [search, others], "smoke")
    assert [(g["validation_loss"], g["seeds"]) for g in row["grid"]] == [(0.3, 1), (0.2, 3)]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_rows_of_hyla_tell_dead_layers(tmp_path: Path, precision: str) -> None:
    config = replace(tiny_run("sraven"), precision=precision)
    config = replace(config, splits=("train", "held_out", "validation"))
    train(config, tmp_path / "run", device="cpu")
    found = runner.finished(tmp_path / "run")
    assert found is not None
    (row,) = measured(Point({"kind": "hyla"}, config), [found], "smoke")
    (chosen,) = {name for name, _ in row["chosen_members"]}
    assert chosen == "run"
    assert [len(layers) for layers in row["active_units"]] == [2] * len(row["per_seed"])
    assert all(0 < percent < 100 for layers in row["active_units"] for percent in layers)


def test_a_row_names_all_devices_of_its_runs(tmp_path: Path) -> None:
    config = replace(tiny_run("fuzzy_logic"), splits=("train", "held_out", "validation"))
    train(config, tmp_path / "run", device="cpu", stop_at=1)
    log = tmp_path / "run" / "log.jsonl"
    on_cpu = platform.machine()
    log.write_text(
        log.read_text().replace(f'"device": "{on_cpu}"', '"device": "a GPU"') + "{torn\n"
    )
    assert runner.finished(tmp_path / "run") is None
    train(config, tmp_path / "run", device="cpu")
    found = runner.finished(tmp_path / "run")
    assert found is not None
    train(config, tmp_path / "run", device="cpu")  # nothing is left to do
    with log.open("ab") as handle:
        handle.write(b'{"event": "resumed", "environment": {"device": "idle"}}\n\xff\n[]\n')
    found = runner.finished(tmp_path / "run")
    assert found is not None
    assert provenance([found])["device"] == f"a GPU and {on_cpu}"
    log.unlink()
    found = runner.finished(tmp_path / "run")
    assert found is not None
    assert provenance([found])["device"] == on_cpu  # where the folder was made
