"""What `make reproduce` runs: the paper's identity, its first claim on a reduced task, the report.

First it checks for every kind that the layer equals a sum of generated value networks. Then softmax
attention, linear attention and HYLA learn small fuzzy logic functions from examples, three seeds
each, two kinds at a time. Their latent codes are collected and decoded, and all results go on one
page. `hyla/experiments/demo.py` says how the task was chosen.
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
from hyla.experiments.demo import LAYERS
from hyla.experiments.paper.latent_codes import CONTROL, F1
from hyla.experiments.paper.sraven import THREE
from hyla.experiments.rows import all_rows
from hyla.experiments.run import Options, run_experiment
from hyla.experiments.spec import HELD_OUT, IN_DISTRIBUTION, Row
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
    """Prints the progress of a run now and then."""

    def __init__(self, name: str) -> None:
        self.name, self.printed = name, 0

    def progress(self, progress: Progress) -> None:
        if progress.step >= self.printed + STEPS_BETWEEN_LINES:
            self.printed = progress.step
            print(f"  {self.name}: step {progress.step} of {progress.steps}", flush=True)


def work(kind: str) -> None:
    """Train a kind, unless that is done, and analyse its codes."""
    torch.set_num_threads(1)  # as fast for tensors this small; the other core trains another kind
    options = Options(only={"kind": (kind,)}, device="cpu")
    run_experiment(EXPERIMENTS["demo"], options, partial(Lines, kind))
    print(f"  {kind}: trained; its latent codes", flush=True)
    run_experiment(EXPERIMENTS["demo-codes"], options)


def train_all() -> None:
    """Train all kinds; a request to terminate reaches the workers, which save first."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    jobs = {kind: partial(work, kind) for kind in SLOWEST_FIRST}
    if any(dict(run_all(jobs, WORKERS)).values()):
        raise SystemExit("a part of the demonstration has failed, see above")


def show() -> None:
    """Print the results beside the numbers to expect."""
    store = Options().store()
    rows, codes = (all_rows(EXPERIMENTS[name], store) for name in ("demo", "demo-codes"))
    print(
        "\nR2 in percent, mean and standard error over seeds; F1 of decoding the terms of held-out"
    )
    print(
        "functions from the codes of the last layer, with fixed context inputs, and the same with"
    )
    print("shuffled labels:\n")
    print(f"  {'':10}{'held out':>14}{'in training':>14}{'F1':>14}{'shuffled':>14}")
    place = {"what": "decoding", "fixed": "context", "layer": LAYERS - 1, "label": "all"}
    for kind in THREE:
        row = next(row for row in rows if row.is_at({"kind": kind}))
        decoded = next(row for row in codes if row.is_at({"kind": kind, **place}))
        cells = [shown(row, HELD_OUT), shown(row, IN_DISTRIBUTION)]
        cells += [shown(decoded, F1), shown(decoded, CONTROL)]
        print(f"  {kind:10}" + "".join(f"{cell:>14}" for cell in cells))
    print("\nTo expect on held-out functions: softmax 50 ± 7, linear 23 ± 5, hyla 63 ± 3.")


def shown(row: Row, name: str) -> str:
    """A measure as mean and standard error."""
    sample = row.measures[name]
    return f"{sample.mean:.1f} ± {sample.standard_error:.1f}"


def main() -> None:
    """Run the demonstration and write the page."""
    start = time.monotonic()
    torch.manual_seed(0)
    print("Every layer is a sum over keys of value networks that the latent code generates.")
    print("Largest difference of the two computations, in float64:\n")
    for kind in KINDS:
        print(f"  {kind:34}{identity_error(kind):10.1e}")
    print("\nTraining 3 seeds each of HYLA, linear and softmax attention on fuzzy logic functions")
    print("of 3 variables, 60 % of the functions held out (finished trainings are kept):\n")
    try:
        train_all()
    except KeyboardInterrupt:
        raise SystemExit("interrupted: the same command resumes") from None
    show()
    write(PAGE)
    print(f"\nThe report: {PAGE.absolute()} ({time.monotonic() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
