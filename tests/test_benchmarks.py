"""The benchmarks run, and refuse to time wrong results."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_run

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
    right = benchmark["ours"](shape, None)
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
    # Not HYLA, whose ReLUs may switch by rounding.
    benchmark, config = load("train.py"), tiny_run("sraven", kind="linear")
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


@pytest.mark.parametrize(
    "script, options, told",
    [
        ("train.py", "--precision tf32", "--precision: "),
        ("train.py", "--heads 7", "--heads: expected a divisor of 64"),
        ("train.py", "--layers 0", "--layers, --width-factor: expected whole numbers of at least"),
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
