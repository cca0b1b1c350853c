"""What `make reproduce` runs: the paper's identity, its first claim on a reduced task, the report.

First, for every kind: the layer equals a sum of generated value networks. Then softmax attention,
linear attention and HYLA learn small fuzzy logic functions from examples, three seeds of each as
one population, two populations at a time; their latent codes are collected and decoded, and all
of it is put on one page. `hyla/experiments/demo.py` says how the task was chosen.
"""

import signal
import time
from functools import partial
from pathlib import Path
from types import FrameType

import torch

from hyla.attention.hypernetwork import value_networks
from hyla.attention.layer import MultiHeadAttention
from hyla.attention.variants import KINDS
from hyla.experiments import EXPERIMENTS
from hyla.experiments.code_rows import CONTROL, F1
from hyla.experiments.declare import HELD_OUT, IN_DISTRIBUTION
from hyla.experiments.judge import find, shown
from hyla.experiments.results import read_rows, results_file
from hyla.experiments.runner import Options, run_experiment
from hyla.experiments.sraven import ATTENTIONS
from hyla.processes import run_all
from hyla.report import write
from hyla.train.watch import Progress, Watcher

PAGE = Path("report.html")
STEPS_BETWEEN_LINES = 500
WORKERS = 2
SLOWEST_FIRST = ("hyla", "linear", "softmax")  # so that the other two take turns beside it


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


def work(attention: str) -> None:
    """Trains a kind, unless it is, and looks at its codes."""
    torch.set_num_threads(1)  # as fast for tensors this small; others are trained beside them
    options = Options(scale="demo", only={"kind": (attention,)}, device="cpu")
    run_experiment(EXPERIMENTS["demo"], options, partial(Lines, attention))
    print(f"  {attention}: trained; its latent codes", flush=True)
    run_experiment(EXPERIMENTS["demo-codes"], options)


def train_all() -> None:
    """Trains all kinds; a request to end is passed on to the workers, and they save first."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    jobs = {attention: partial(work, attention) for attention in SLOWEST_FIRST}
    if any(dict(run_all(jobs, WORKERS)).values()):
        raise SystemExit("a part of the demonstration has failed, see above")


def show() -> None:
    """What came of it, beside what is to be expected."""
    rows, codes = (read_rows(results_file(name, "demo")) for name in ("demo", "demo-codes"))
    print("\nR2 in percent, mean and standard error over seeds; F1 of decoding the terms of")
    print("held-out functions from the codes of the last layer, with the inputs of the context")
    print("fixed, and the same with shuffled labels:\n")
    print(f"  {'':10}{'held out':>14}{'in training':>14}{'F1':>14}{'shuffled':>14}")
    last = EXPERIMENTS["demo"].points()[0].config.model.layers - 1  # type: ignore[union-attr]
    place = {"what": "decoding", "fixed": "context", "layer": last, "label": "all"}
    for attention in ATTENTIONS:
        row, decoded = find(rows, kind=attention), find(codes, kind=attention, **place)
        assert row is not None
        assert decoded is not None
        cells = [shown(row, HELD_OUT), shown(row, IN_DISTRIBUTION)]
        cells += [shown(decoded, F1), shown(decoded, CONTROL)]
        print(f"  {attention:10}" + "".join(f"{cell:>14}" for cell in cells))
    print("\nTo expect on held-out functions: softmax 50 ± 7, linear 23 ± 5, hyla 63 ± 3.")


def main() -> None:
    """Prints the parts of the demonstration, and where the page is."""
    start = time.monotonic()
    torch.manual_seed(0)
    print("Every layer is a sum over keys of value networks that the latent code generates.")
    print("Largest difference of the two computations, in float64:\n")
    for kind in KINDS:
        print(f"  {kind:34}{identity_error(kind):10.1e}")
    print("\nTraining 3 seeds each of HYLA, linear and softmax attention on fuzzy logic functions")
    print("of 3 variables, 60 % of the functions held out (what is done already is kept):\n")
    try:
        train_all()
    except KeyboardInterrupt:
        raise SystemExit("interrupted: the same command goes on") from None
    show()
    write(PAGE)
    print(f"\nThe report: {PAGE.absolute()} ({time.monotonic() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
