"""The benchmark of the trainer: it runs, and refuses to time what is wrong."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import tiny_run

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "train.py"


def test_it_runs_on_a_cpu() -> None:
    options = "--device cpu --attention softmax --members 1 --mode eager --repeats 1 --json"
    command = [sys.executable, str(SCRIPT), *options.split()]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["instances_per_second"] > 0


def test_what_is_wrong_is_not_timed() -> None:
    benchmark, config = runpy.run_path(str(SCRIPT)), tiny_run("sraven")
    population, gradients = benchmark["make"](config, range(3), torch.device("cpu"), compiled=False)
    assert max(benchmark["check"](config, population, gradients)) < 1e-4
    with pytest.raises(SystemExit, match="wrong: errors of loss and gradients"):
        benchmark["check"](config, population, gradients * 1.1)
    population.loss_sum[1] *= 1.01
    with pytest.raises(SystemExit, match="wrong: errors of loss and gradients"):
        benchmark["check"](config, population, gradients)
