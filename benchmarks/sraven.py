"""Time generating and solving SRAVEN instances: `python benchmarks/sraven.py`.

Rates are printed only if results are right: instances generated on this device must equal, bit for
bit, those generated uncompiled on the CPU (which the tests check). The solver's answers must
contain the true one, and its posterior must be calibrated. Times are medians over repetitions of a
large batch; on a GPU, generation is compiled.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from hyla.tasks.sraven import Sraven, SravenConfig
from hyla.tasks.sraven.solver import solve


def check(device: str) -> None:
    """Raise SystemExit unless the solver is right on this device."""
    config = SravenConfig()
    batch = Sraven(config, device=device).batch("all", 20_000)
    solution = solve(batch.panels, config)
    truth = (solution.answers == batch.targets[solution.answer_instance]).all(dim=-1)
    if not solution.answer_instance[truth].equal(torch.arange(20_000, device=device)):
        raise SystemExit("wrong: the solver misses the true answer")
    right = (solution.best == batch.targets).all(dim=-1).double().mean()
    if abs(float(right - solution.best_probability.mean())) > 0.01:  # five standard errors
        raise SystemExit("wrong: the posterior is not calibrated")


def seconds(work: Callable[[int], Tensor], repeats: int, device: str) -> float:
    """Return the median time of a repetition, after one to warm up."""
    times = []
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        work(repeat)
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def measure(device: str, batch: int, repeats: int) -> dict[str, float]:
    """Measure instances/s of generating symbols, generating one-hot tokens, and solving."""
    task = Sraven(SravenConfig(), device=device)
    index = torch.arange(batch, device=device)

    def panels(index: Tensor) -> Tensor:
        return task.batch("train", index).panels

    def inputs(index: Tensor) -> Tensor:
        return task.batch("train", index).inputs

    if device != "cpu":
        panels, inputs = torch.compile(panels), torch.compile(inputs)
    ready, exact = panels(index), Sraven(SravenConfig()).batch("train", 1000)
    if not ready[:1000].cpu().equal(exact.panels) or not inputs(index)[:1000].cpu().equal(
        exact.inputs
    ):
        raise SystemExit("wrong: generated instances differ from those of the CPU")
    works: dict[str, Callable[[int], Tensor]] = {
        "generated_panels": lambda repeat: panels(index + repeat * batch),
        "generated_tokens": lambda repeat: inputs(index + repeat * batch),
        "solved": lambda repeat: solve(ready, task.config).best,
    }
    return {name: batch / seconds(work, repeats, device) for name, work in works.items()}


def main() -> None:
    """Check, measure and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="default: 8192 on the CPU, 1048576 on a GPU")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    check(options.device)
    batch = options.batch or (8192 if on_cpu else 1_048_576)
    rates = measure(options.device, batch, options.repeats)
    name = f"{torch.get_num_threads()} CPU threads" if on_cpu else torch.cuda.get_device_name()
    if options.json:
        result = {"device": name, "torch": torch.__version__, "batch": batch, "per_second": rates}
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return
    sys.stdout.write(f"SRAVEN, K = 4, F = 8, {name}, batches of {batch}: results checked\n")
    for work, rate in rates.items():
        sys.stdout.write(f"  {work:18}{rate:15,.0f} instances/s\n")


if __name__ == "__main__":
    main()
