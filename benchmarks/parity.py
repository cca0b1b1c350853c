"""Whether kernels and precision change what is learned: `python benchmarks/parity.py`.

Trains the same members (seeds, data, initialisation) with plain and with fused attention, in fp32,
tf32 and bf16, to the end of a short schedule. Rounding is amplified while training, so single
trajectories part; what must agree is the mean over seeds. Every way is compared with plain
attention in fp32, seed by seed: it passes if the differences of the final training loss (in logs)
and of the held-out measure have means within three standard errors of 0 (there are many of them).
Half the learning rate is a control that must not pass. Exits with 1 if a way fails, or a control
passes. A job for a GPU: on a CPU it takes hours.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from hyla.attention.layer import MultiHeadAttention
from hyla.attention.variants import KINDS
from hyla.train import RunConfig, fuzzy_logic_run, grid, sraven_run
from hyla.train.config import MAIN_MEASURES
from hyla.train.population import Population

PLAIN, CONTROL = "plain, fp32", "control: plain, fp32, half the learning rate"
# Backend of attention (None: the fastest), precision, factor of the learning rate.
WAYS: dict[str, tuple[str | None, str, float]] = {
    PLAIN: ("reference", "fp32", 1.0),
    CONTROL: ("reference", "fp32", 0.5),
    "fused, fp32": (None, "fp32", 1.0),
    "fused, tf32": (None, "tf32", 1.0),
    "plain, bf16": ("reference", "bf16", 1.0),
    "fused, bf16": (None, "bf16", 1.0),
}
STEPS = {"fuzzy": 4000, "sraven": 12_000}
LOGS = 40  # points of a curve
LAST = 4  # of them, whose mean is the final loss
ERRORS = 3.0  # standard errors


def config_of(task: str, attention: str, seeds: int, steps: int, factor: float) -> RunConfig:
    """A short training of the paper's model, at a learning rate of its grid."""
    if task == "fuzzy":
        members = grid(range(seeds), [3e-3 * factor], [0.1], [min(100, steps // 4)])
        return fuzzy_logic_run(members, kind=attention, steps=steps)
    members = grid(range(seeds), [3e-4 * factor], [0.1], [min(500, steps // 4)])
    return sraven_run(members, kind=attention, instances=steps * 128)


def train(config: RunConfig, backend: str | None, device: torch.device) -> dict[str, Any]:
    """The curves of the training loss, and the held-out measure, of every member."""
    torch.compiler.reset()
    everyone = range(len(config.members))
    population = Population(config, everyone, device, compiled=device.type == "cuda")
    for module in population.model.modules():
        if isinstance(module, MultiHeadAttention):
            module.backend = backend
    population.rehearse(["held_out"])
    population.capture()
    every = config.steps // LOGS
    curves: list[list[float]] = [[] for _ in everyone]
    start = time.perf_counter()
    for step in range(1, config.steps + 1):
        population.advance()
        if step % every == 0:
            for curve, (loss, *_) in zip(curves, population.take_log().tolist(), strict=True):
                curve.append(loss / every)
    seconds = time.perf_counter() - start
    instances = config.evaluation_instances
    sums = population.evaluate("held_out", instances).tolist()
    measure = MAIN_MEASURES[config.task_name]
    held_out = [100 * population.objective.measures(one, instances)[measure] for one in sums]
    return {"loss": curves, "held_out": held_out, "seconds": round(seconds, 1)}


def differences(way: dict[str, Any], plain: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Mean and standard error over seeds: of the log of the final loss, and of the measure."""

    def final(curve: list[float]) -> float:
        return math.log(mean(curve[-LAST:]))

    pairs = {
        "log_loss": (map(final, way["loss"]), map(final, plain["loss"])),
        "held_out": (way["held_out"], plain["held_out"]),
    }
    found = {}
    for name, (ours, theirs) in pairs.items():
        gaps = [one - other for one, other in zip(ours, theirs, strict=True)]
        found[name] = (mean(gaps), stdev(gaps) / math.sqrt(len(gaps)))
    return found


def same(found: dict[str, tuple[float, float]]) -> bool:
    """Whether both differences are within three standard errors of 0."""
    return all(abs(gap) <= ERRORS * error for gap, error in found.values())


def main() -> int:
    """Trains, compares, prints a line for each way and writes all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--task", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--kind", nargs="+", default=["softmax", "hyla"])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, help="of the whole schedule")
    parser.add_argument("--output", type=Path, help="a file for the rows, which are added to it")
    options = parser.parse_args()
    for name in options.kind:
        if name not in KINDS:
            parser.error(f"attention: expected one of {', '.join(KINDS)}, got {name}")
    if options.seeds < 2:
        parser.error(f"seeds: expected at least 2, got {options.seeds}")
    if options.steps is not None and options.steps < LOGS:
        parser.error(f"steps: expected at least {LOGS}, got {options.steps}")
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    wrong = False
    for task in options.task:
        steps = options.steps or STEPS[task]
        for attention in options.kind:
            plain: dict[str, Any] = {}
            for way, (backend, precision, factor) in WAYS.items():
                config = config_of(task, attention, options.seeds, steps, factor)
                config = replace(config, precision=precision)
                told = f"{task}, {attention}, {way}: {steps:,} steps of {options.seeds} models"
                sys.stderr.write(f"{told} on {name}\n")
                result = train(config, backend, device)
                plain = plain or result
                found = differences(result, plain)
                passed = same(found)
                wrong |= passed == (way == CONTROL)
                row = {
                    "task": task, "kind": attention, "way": way, "same": passed,
                    "steps": steps, "differences": found, **result,
                    "device": name, "torch": torch.__version__,
                    "seeds": options.seeds,
                    "command": " ".join(["python", "benchmarks/parity.py", *sys.argv[1:]]),
                }  # fmt: skip
                write(row, options.output)
    return int(wrong)


def write(row: dict[str, Any], output: Path | None) -> None:
    """A line for people; the whole row into a file, at once."""
    loss, held_out = row["differences"]["log_loss"], row["differences"]["held_out"]
    verdict = "same" if row["same"] else "differs"
    sys.stdout.write(
        f"{row['task']:7}{row['attention']:9}{row['way']:46}held out {mean(row['held_out']):6.2f} %"
        f", differs by {held_out[0]:6.2f} ± {held_out[1]:.2f}, log of the loss by {loss[0]:7.4f} "
        f"± {loss[1]:.4f}: {verdict}\n"
    )
    sys.stdout.flush()
    if output is not None:
        rows = json.loads(output.read_text()) if output.exists() else []
        lines = ",\n".join(json.dumps(one) for one in [*rows, row])
        output.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    sys.exit(main())
