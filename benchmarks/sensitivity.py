"""Whether a training on SRAVEN depends on rounding: `python benchmarks/sensitivity.py`.

Trains copies of one member of the paper's grid: the same seed, data and hyperparameters, but every
initial weight of a copy is off by up to one part in ten million, about one rounding of fp32. With
plain attention in fp32 it needs no kernels. What the copies come to differ by is what
rounding alone does to a training; compare it with what seeds do.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hyla.attention.layer import MultiHeadAttention
from hyla.train import RunConfig, grid, sraven_run
from hyla.train.population import Population

OFF = 1e-7  # relative


def copies_of(config: RunConfig, copies: int, device: torch.device) -> Population:
    """Copies of the only member before their first step; the first is the member itself."""
    config = replace(config, members=config.members * copies, precision="fp32")
    population = Population(config, range(copies), device, compiled=device.type == "cuda")
    for module in population.model.modules():
        if isinstance(module, MultiHeadAttention):
            module.backend = "reference"
    noise = torch.Generator().manual_seed(0)
    for weights in population.parameters[1:]:
        weights *= 1 + OFF * (2 * torch.rand(weights.shape, generator=noise).to(device) - 1)
    population.rehearse(["held_out"])
    population.capture()
    return population


def main() -> None:
    """Prints a line every so many steps, and keeps all of them in a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attention", default="hyla")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=20_000, help="of the paper's 156,250")
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="a file for the curves, written as they grow")
    options = parser.parse_args()
    member = grid([options.seed], [options.learning_rate], [options.weight_decay], [1000])
    config = sraven_run(member, attention=options.attention)
    population = copies_of(config, options.copies, torch.device(options.device))
    instances = config.interim_instances
    curves: dict[str, list[Any]] = {"step": [], "loss": [], "held_out": []}
    for step in range(options.every, options.steps + 1, options.every):
        for _ in range(options.every):
            population.advance()
        loss = [round(row[0] / options.every, 4) for row in population.take_log().tolist()]
        sums = population.evaluate("held_out", instances).tolist()
        found = [population.objective.measures(one, instances)["accuracy"] for one in sums]
        held_out = [round(100 * value, 2) for value in found]
        for name, value in zip(curves, (step, loss, held_out), strict=True):
            curves[name].append(value)
        sys.stdout.write(f"step {step}: loss {loss}, held out {held_out} %\n")
        sys.stdout.flush()
        if options.output is not None:
            row = {
                "attention": options.attention, "seed": options.seed, "precision": "fp32",
                "learning_rate": options.learning_rate, "weight_decay": options.weight_decay,
                "off": OFF, **curves, "device": options.device, "torch": torch.__version__,
                "command": " ".join(["python", "benchmarks/sensitivity.py", *sys.argv[1:]]),
            }  # fmt: skip
            options.output.write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
