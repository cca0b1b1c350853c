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
    (found,) = run("train.py", "--attention softmax --members 1 --mode eager --repeats 1")
    assert found["instances_per_second"] > 0


def test_attention_is_timed() -> None:
    (found,) = run("attention.py", "--shape tiny --no-reference --repeats 1")
    for what in ("forward", "forward and backward"):
        assert found["times"][what]["fused_ms"] > 0
        assert "reference_ms" not in found["times"][what]


def test_language_models_are_timed() -> None:
    found = run("language.py", "--tiny --mode eager --batch 2 --steps 1")
    assert [line["attention"] for line in found] == ["softmax", "hyla"]
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
