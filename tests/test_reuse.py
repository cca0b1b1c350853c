"""Results that are there: skipped, carried on, taken over, never mistaken for others."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_run

from hyla.experiments import EXPERIMENTS
from hyla.experiments.ablation import ABLATION
from hyla.experiments.declare import Experiment, Row
from hyla.experiments.results import read_rows, results_file, write_rows
from hyla.experiments.reuse import made_before, made_elsewhere
from hyla.experiments.runner import (
    Options,
    chosen_points,
    points_left,
    run_experiment,
)
from hyla.experiments.runner import finished as read_run
from hyla.experiments.search import at_setting, populations
from hyla.experiments.status import status
from hyla.train import TimeUp, train
from hyla.train.runs import folder_name


def test_what_is_there_is_skipped_and_what_was_cut_goes_on(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["heads"]
    options = Options(scale="smoke", runs=tmp_path, only={"kind": ("hyla",)})
    with pytest.raises(TimeUp):
        run_experiment(experiment, replace(options, deadline=-1.0))
    assert status(experiment, options).begun == 1
    rows = run_experiment(experiment, options)
    logs = {path: path.read_bytes() for path in tmp_path.rglob("log.jsonl")}
    assert len(logs) == 2
    for again in (False, True):  # from their rows, from their runs
        assert run_experiment(experiment, replace(options, again=again)) == rows
        assert all(path.read_bytes() == content for path, content in logs.items())
    said: list[str] = []
    for path in logs:
        shutil.rmtree(path.parent)
    assert run_experiment(experiment, options, say=said.append) == rows
    assert all(text.endswith("heads.json") for text in said)
    # Rows of another precision do not count: these runs would be trained.
    found = status(experiment, replace(options, precision="bf16"))
    assert (found.measured, found.as_asked) == (2, 0)
    assert found.others == {"--search full --precision fp32": 2}
    assert status(experiment, options).as_asked == 2
    with pytest.raises(TimeUp):
        run_experiment(experiment, replace(options, precision="bf16", deadline=-1.0))


def test_a_run_of_another_configuration_is_not_taken(tmp_path: Path) -> None:
    config = tiny_run("sraven")
    train(config, tmp_path / "run", device="cpu", compiled=False)
    assert read_run(tmp_path / "run", config) is not None
    assert read_run(tmp_path / "run", replace(config, batch=config.batch + 1)) is None
    (tmp_path / "run" / "summary.json").write_text('{"state": "finished"}')
    assert read_run(tmp_path / "run", config) is None


def test_a_damaged_results_file_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    options = Options(scale="smoke", runs=tmp_path)
    file = results_file("heads", "smoke", options.results, options.runs)
    file.parent.mkdir(parents=True)
    file.write_text("{bad")
    with pytest.raises(ValueError, match=r"heads\.json: expected a list of results"):
        run_experiment(EXPERIMENTS["heads"], options)
    assert not list(tmp_path.rglob("config.json"))


def test_a_search_on_the_first_seed_runs(tmp_path: Path) -> None:
    options = Options(
        scale="smoke", runs=tmp_path, search="first-seed", only={"kind": ("hyla",)}
    )
    (row, *_) = run_experiment(EXPERIMENTS["held-out"], options)
    assert len(row["per_seed"]) == 2
    assert len(row["runs"]) == 2
    assert row["members"] == 3  # two settings on one seed, the better one on the other
    assert "--search first-seed" in row["command"]
    # The whole grid is more: it is not done yet, and a search on one seed does not replace it.
    with pytest.raises(TimeUp):
        run_experiment(EXPERIMENTS["held-out"], replace(options, search="full", deadline=-1.0))
    full = run_experiment(EXPERIMENTS["held-out"], replace(options, search="full"))
    for again in (False, True):  # the runs are there
        here = replace(options, deadline=-1.0, again=again)
        assert run_experiment(EXPERIMENTS["held-out"], here) == full
    point = chosen_points(EXPERIMENTS["held-out"], options)[0]
    assert made_before(point, full, "full")
    for odd in ({"search": ["x"]}, {"runs": None}):
        assert not made_before(point, [full[0] | odd], "full")
    other = replace(options, precision="bf16", deadline=-1.0)
    with pytest.raises(TimeUp):
        run_experiment(EXPERIMENTS["held-out"], other)


@pytest.mark.parametrize("search", ["full", "first-seed", "0.001,0.3,1"])
def test_fewer_seeds_are_a_row_without_an_error_and_replace_none(
    tmp_path: Path, search: str
) -> None:
    only = {"kind": ("hyla",), "held_out": ("0.5",)}
    one = Options(scale="smoke", runs=tmp_path, only=only, search=search, seeds=1)
    experiment, all_ = EXPERIMENTS["held-out"], replace(one, seeds=None)
    assert {m.seed for p in chosen_points(experiment, one) for m in p.config.members} == {0}
    (row,) = run_experiment(experiment, one)
    assert (len(row["per_seed"]), row["standard_error"], row["seeds"]) == (1, None, 1)
    assert row["command"].endswith("--seeds 1")
    late = {"deadline": -1.0}
    for again in (one, replace(all_, again=True), replace(one, seeds=9, again=True)):  # as it was
        (same,) = run_experiment(experiment, replace(again, **late))
        assert same == row | {"date": same["date"]}
    assert points_left(experiment, all_)
    told = f"--search {search} --precision fp32 --seeds 1"
    assert status(experiment, all_).others == {told: 1}
    assert status(experiment, one).as_asked == 1
    (more,) = run_experiment(experiment, replace(all_, seeds=9))  # there are two
    assert len(more["per_seed"]) == 2
    assert "seeds" not in more
    assert "--seeds" not in more["command"]
    said: list[str] = []
    for fewer in (one, replace(one, precision="bf16"), replace(one, again=True)):
        assert status(experiment, fewer).as_asked == 1
        (kept,) = run_experiment(experiment, replace(fewer, **late), say=said.append)
        assert kept == more | {"date": kept["date"]}
        assert fewer.again or not points_left(experiment, fewer)
    assert said[0].endswith(
        f"made with --search {search} --precision fp32, which fewer seeds do not replace"
    )
    with pytest.raises(TimeUp):  # as many seeds do
        run_experiment(experiment, replace(one, seeds=2, precision="bf16", **late))


@pytest.mark.parametrize("search", ["full", "first-seed"])
def test_a_row_of_another_experiment_with_the_same_runs_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    only = {"row": ("HYLA",), "task": ("SRAVEN",)}
    options = Options(scale="smoke", runs=tmp_path, only=only, search=search)
    (made,) = run_experiment(ABLATION, options)
    monkeypatch.setattr("hyla.experiments.runner.trained", _refuse)  # a run is asked for
    experiment, file = EXPERIMENTS["held-out"], tmp_path / "smoke" / "results" / "ablation.json"
    options = replace(options, only={"kind": ("hyla",), "held_out": ("0.25",)})
    (first, *others), setting = made["runs"], made["hyperparameters"]
    odd: list[Any] = [
        *({"runs": runs} for runs in (["x"], [first, *others, "x"], 5, True, [{}], None)),
        {"search": "frist-seed"}, "damaged",
    ]  # fmt: skip
    if search == "first-seed":
        odd += [{"runs": [first]}, {"runs": [first, "x"]}]
        odd += [{"hyperparameters": setting | {"warmup": -1}}, {"hyperparameters": None}]
    for other in odd:
        file.write_text(json.dumps([made | other] if isinstance(other, dict) else other))
        with pytest.raises(TimeUp):
            run_experiment(experiment, options)
        assert points_left(experiment, options)
    file.write_text(json.dumps([made]))
    assert not run_experiment(experiment, replace(options, again=True))  # no row of its own yet
    for change in ({"precision": "bf16"}, {"only": options.only | {"held_out": ("0.5",)}}):
        with pytest.raises(TimeUp):
            run_experiment(experiment, replace(options, **change))
    assert not points_left(experiment, options)
    (row,) = run_experiment(experiment, options)
    assert read_rows(file.with_name("held-out.json")) == [row]
    own = {"kind": "hyla", "held_out": 0.25, "taken_from": "ablation"}
    own |= {"paper_mean": None, "paper_standard_error": None}
    bare = {name: value for name, value in made.items() if name not in ABLATION.axes}
    assert row == bare | own
    # A copy is not a source: what is gone there is not brought back from here.
    file.write_text("[]")
    with pytest.raises(TimeUp):
        run_experiment(ABLATION, replace(options, only=only))
    # Made anew there, it is anew here; gone there, it stays.
    file.write_text(json.dumps([made | {"mean": 12.5}]))
    assert run_experiment(experiment, options) == [row | {"mean": 12.5}]
    file.unlink()
    for again in (False, True):  # a copy is not made anew here
        assert run_experiment(experiment, replace(options, again=again)) == [row | {"mean": 12.5}]


@pytest.mark.parametrize("search", ["full", "first-seed"])
def test_one_setting_takes_the_place_of_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    kind = {"kind": ("hyla",)}
    width, depth = EXPERIMENTS["scaling-width"], EXPERIMENTS["scaling-depth"]
    options = Options(scale="smoke", runs=tmp_path, only=kind | {"width": ("1",)}, search=search)
    (searched,) = run_experiment(width, options)
    best = searched["hyperparameters"]
    (other,) = {s["learning_rate"] for s in searched["grid"]} - {best["learning_rate"]}
    decay = next(s["weight_decay"] for s in searched["grid"] if s["learning_rate"] == other)
    # The setting that a search of another experiment has chosen need not be trained again.
    given = f"{best['learning_rate']},{best['weight_decay']}0,{best['warmup']}"
    options = Options(scale="smoke", runs=tmp_path, only=kind | {"depth": ("4",)}, search=given)
    with monkeypatch.context() as patch:
        patch.setattr("hyla.experiments.runner.trained", _refuse)
        (row,) = run_experiment(depth, options)
    assert (row["taken_from"], row["search"]) == ("scaling-width", search)
    assert row["command"] == searched["command"]
    # One that it has not chosen does not take its place.
    options, said = replace(options, search=f"{other},{decay},1"), list[str]()
    assert run_experiment(depth, options, say=said.append) == [row]
    assert f"made with --search {search} --precision fp32, which one setting does not" in said[0]
    # Where there is nothing it is trained, on all seeds; and that will do for other experiments.
    results_file("scaling-depth", "smoke", runs=tmp_path).unlink()
    (row,) = run_experiment(depth, options)
    assert (row["members"], row["search"], len(row["grid"])) == (2, f"{other:g},{decay:g},1", 1)
    assert row["hyperparameters"] == {"learning_rate": other, "weight_decay": decay, "warmup": 1}
    assert row["command"] == (
        "hyla reproduce scaling-depth --scale smoke --only kind=hyla millions=40 depth=4 "
        f"--search {other},{decay},1"
    )
    monkeypatch.setattr("hyla.experiments.runner.train", _refuse)
    assert run_experiment(depth, replace(options, again=True)) == [row]
    results_file("scaling-width", "smoke", runs=tmp_path).unlink()
    options = replace(options, only=kind | {"width": ("1",)})
    (taken,) = run_experiment(width, options)
    assert (taken["taken_from"], taken["per_seed"]) == ("scaling-depth", row["per_seed"])
    # In the place of what was made with another precision it is told.
    older = searched | {"precision": "bf16", "runs": ["x"]}
    write_rows(results_file("scaling-width", "smoke", runs=tmp_path), width, [older])
    run_experiment(width, options, say=said.append)
    assert said[-1] == f"in the place of what was made with --search {search} --precision bf16"


@pytest.mark.parametrize("search", ["full", "first-seed"])
def test_a_setting_is_taken_from_a_search_over_more_or_fewer_warmups(
    tmp_path: Path, search: str
) -> None:
    setting = {"learning_rate": 3e-4, "weight_decay": 0.3, "warmup": 1000}
    depth, only = EXPERIMENTS["scaling-depth"], {"kind": ("hyla",), "millions": ("20",)}
    options = Options(results=tmp_path, only=only | {"depth": ("4",)}, search="3e-4,0.3,1e3")

    def made(experiment: Experiment, only: dict[str, tuple[str, ...]], chosen: Any) -> Row:
        (point,) = chosen_points(experiment, Options(only=only))
        assert point.config is not None
        runs = [folder_name(part) for part in populations(point.config, search)]
        rest = at_setting(point.config, tuple(chosen.values()), {0})
        runs += [folder_name(rest)] if rest and search == "first-seed" else []
        row = {"mean": 1.0, "search": search, "runs": runs, "hyperparameters": chosen}
        row |= {"command": "that of the other"}
        return {**point.axes, **row}

    table = (ABLATION, {"row": ("HYLA",), "task": ("SRAVEN",)})
    wider = (EXPERIMENTS["scaling-width"], only | {"width": ("1",)})
    for experiment, place in (table, wider):
        file = tmp_path / f"{experiment.name}.json"
        row = made(experiment, place, setting)
        wrong = [row | {"hyperparameters": setting | {"warmup": 3000}}, row | {"runs": ["x"]}]
        wrong += [row | {"runs": row["runs"][1:]}]
        wrong += [row | {"runs": row["runs"][:-1]}] * (search == "first-seed")
        wrong += [made(experiment, place, setting | {"weight_decay": 0.1})]
        for other in wrong:
            file.write_text(json.dumps([other]))
            assert points_left(depth, options)
        file.write_text(json.dumps([row]))
        assert not points_left(depth, options)
        assert points_left(depth, replace(options, search="3e-4,0.3,3000"))
        file.unlink()
    write_rows(tmp_path / "ablation.json", ABLATION, [made(*table, setting)])
    (taken,) = run_experiment(depth, options)
    assert (taken["taken_from"], taken["command"]) == ("ablation", "that of the other")
    assert status(depth, options).as_asked == 1
    # A search is not replaced by another setting, be it of a warm-up that it has not tried, nor by
    # one that another experiment has.
    later = replace(options, search="3e-4,0.3,3000")
    (point,) = chosen_points(EXPERIMENTS["scaling-width"], replace(later, only=wider[1]))
    assert point.config is not None
    (run,) = populations(point.config, later.search)
    chosen = {"search": later.search, "hyperparameters": setting | {"warmup": 3000}}
    other = {**point.axes, "mean": 2.0, **chosen, "runs": [folder_name(run)]}
    write_rows(tmp_path / "scaling-width.json", EXPERIMENTS["scaling-width"], [other])
    said: list[str] = []
    assert run_experiment(depth, later, say=said.append) == [taken]
    assert f"from ablation, made with --search {search}, which one setting does not" in said[0]
    # Such a copy has other runs than its own search would have: again leaves it as it is.
    assert run_experiment(depth, replace(options, again=True)) == [taken]


def test_a_table_takes_measured_rows_only(tmp_path: Path) -> None:
    """Those of codes come from the same runs, but are something else."""
    options = Options(results=tmp_path)

    def file_of(name: str) -> Path:
        return tmp_path / f"{name}.json"

    point = next(p for p in chosen_points(ABLATION, options) if p.axes["row"] == "HYLA")
    names = sorted(folder_name(part) for part in populations(point.config, "full"))
    row = {"mean": 1.0, "search": "full", "runs": names, "hyperparameters": {}}
    fuzzy, codes_ = EXPERIMENTS["fuzzy"], EXPERIMENTS["codes-fuzzy"]
    codes_point = next(p for p in chosen_points(codes_, options) if p.axes["kind"] == "hyla")
    write_rows(tmp_path / "codes-fuzzy.json", codes_, [codes_point.axes | row])
    assert not made_elsewhere(ABLATION, point, "full", file_of)
    write_rows(tmp_path / "fuzzy.json", fuzzy, [row | {"kind": "hyla"}])
    (taken,) = made_elsewhere(ABLATION, point, "full", file_of)
    assert (taken["row"], taken["paper_mean"]) == ("HYLA", 81.13)
    assert not made_elsewhere(codes_, codes_point, "full", file_of)


def _refuse(*_: object, **__: object) -> None:
    raise TimeUp
