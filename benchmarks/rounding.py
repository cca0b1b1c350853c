"""How rounding spreads in the first steps of training: `python benchmarks/rounding.py`.

Trains two SRAVEN models of the paper's size in float64, fp32, fp16 and bf16, without compilation,
and prints how far the running mean of all gradients and the summed loss are from float64.
"""

import argparse
import sys
from dataclasses import replace

import torch

from hyla.train import grid, sraven_run
from hyla.train.population import Population


def main() -> None:
    """Prints a line for each kind and precision, after 1 and 10 steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", nargs="+", default=["softmax", "linear", "hyla"])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    for attention in options.kind:
        config = sraven_run(grid(range(2), [1e-3], [0.1], [10]), kind=attention)
        exact, *others = (
            Population(
                replace(config, precision=precision), range(2), torch.device(options.device),
                compiled=False,
            )
            for precision in ("fp64", "fp32", "fp16", "bf16")
        )  # fmt: skip
        for step in range(1, 11):
            for population in (exact, *others):
                population.advance()
            if step not in (1, 10):
                continue
            for population in others:
                mean, truth = population.moments.first[0], exact.moments.first[0]
                gradient = float((mean - truth).norm() / truth.norm())
                loss = float((population.loss_sum / exact.loss_sum - 1).abs().max())
                name = f"{attention:10}{population.config.precision:6}{step:3} steps"
                sys.stdout.write(f"{name}: gradients off by {gradient:.1e}, loss by {loss:.1e}\n")


if __name__ == "__main__":
    main()
