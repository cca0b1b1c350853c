"""The benchmarks: they run, and refuse to time what is wrong."""

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_run

from hyla.experiments import EXPERIMENTS
from hyla.train import train
from hyla.train.population import Population

FOLDER = Path(__file__).parent.parent / "benchmarks"
CPU = torch.device("cpu")


def run(script: str, options: str) -> list[Any]:
    """The lines of JSON that a benchmark prints on a CPU."""
    command = [sys.executable, str(FOLDER / script), "--device", "cpu", "--json", *options.split()]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def load(script: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / script))


def test_training_is_timed() -> None:
    (found,) = run("train.py", "--kind softmax --members 1 --mode eager --repeats 1")
    assert found["instances_per_second"] > 0


def test_attention_is_timed() -> None:
    (found,) = run("attention.py", "--shape tiny --no-reference --repeats 1")
    for what in ("forward", "forward and backward"):
        assert found["times"][what]["fused_ms"] > 0
        assert "reference_ms" not in found["times"][what]


def test_language_models_are_timed() -> None:
    found = run("language.py", "--tiny --mode eager --batch 2 --steps 1")
    assert [line["kind"] for line in found] == ["softmax", "hyla"]
    assert all(line["tokens_per_second"] > 0 for line in found)


def test_wrong_attention_is_not_timed() -> None:
    benchmark = load("attention.py")
    shape = benchmark["TINY"]
    right = benchmark["hyla"](shape, None)
    assert max(benchmark["check"](shape, right, CPU)) < 1e-6
    with pytest.raises(SystemExit, match="wrong: errors of output and gradients"):
        benchmark["check"](shape, lambda q, k, v, bias: right(q, k, v * 1.01, bias), CPU)


def test_a_wrong_language_model_is_not_timed() -> None:
    benchmark = load("language.py")
    config = benchmark["tiny"](benchmark["language_model"]("hyla"))
    model, loss = benchmark["make"](config, CPU, compiled=False)
    words = torch.randint(101, (4, 18))
    benchmark["check"](model, loss, words)
    with pytest.raises(SystemExit, match="wrong: errors of loss and gradients"):
        benchmark["check"](model, lambda words: loss(words) * 1.03, words)


def test_wrong_training_is_not_timed() -> None:
    benchmark, config = load("train.py"), tiny_run("sraven")
    population, gradients = benchmark["make"](config, range(3), CPU, compiled=False)
    assert max(benchmark["check"](config, population, gradients)) < 1e-4
    with pytest.raises(SystemExit, match="wrong: errors of loss and gradients"):
        benchmark["check"](config, population, gradients * 1.1)
    population.loss_sum[1] *= 1.01
    with pytest.raises(SystemExit, match="wrong: errors of loss and gradients"):
        benchmark["check"](config, population, gradients)


def test_deeper_models_may_be_rounded_more_but_not_in_fp32() -> None:
    benchmark = load("train.py")
    for precision, (loss, gradient) in benchmark["TOLERANCES"].items():
        for layers in (2, 4):
            assert benchmark["allowed"](precision, layers) == (loss, gradient)
        deeper = gradient if precision == "fp32" else min(0.5, 4 * gradient)
        assert benchmark["allowed"](precision, 16) == (loss, deeper)


def test_parity_passes_chance_and_not_a_change() -> None:
    benchmark = load("parity.py")
    curves = [[2.0, 1.0, 1.0, 1.0, 1.0], [2.0, 1.1, 1.1, 1.1, 1.1], [2.0, 0.9, 0.9, 0.9, 0.9]]
    plain = {"loss": curves, "held_out": [50.0, 52.0, 49.0]}
    other = {"loss": [curves[1], curves[0], curves[2]], "held_out": [51.0, 51.0, 49.5]}
    assert benchmark["same"](benchmark["differences"](other, plain))
    worse = [[loss * (1.2 + member / 100) for loss in curve] for member, curve in enumerate(curves)]
    assert not benchmark["same"](benchmark["differences"](plain | {"loss": worse}, plain))


def test_parity_follows_every_member() -> None:
    config = replace(tiny_run("fuzzy_logic"), steps=80)
    train = load("parity.py")["train"]
    plain, fused = (train(config, backend, CPU) for backend in ("reference", None))
    assert plain["loss"] == fused["loss"]  # there is no other kernel on a CPU
    assert [len(curve) for curve in plain["loss"]] == [40] * len(config.members)
    assert len(plain["held_out"]) == len(config.members)


def test_copies_differ_by_a_rounding() -> None:
    config = replace(tiny_run("sraven"), members=tiny_run("sraven").members[1:2])
    population = load("sensitivity.py")["copies_of"](config, 3, CPU)
    first, *others = Population(config, [0], CPU, compiled=False).parameters.detach()
    assert not others
    assert torch.equal(population.parameters[0], first)
    for copy in population.parameters[1:]:
        assert (copy - first).abs().max() > 0
        torch.testing.assert_close(copy, first, rtol=2e-7, atol=0)
    assert not torch.equal(population.parameters[1], population.parameters[2])
    for _ in range(3):
        population.advance()
    losses = population.take_log()[:, 0]
    assert losses.std() < 1e-4 * losses.mean()  # the same data


@pytest.mark.parametrize(
    "script, options, told",
    [
        ("train.py", "--precision tf32", "expected another than tf32, which takes a GPU"),
        ("train.py", "--heads 7", "--heads: expected a divisor of 64"),
        ("train.py", "--layers 0", "--layers, --width-factor: expected whole numbers of at least"),
        ("sensitivity.py", "--copies 0", "--copies, --steps, --every: expected at least 1"),
        ("sensitivity.py", "--steps 20 --every 7", "steps a multiple of every"),
        ("sensitivity.py", "--output none/curves.json", "--output: there is no folder none"),
        ("sensitivity.py", "--heads 7", "--heads: expected a divisor of 64"),
    ],
)
def test_bad_options_are_told(
    script: str, options: str, told: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", [script, "--device", "cpu", *options.split()])
    with pytest.raises(SystemExit) as ended:
        load(script)["main"]()
    assert told in capsys.readouterr().err or told in str(ended.value)


def keep(results: Path, *words: Path | str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "trainings.py"), *map(str, words)]
    command += ["--results", str(results)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(("task", "measure"), [("sraven", "accuracy"), ("fuzzy_logic", "r2")])
def test_curves_of_trainings_are_kept(tmp_path: Path, task: str, measure: str) -> None:
    splits = ("train", "held_out", "validation", *(["unknown"] if task == "fuzzy_logic" else []))
    config = tiny_run(task, splits=splits, evaluate_every=10)
    run, others = tmp_path / "a-run", [{"run": "another", "seed": 7}]
    train(config, run, device="cpu")
    (tmp_path / "trainings.json").write_text(json.dumps(others))
    row = {"runs": ["a-run"], "device": "none", "versions": {}, "command": "hyla"}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    for _ in range(2):  # the second time they are replaced
        assert "trainings of 1 run(s): 3, in all 4" in keep(tmp_path, run).stdout
    first, *kept = json.loads((tmp_path / "trainings.json").read_text())
    assert first == others[0]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for number, (member, found) in enumerate(zip(config.members, kept, strict=True)):
        assert {"seed": member.seed, "learning_rate": member.learning_rate}.items() <= found.items()
        assert found["step"] == [10, 20, 29]
        own = [r for r in records if r["member"] == number]
        ends = [r[measure] for r in own if r.get("split") == "held_out"]
        assert found["held_out"] == pytest.approx([100 * x for x in ends], abs=0.006)
        assert (set(found.get("signs", ())) == {"right", "other"}) == (task == "sraven")
        assert (found["weight_decay"], found["warmup"]) == (member.weight_decay, member.warmup)
        assert (found["precision"], found["row"]) == ("fp32", "HYLA")
        assert found["task"] == {"sraven": "SRAVEN", "fuzzy_logic": "fuzzy logic"}[task]
        assert (
            found | {"run": "a-run", "device": "none", "versions": {}, "command": "hyla"} == found
        )
        last = {r["split"]: r for r in own if "split" in r}
        assert found["in_distribution"] == pytest.approx(100 * last["train"][measure], abs=0.006)
        assert found["validation_loss"] == pytest.approx(last["validation"]["loss"], abs=1e-4)
        if task == "sraven":
            right = last["held_out"]["feature_accuracy_by_rule"]["constant"]
            shown = found["features_right"]["constant"]
            assert shown == (None if right is None else pytest.approx(100 * right, abs=0.006))
            evaluated = [r for r in own if r.get("split") == "held_out"]
            rules = [r["feature_accuracy_by_rule"] for r in evaluated]
            signs = [r["signs"] for r in evaluated]
            curves = {
                name: [part[name] for part in rules] for name in ("constant", "distribute three")
            }
            curves |= {
                f"sign {name}": [part[name] for part in signs] for name in ("right", "other")
            }
            assert set(found["by_step"]) == set(curves)
            for name, parts in curves.items():
                shown = [None if x is None else pytest.approx(100 * x, abs=0.006) for x in parts]
                assert found["by_step"][name] == shown
        else:
            terms = [100 * r["r2"] for r in own if r.get("split") == "unknown"]
            assert [*found["unknown_terms_by_step"].values()] == pytest.approx(terms, abs=0.006)
            assert found["unknown_terms"]["r2"] == pytest.approx(terms[-1], abs=0.006)
        losses = {r["step"]: r["loss"] for r in own if "split" not in r}
        assert found["training_loss"] == pytest.approx([losses[s] for s in (10, 20, 29)], abs=1e-4)


def test_a_run_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    run = tmp_path / "a-run"
    train(tiny_run("sraven", evaluate_every=10), run, device="cpu", stop_at=1)
    (run / "metrics.jsonl").write_text("")
    command = ["--command", "hyla train"]
    for words, reason in (
        ([tmp_path / "nowhere"], "nowhere: expected a run folder, there is no config.json in it"),
        ([run], "no row names it"),
        ([run, *command], "expected evaluations in metrics.jsonl, there are none so far"),
        ([run, *command, "--copy", "0"], "--copy: expected at least 1, got 0"),
        ([run, run, *command], "expected one folder of each name"),
    ):
        found = keep(tmp_path, *words)
        assert (found.returncode > 0, reason in found.stderr) == (True, True), found.stderr
        assert "Traceback" not in found.stderr
    assert not (tmp_path / "trainings.json").exists()


def test_stopped_trainings_are_kept_as_far_as_they_came_and_copies_stay_apart(
    tmp_path: Path,
) -> None:
    run = tmp_path / "a-run"
    config = tiny_run("sraven", evaluate_every=10, decay_head_biases=True)
    train(config, run, device="cpu", stop_at=25)
    row = {"runs": ["a-run"], "device": "none", "versions": {}, "command": "hyla"}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    for words in (["--copy", "2"], ["--command", "hyla train"], ["--copy", "2"]):
        kept = keep(tmp_path, run, *words)  # the third takes the place of the first
        assert kept.returncode == 0, kept.stderr
    lines = json.loads((tmp_path / "trainings.json").read_text())
    assert [line.get("copy") for line in lines] == [None] * 3 + [2] * 3
    assert [line["command"] for line in lines] == ["hyla train"] * 3 + ["hyla"] * 3
    assert all(line["device"] == "none" for line in lines[:3])  # that of the row
    assert all(line["versions"]["torch"] == torch.__version__ for line in lines[3:])  # its own
    for line in lines:
        assert (line["stopped_at"], line["steps"]) == (25, 29)
        assert line["step"] == [10, 20, 25]  # where it stops it is evaluated
        assert line["last_evaluated_on"] == config.evaluation_instances
        assert len(line["held_out"]) == len(line["by_step"]["sign right"]) == 3
        assert line["decay_head_biases"]
        assert not {"in_distribution", "validation_loss", "features_right"} & set(line)


def test_a_killed_training_is_kept_up_to_its_torn_record(tmp_path: Path) -> None:
    run = tmp_path / "a-run"
    config = tiny_run("sraven", evaluate_every=10)
    train(config, run, device="cpu", stop_at=25)
    (run / "summary.json").unlink()
    text = (run / "metrics.jsonl").read_text()
    torn = text[: text.index('{"step": 25')] + '{"step": 25, "mem'
    (run / "metrics.jsonl").write_text(torn)
    assert keep(tmp_path, run, "--command", "hyla train", "--early", "10").returncode == 0
    records = [json.loads(line) for line in text.splitlines()]
    for number, line in enumerate(json.loads((tmp_path / "trainings.json").read_text())):
        own = [r for r in records if r["member"] == number and "split" not in r]
        assert line["early"]["step"] == [r["step"] for r in own][:2] == [5, 10]
        assert line["early"]["loss"] == pytest.approx([r["loss"] for r in own][:2], abs=1e-7)
    for line in json.loads((tmp_path / "trainings.json").read_text()):
        assert (line["stopped_at"], line["step"]) == (20, [10, 20])
        assert line["last_evaluated_on"] == config.interim_instances


@pytest.mark.parametrize("stop_at", [25, None])
def test_a_member_that_diverged_is_kept_with_its_step(tmp_path: Path, stop_at: int | None) -> None:
    first, second, _ = tiny_run("sraven").members
    members = first, replace(second, learning_rate=1e30)
    config = tiny_run("sraven", evaluate_every=10, members=members, splits=("train", "held_out"))
    summary = train(config, tmp_path / "a-run", device="cpu", stop_at=stop_at)
    assert keep(tmp_path, tmp_path / "a-run", "--command", "hyla train").returncode == 0
    sound, diverged = json.loads((tmp_path / "trainings.json").read_text())
    assert diverged["diverged_at"] == summary["members"][1]["diverged_at"] is not None
    assert "stopped_at" not in diverged
    assert ("stopped_at" in sound) == (stop_at is not None)
    assert ("in_distribution" in sound) == (stop_at is None)


def test_trainings_tell_where_they_differ_from_table_1() -> None:
    axes = load("trainings.py")["axes"]
    for experiment, usual in (
        ("heads", {"heads": 16}), ("features", {"features": 4}), ("held-out", {"held_out": 0.25}),
        ("scaling-width", {"millions": 20, "width": 1}),
        ("scaling-depth", {"millions": 20, "depth": 4}),
    ):  # fmt: skip
        for point in EXPERIMENTS[experiment].points():
            expected = {k: v for k, v in point.axes.items() if k != "attention" and v != usual[k]}
            found = axes(point.config)
            if "instances" in found:
                found["millions"] = found.pop("instances") // 1_000_000
            if "held_out_fraction" in found:
                found["held_out"] = found.pop("held_out_fraction")
            assert found == expected


def test_the_largest_rise_of_a_loss_is_found() -> None:
    largest_rise = load("trainings.py")["largest_rise"]
    steps, losses = [1, 2, 3, 4, 5], [1.0, 9.0, 0.5, 0.75, 0.25]
    assert largest_rise(steps, losses, 0) == {"step": 2, "from": 1.0, "to": 9.0}
    assert largest_rise(steps, losses, 2) == {"step": 4, "from": 0.5, "to": 0.75}
    assert largest_rise(steps, losses, 5) is None
