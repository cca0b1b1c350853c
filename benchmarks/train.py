"""How many instances a second a population trains on: `python benchmarks/train.py`.

SRAVEN, 4 layers, width 1, batch 128 for each member: the whole step (data, forward, backward,
AdamW), compiled and replayed as a CUDA graph, evaluation excluded. Prints no rate unless the result
is right: after ten steps the loss of members at the beginning, in the middle and at the end must be
that of each trained by itself, in fp32, without compilation. Times are medians over repetitions of
several steps; `--profile` adds where the time of a step goes, by kernel.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace

import torch

from hyla.train import RunConfig, grid, sraven_run
from hyla.train.population import Population

TOLERANCE = {"fp32": 1e-3, "tf32": 0.01, "bf16": 0.02}  # of the summed loss of ten steps
CHECKED_STEPS, TIMED_STEPS = 10, 20


def make(config: RunConfig, which: range, device: torch.device, compiled: bool) -> Population:
    """A population after the steps that are checked."""
    population = Population(config, which, device, compiled=compiled)
    population.rehearse()
    population.capture()
    for _ in range(CHECKED_STEPS):
        population.advance()
    return population


def check(config: RunConfig, population: Population) -> None:
    """Raises unless some members have the losses that they have alone."""
    plain, count = replace(config, precision="fp32"), len(config.members)
    for member in sorted({0, count // 2, count - 1}):
        alone = make(plain, range(member, member + 1), population.device, compiled=False)
        error = abs(float(population.loss_sum[member] / alone.loss_sum[0] - 1))
        if not error < TOLERANCE[config.precision]:
            raise SystemExit(f"wrong: the loss of member {member} is off by a factor of {error}")


def milliseconds(population: Population, repeats: int) -> float:
    """The median time of a step."""
    times = []
    for _ in range(repeats):
        if population.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(TIMED_STEPS):
            population.advance()
        if population.device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / TIMED_STEPS)
    return statistics.median(times) * 1e3


def kernels(population: Population, count: int = 20) -> list[tuple[str, int, float]]:
    """The kernels of a step that take the most time: name, launches, milliseconds."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(TIMED_STEPS):
            population.advance()
        torch.cuda.synchronize()
    events = [event for event in profiler.key_averages() if event.device_time_total > 0]
    events.sort(key=lambda event: -event.device_time_total)
    rows = [
        (event.key, event.count // TIMED_STEPS, event.device_time_total / 1e3 / TIMED_STEPS)
        for event in events
    ]
    rest = ("all others", sum(row[1] for row in rows[count:]), sum(row[2] for row in rows[count:]))
    return [*rows[:count], rest]


def main() -> None:
    """Checks, measures, prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--attention", nargs="+", default=["softmax", "linear", "hyla"])
    parser.add_argument("--members", nargs="+", type=int, default=[32])
    parser.add_argument("--precision", nargs="+", default=["bf16", "tf32"])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    if not options.json:
        sys.stdout.write(f"SRAVEN, 4 layers, batch 128, {name}, PyTorch {torch.__version__}\n")
    for attention in options.attention:
        for precision in options.precision:
            for members in options.members:
                torch.compiler.reset()
                config = sraven_run(grid(range(members), [1e-3], [0.1], [10]), attention=attention)
                config = replace(config, precision=precision)
                population = make(config, range(members), device, compiled=device.type == "cuda")
                check(config, population)
                step = milliseconds(population, options.repeats)
                result = {
                    "attention": attention, "precision": precision, "members": members,
                    "milliseconds_a_step": round(step, 3),
                    "instances_per_second": round(members * config.batch / step * 1e3),
                    "device": name, "torch": torch.__version__,
                }  # fmt: skip
                if options.profile:
                    result["kernels"] = kernels(population)
                write(result, options.json)


def write(result: dict[str, object], as_json: bool) -> None:
    """One line of JSON, or a line for people with the kernels below it."""
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        return
    sys.stdout.write(
        "{attention:34}{precision:6}{members:5} members {milliseconds_a_step:8.2f} ms a step "
        "{instances_per_second:12,} instances/s, checked\n".format(**result)
    )
    for kernel, launches, time_taken in result.get("kernels", []):
        sys.stdout.write(f"    {time_taken:7.3f} ms {launches:4} x {kernel[:100]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
