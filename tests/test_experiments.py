"""The declared experiments: the paper's settings, and running them at a tiny size."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stores import made

from hyla.experiments import EXPERIMENTS
from hyla.experiments import run as module
from hyla.experiments.judge import OUTCOMES, judge
from hyla.experiments.paper.ablation import ABLATION, ROWS, title
from hyla.experiments.publish import export, publish
from hyla.experiments.rows import (
    all_rows,
    choose,
    missing,
    points_of,
    rows,
    rows_as_published,
)
from hyla.experiments.run import Options, run_experiment
from hyla.experiments.spec import Plan
from hyla.train import Member, TimeUp, train
from hyla.train.runs import list_runs
from hyla.train.store import Store
from hyla.train.training import Training
from hyla.train.watch import Progress, Watcher

ROOT = Path(__file__).parents[1]
PAPER = [name for name, one in EXPERIMENTS.items() if not one.is_demo]
# Table 1 of the paper, written out once more.
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


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_settings(name: str) -> None:
    for point in points_of(EXPERIMENTS[name]):
        config = point.config
        if config is None:
            continue
        assert config.batch == 128
        assert "validation" in config.splits
        rates, decays, warmups = (
            {getattr(m, field) for m in config.members}
            for field in ("learning_rate", "weight_decay", "warmup")
        )
        assert len(point.settings) == len(rates) * len(decays) * len(warmups)
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
        assert config.steps * 128 == point.axes.get("millions", 20) * 1_000_000
        factor = point.axes.get("width", 1)
        assert (model.width, model.hidden_size) == (128 * factor, 256 * factor)
        assert model.heads * model.head_size == 64 * factor
        assert model.layers == depth
        assert config.evaluation_instances == 51_200


def test_the_ablation_table_is_the_papers() -> None:
    points = ABLATION.points()
    assert (len(points), len(ROWS)) == (26, 13)
    by_place = {(p.axes["row"], p.axes["task"]): p.config for p in points}
    hyla, moe = by_place["HYLA", "SRAVEN"], by_place[title("softmax", "moe"), "fuzzy logic"]
    assert hyla is not None
    assert moe is not None
    assert (hyla.steps, hyla.batch) == (156_250, 128)
    assert moe.model.feed_forward == "moe"


def test_experiments_share_their_trainings() -> None:
    """Table 1's HYLA on SRAVEN is in four experiments: it is trained once."""
    keys = []
    for name, place in (
        ("ablation", {"row": "HYLA", "task": "SRAVEN"}),
        ("heads", {"kind": "hyla", "heads": 16}),
        ("features", {"kind": "hyla", "features": 4}),
        ("held-out", {"kind": "hyla", "held_out": 0.25}),
        ("codes-sraven", {"kind": "hyla"}),
    ):
        (point,) = (p for p in points_of(EXPERIMENTS[name]) if p.axes.items() >= place.items())
        assert point.config is not None
        keys.append({Training.of(point.config, member).key for member in point.config.members})
    assert all(key == keys[0] for key in keys)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_points_have_their_axes_once(name: str) -> None:
    experiment = EXPERIMENTS[name]
    for tiny in (False, True):
        points = points_of(experiment, tiny=tiny)
        places = [tuple(point.axes.items()) for point in points]
        assert points
        assert len(set(places)) == len(places)
        assert set(points[0].axes) <= set(experiment.axes)


@pytest.mark.parametrize("name", [name for name in PAPER if name != "ambiguity"])
def test_every_published_row_is_complete_in_itself(name: str) -> None:
    for row in all_rows(EXPERIMENTS[name], Store.open(None, ROOT / "results")):
        for sample in row.measures.values():
            assert len(sample.per_seed) == len(row.seeds)
        if row.trainings:
            assert row.setting is not None
            assert all(one.path is None for one in row.trainings)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_runs_and_is_judged(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    first = {
        axis: (str(value),) for axis, value in points_of(experiment, tiny=True)[-1].axes.items()
    }
    options = Options(Plan(seeds=2), tmp_path, only=first, tiny=True, device="cpu")
    found = run_experiment(experiment, options)
    assert found
    for row in found:
        assert row.measures or row.picture
        assert set(row.axes) == set(experiment.axes)
    assert all(judge(claim, found).outcome in OUTCOMES for claim in experiment.claims)
    before = sorted(tmp_path.rglob("*"))
    assert run_experiment(experiment, options) == found
    assert sorted(tmp_path.rglob("*")) == before  # nothing was made twice


HYLA = {"row": ("HYLA",), "task": ("SRAVEN",)}


def tiny(folder: Path, **options: Any) -> Options:
    return Options(runs=folder, only=HYLA, tiny=True, device="cpu", **options)


def test_another_experiment_uses_the_same_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(seeds=1)
    (ablation,) = run_experiment(ABLATION, tiny(tmp_path, plan=plan))

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(module, "train", refuse)
    only = {"kind": ("hyla",), "held_out": ("0.25",)}
    (row,) = run_experiment(EXPERIMENTS["held-out"], replace(tiny(tmp_path, plan=plan), only=only))
    assert row.main == ablation.main


def test_more_seeds_join_those_that_are_there(tmp_path: Path) -> None:
    (one,) = run_experiment(ABLATION, tiny(tmp_path, plan=Plan(seeds=1)))
    (five,) = run_experiment(ABLATION, tiny(tmp_path, plan=Plan(seeds=5)))
    assert five.seeds == (0, 1, 2, 3, 4)
    assert five.main.per_seed[0] == one.main.per_seed[0]
    assert five.trainings[0] == one.trainings[0]
    (row,) = run_experiment(ABLATION, tiny(tmp_path, plan=Plan()))
    assert row.seeds == five.seeds  # a finished point shows all that there are


class Stop(Watcher):
    """Ends the training as Ctrl-C would."""

    def progress(self, progress: Progress) -> None:
        if progress.step >= 2:
            signal.raise_signal(signal.SIGINT)


def test_an_interrupted_run_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_experiment(ABLATION, tiny(tmp_path / "cut", plan=Plan(seeds=2)), Stop)
    (state,) = list_runs(tmp_path / "cut")
    assert state.state in ("interrupted", "new")
    resumed = run_experiment(ABLATION, tiny(tmp_path / "cut", plan=Plan(seeds=2)))
    whole = run_experiment(ABLATION, tiny(tmp_path / "whole", plan=Plan(seeds=2)))
    assert resumed[0].measures == whole[0].measures
    assert len(list_runs(tmp_path / "cut")) == len(list_runs(tmp_path / "whole"))


def test_a_run_of_another_process_is_waited_for(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from hyla.experiments import EXPERIMENTS\n"
        "from hyla.experiments.run import Options, run_experiment\n"
        "from hyla.experiments.spec import Plan; from hyla.train.watch import Watcher\n"
        "class Slow(Watcher):\n"
        "    def progress(self, progress): print(progress.step, flush=True); time.sleep(0.7)\n"
        "only = {'row': ('HYLA',), 'task': ('SRAVEN',)}\n"
        "options = Options(Plan(seeds=1), Path(sys.argv[1]), only=only, tiny=True, device='cpu')\n"
        "run_experiment(EXPERIMENTS['ablation'], options, Slow)\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    said: list[str] = []
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()  # it has begun
        options = tiny(tmp_path, plan=Plan(seeds=1))
        (row,) = run_experiment(ABLATION, options, say=said.append)
    assert other.returncode == 0
    assert row.seeds == (0,)
    assert any("another process" in text for text in said)
    assert len(list_runs(tmp_path)) == 1


def test_time_is_up_between_trainings(tmp_path: Path) -> None:
    with pytest.raises(TimeUp):
        run_experiment(ABLATION, tiny(tmp_path, deadline=time.monotonic() - 1))
    assert not list_runs(tmp_path)


def test_a_precision_reaches_the_training(tmp_path: Path) -> None:
    (row,) = run_experiment(ABLATION, tiny(tmp_path, plan=Plan(seeds=1, precision="bf16")))
    assert row.precisions == ["bf16"]


def small(folder: Path) -> Path:
    """Run folders of a published experiment, three seeds of three steps each."""
    (point,) = points_of(ABLATION, HYLA)
    assert point.config is not None
    members = tuple(Member(seed, 3e-4, 0.3, 1000) for seed in (107, 108))
    config = replace(point.config, members=members, evaluation_instances=64)
    path = folder / "runs" / "mine"
    train(config, path, device="cpu", stop_at=2)
    # As if it had come to its end: training 156,250 steps is not for a test.
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"state": "finished"}))
    values = json.loads((path / "config.json").read_text())
    values["config"]["evaluation_instances"] = point.config.evaluation_instances
    (path / "config.json").write_text(json.dumps(values))
    return folder / "runs"


def test_publishing_adds_and_changes_nothing_else(tmp_path: Path) -> None:
    runs, results = small(tmp_path), tmp_path / "results"
    results.mkdir()
    for name in ("trainings.jsonl", "analyses.jsonl"):
        (results / name).write_bytes((ROOT / "results" / name).read_bytes())
    before = (results / "trainings.jsonl").read_text()
    (point,) = points_of(ABLATION, HYLA)
    (row,) = rows(point, Plan(), Store.open(None, results))
    seeds = row.seeds
    assert publish([EXPERIMENTS["heads"]], runs, results)["trainings.jsonl"] == 2
    after = (results / "trainings.jsonl").read_text()
    assert after.startswith(before)
    assert publish([ABLATION], runs, results)["trainings.jsonl"] == 0
    store = Store.open(None, results)
    (row,) = rows(point, Plan(), store)
    assert row.seeds == seeds  # 107 and 108 do not follow on these
    further = range(len(seeds), len(seeds) + 2)
    assert missing(point, Plan(seeds=len(seeds) + 2), store) == [
        Member(seed, 3e-4, 0.3, 1000) for seed in further
    ]


def test_the_exported_tables_are_those_of_the_store(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for name in ("trainings.jsonl", "analyses.jsonl"):
        (results / name).write_bytes((ROOT / "results" / name).read_bytes())
    for path in export([EXPERIMENTS[name] for name in PAPER], results):
        assert path.read_text() == (ROOT / "results" / path.name).read_text(), path.name
    table = json.loads((results / "ablation.json").read_text())
    assert table["schema"] == 1
    assert sum(row["preset"] == "as_described" for row in table["rows"]) == 26
    for row in table["rows"]:
        assert {"row", "task", "kind", "preset", "per_seed", "mean", "interval"} <= row.keys()
        assert row["mean"] == pytest.approx(sum(row["per_seed"]) / len(row["per_seed"]))


@pytest.mark.skipif(not hasattr(os, "kill"), reason="needs signals")
def test_a_killed_reproduce_resumes_at_the_same_step(tmp_path: Path) -> None:
    options = tiny(tmp_path, plan=Plan(seeds=1))
    (point,) = options.points(ABLATION)
    assert point.config is not None
    config = replace(point.config, members=(replace(point.config.members[0], seed=0),))
    train(config, tmp_path / "begun", device="cpu", stop_at=2)
    plan = Plan(seeds=1, setting=replace(config.members[0], seed=0))
    seen: list[int] = []

    class See(Watcher):
        def progress(self, progress: Progress) -> None:
            seen.append(progress.step)

    run_experiment(ABLATION, replace(options, plan=plan), See)
    assert seen[0] == 2
    assert [state.path.name for state in list_runs(tmp_path)] == ["begun"]


def test_trainings_as_published_stand_beside_those_as_described(tmp_path: Path) -> None:
    options = tiny(tmp_path, plan=Plan(seeds=1))
    run_experiment(ABLATION, options)
    (described,) = points_of(ABLATION, HYLA)
    (point,) = points_of(ABLATION, HYLA, preset="as_published")
    assert point.config is not None
    assert point.config.model.attention_dropout == 0.1
    assert point.config.schedule == "early_cosine"
    assert point.config.task.published_splits
    published = replace(options, preset="as_published")
    assert all(missing(one, options.plan, options.store()) for one in published.points(ABLATION))
    rows_of = run_experiment(ABLATION, published)
    assert {row.preset for row in rows_of} == {"as_published"}
    assert not missing(published.points(ABLATION)[0], options.plan, options.store())
    # The published rows as described are those of before.
    store = Store.open(None, ROOT / "results")
    assert {row.preset for row in all_rows(ABLATION, store)} == {"as_described"}
    assert rows(described, Plan(), store)


def test_without_a_grid_the_setting_is_that_chosen_as_described(tmp_path: Path) -> None:
    (described,) = points_of(ABLATION, HYLA)
    (point,) = points_of(ABLATION, HYLA, preset="as_published")
    store = Store.open(None, ROOT / "results")
    there = [one for one in store.published if "model.attention_dropout" not in one.description]
    store = Store(there, [], store.analysed)
    chosen = choose(described, Plan(), store)
    assert chosen is not None
    mine = made(point, chosen[0], 0, run="mine", held_out=0.4)
    other = made(point, Member(0, 1e-3, 0.1, 1000), 0, run="other", held_out=0.9)
    both = Store([*store.published, mine, other], [], store.analysed)
    (row,) = rows_as_published(ABLATION, both, HYLA)
    assert row.trainings == (mine,)
    assert rows(described, Plan(), both) == rows(described, Plan(), store)
