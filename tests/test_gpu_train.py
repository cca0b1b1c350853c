"""Training on a CUDA device: compiled, replayed as a graph, without waiting, in bounded memory."""

import gc
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ALL_KINDS, tiny_run
from torch import Tensor

from hyla.experiments.paper.runs import fuzzy_logic_run, sraven_run
from hyla.train import Member, RunConfig, grid, train
from hyla.train.placement import Placement, make_populations
from hyla.train.population import Population

pytestmark = pytest.mark.gpu
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
MEMBERS = (Member(3, 1e-3, 0.1, 2), Member(5, 3e-3, 0.0, 0), Member(0, 1e-3, 0.3, 5))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    torch.cuda.reset_peak_memory_stats()
    yield
    gc.collect()
    torch.cuda.empty_cache()


def small_run(task: str, kind: str = "hyla", **options: Any) -> RunConfig:
    """The tokens, heads and buckets of the paper, in a narrow model of two layers."""
    run = sraven_run if task == "sraven" else fuzzy_logic_run
    config = run(MEMBERS, kind=kind)
    model = replace(config.model, layers=2, width=32, hidden_size=64)
    settings = {"batch": 16, "evaluation_instances": 100, "steps": 1000, "log_every": 10}
    return replace(config, model=model, **(settings | options))


def trained(config: RunConfig, steps: int, device: torch.device) -> Population:
    population = Population(
        config, range(len(config.members)), device, compiled=device.type == "cuda"
    )
    population.warm_up_kernels(["held_out"])
    population.capture()
    for _ in range(steps):
        population.advance()
    return population


@pytest.mark.parametrize(
    "task, kind",
    [("sraven", kind) for kind in ALL_KINDS] + [("fuzzy_logic", k) for k in ALL_KINDS[:3]],
)
def test_a_replayed_population_is_near_float64_on_the_cpu(task: str, kind: str) -> None:
    assert_near_float64_on_the_cpu(small_run(task, kind))


@pytest.mark.parametrize("kind", ["hyla", "softmax"])
def test_so_is_one_with_attention_dropout(kind: str) -> None:
    config = small_run("sraven", kind)
    config = replace(config, model=replace(config.model, attention_dropout=0.3))
    assert_near_float64_on_the_cpu(config)


def assert_near_float64_on_the_cpu(config: RunConfig) -> None:
    given = trained(config, 10, GPU)
    exact = trained(replace(config, precision="fp64"), 10, CPU)
    # Rounding of fp32 (6e-8), amplified by Adam where a gradient is only rounding.
    torch.testing.assert_close(given.loss_sum.cpu(), exact.loss_sum, rtol=1e-4, atol=0)
    torch.testing.assert_close(given.gradient_norm.cpu(), exact.gradient_norm, rtol=1e-2, atol=0)
    measured, expected = (p.evaluate("held_out", 100).cpu() for p in (given, exact))
    torch.testing.assert_close(measured[:, 0], expected[:, 0], rtol=1e-3, atol=0)
    assert given.step == 10


@pytest.mark.parametrize("precision, tolerance", [("tf32", 0.005), ("fp16", 0.005), ("bf16", 0.02)])
def test_lower_precisions_are_near_fp32(precision: str, tolerance: float) -> None:
    config = small_run("sraven")
    full = trained(config, 50, GPU).loss_sum
    low = trained(replace(config, precision=precision), 50, GPU).loss_sum
    assert (low / full - 1).abs().max() < tolerance
    assert not low.equal(full)


def test_training_does_not_wait_for_the_device() -> None:
    population = trained(small_run("sraven"), 1, GPU)
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(5):
            population.advance()
            population.take_log()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_does_not_grow_with_the_steps() -> None:
    population = trained(small_run("fuzzy_logic"), 5, GPU)
    population.evaluate("held_out", 100)
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(200):
        population.advance()
        population.take_log()
    population.evaluate("held_out", 100)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= allocated
    assert torch.cuda.memory_reserved() <= reserved


def test_a_member_that_diverges_is_frozen_in_the_graph() -> None:
    config = small_run("sraven")
    absurd = replace(config.members[1], learning_rate=1e30)
    members = (config.members[0], absurd, config.members[2])
    population = trained(replace(config, members=members), 20, GPU)
    good = trained(config, 20, GPU)
    assert population.active.tolist() == [True, False, True]
    assert population.parameters[[0, 2]].equal(good.parameters[[0, 2]])


def test_a_population_too_large_for_the_memory_is_split(tmp_path: Path) -> None:
    config = small_run("sraven", batch=16384, steps=6, splits=("held_out",))
    members = tuple(Member(seed, warmup=0) for seed in range(6))
    config = replace(config, members=members, model=replace(config.model, layers=1))
    whole = train(config, tmp_path / "whole", device="cuda:0")
    assert '"populations": [6]' in (tmp_path / "whole" / "log.jsonl").read_text()
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.set_per_process_memory_fraction(peak * 0.7 / total)
    try:
        split = train(config, tmp_path / "split", device="cuda:0")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    log = (tmp_path / "split" / "log.jsonl").read_text()
    assert '"populations": [3, 3]' in log or '"populations": [2, 2, 2]' in log, log
    for given, expected in zip(split["members"], whole["members"], strict=True):
        assert given["loss"] == pytest.approx(expected["loss"], rel=1e-3)


def test_populations_that_share_memory_do_not_disturb_each_other() -> None:
    config = small_run("sraven")
    together = trained(config, 0, GPU)
    _, parts = make_populations(config, Placement((GPU,), True, 1), lambda text: None)
    for part in parts:
        part.evaluate("held_out", 100)
    for _ in range(7):
        together.advance()
        for part in parts:
            part.advance()
    losses = torch.cat([part.loss_sum for part in parts])
    torch.testing.assert_close(losses, together.loss_sum, rtol=1e-4, atol=0)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_stopped_and_resumed_on_the_gpu(tmp_path: Path, precision: str) -> None:
    config = tiny_run("sraven", precision=precision, evaluate_every=9)
    train(config, tmp_path / "whole", device="cuda:0")
    for stop in (4, 17, None):
        train(config, tmp_path / "run", device="cuda:0", stop_at=stop)
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "run")]
    assert metrics[0] == metrics[1]


def loss_curve(precision: str, steps: int, window: int) -> Tensor:
    """Mean losses of 8 members of an SRAVEN training over windows of steps, `[windows, 8]`."""
    config = sraven_run(grid(range(8), [1e-3], [0.1], [100]), kind="hyla")
    model = replace(config.model, layers=2, width=64, hidden_size=128)
    config = replace(config, model=model, precision=precision, steps=steps)
    population = Population(config, range(8), torch.device("cuda", 0), compiled=True)
    population.warm_up_kernels()
    population.capture()
    logs = []
    for step in range(1, steps + 1):
        population.advance()
        if step % window == 0:
            logs.append(population.take_log()[:, 0] / window)
    return torch.stack(logs)


@pytest.mark.slow
@pytest.mark.parametrize("precision, rounded_more", [("fp32", "tf32"), ("bf16", "bf16")])
def test_training_is_that_of_the_reference(
    precision: str, rounded_more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainings that round differently part; the fused ones no further than the reference's own."""
    given = loss_curve(precision, 1500, 50)
    with monkeypatch.context() as patch:
        torch.compiler.reset()
        patch.setattr("hyla.attention.kernels.choice.choose", lambda *arguments: "reference")
        exact, other = (loss_curve(p, 1500, 50) for p in ("fp32", rounded_more))
    off, noise = (given / exact - 1).abs(), (other / exact - 1).abs()
    sys.stdout.write(f"first window off by {off[0].max():.1e}, all by {off.mean():.1e}, ")
    sys.stdout.write(f"the reference's own noise {noise.mean():.1e}\n")
    assert exact[-1].mean() < 0.97 * exact[0].mean()  # it learns
    assert off[0].max() < (1e-3 if precision == "fp32" else 0.02)
    assert off.mean() < 2 * noise.mean() + 2e-3
    assert off.max() < 3 * noise.max() + 0.02
