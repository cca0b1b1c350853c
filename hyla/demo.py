"""What `make reproduce` runs: the paper's identity, its first claim on a reduced task, the report.

First, for every kind: the layer equals a sum of generated value networks. Then softmax attention,
linear attention and HYLA learn small fuzzy logic functions from examples, three seeds of each as
one population, two populations at a time; their latent codes are collected and decoded, and all
of it is put on one page. `hyla/experiments/demo.py` says how the task was chosen.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from hyla.attention.hypernetwork import value_networks
from hyla.attention.layer import MultiHeadAttention
from hyla.attention.variants import KINDS
from hyla.experiments import EXPERIMENTS, Row
from hyla.experiments.codes import CONTROL, F1
from hyla.experiments.declare import HELD_OUT, IN_DISTRIBUTION
from hyla.experiments.judge import shown
from hyla.experiments.runner import Options, run_experiment
from hyla.experiments.sraven import ATTENTIONS
from hyla.report import write
from hyla.train.watch import Progress, Watcher

PAGE = Path("report.html")
STEPS_BETWEEN_LINES = 500


@torch.no_grad()
def identity_error(kind: str) -> float:
    """Largest difference between a layer and the sum over keys of its value networks."""
    layer = MultiHeadAttention(24, 6, kind=kind, positions="t5", dtype=torch.float64)
    x = torch.randn(2, 11, 24, dtype=torch.float64)
    y = value_networks(layer, x)(x).sum(dim=-2) + layer.output.bias
    return float((y - layer(x)).abs().max())


class Lines(Watcher):
    """Tells now and then how far a run is."""

    def __init__(self, name: str) -> None:
        self.name, self.told = name, 0

    def progress(self, progress: Progress) -> None:
        if progress.step >= self.told + STEPS_BETWEEN_LINES:
            self.told = progress.step
            print(f"  {self.name}: step {progress.step} of {progress.steps}", flush=True)


def results_of(attention: str) -> tuple[list[Row], list[Row]]:
    """Trains one kind, or finds it trained, and looks at its codes."""
    torch.set_num_threads(1)  # as fast for tensors this small; another kind is trained beside it
    options = Options(scale="demo", only={"attention": (attention,)}, device="cpu")
    rows = run_experiment(EXPERIMENTS["demo"], options, lambda: Lines(attention))
    return rows, run_experiment(EXPERIMENTS["demo-codes"], options)


def main() -> None:
    """Prints the parts of the demonstration, and where the page is."""
    start = time.monotonic()
    torch.manual_seed(0)
    print("Every layer is a sum over keys of value networks that the latent code generates.")
    print("Largest difference of the two computations, in float64:\n")
    for kind in KINDS:
        print(f"  {kind:34}{identity_error(kind):10.1e}")
    print("\nTraining 3 seeds each of HYLA, linear and softmax attention on fuzzy logic functions")
    print("of 3 variables, 60 % of the functions held out (what is trained already is kept):\n")
    # The slowest first, alone on a core while the other two take turns on the second.
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        found = dict(
            zip(reversed(ATTENTIONS), pool.map(results_of, reversed(ATTENTIONS)), strict=True)
        )
    print("\nR2 in percent, mean and standard error over seeds; F1 of decoding the terms of")
    print("held-out functions from the codes of the last layer, and with shuffled labels:\n")
    print(f"  {'':10}{'held out':>14}{'in training':>14}{'F1':>14}{'shuffled':>14}")
    for attention in ATTENTIONS:
        (row,), codes = found[attention]
        decoded = [r for r in codes if r["what"] == "decoding" and r["label"] == "all"][-1]
        cells = [shown(row, HELD_OUT), shown(row, IN_DISTRIBUTION)]
        cells += [shown(decoded, F1), shown(decoded, CONTROL)]
        print(f"  {attention:10}" + "".join(f"{cell:>14}" for cell in cells))
    print("\nTo expect on held-out functions: hyla 60 ± 6, softmax 40 ± 6, linear 21 ± 3.")
    write(PAGE)
    print(f"\nThe report: {PAGE.absolute()} ({time.monotonic() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
