"""Time training of a population, in instances/s: `python benchmarks/train.py`.

Trains SRAVEN (4 layers of width 128, or more) or fuzzy logic (32 examples), batch 128 per member. A
step includes data, forward, backward and AdamW, replayed as a graph on CUDA; evaluation is
excluded. A rate is printed only if the first, middle and last member match training alone in plain
PyTorch (fp32, reference attention, uncompiled, no custom kernels) in the gradients of the first
step and the losses of ten steps. Times are medians over repetitions of several steps; `--profile`
lists the kernels of a step by time.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from dataclasses import replace

import torch
from torch import Tensor

from hyla import KINDS, MultiHeadAttention, native
from hyla.attention.kernels.choice import BACKENDS
from hyla.experiments.paper.runs import fuzzy_logic_run, sraven_run
from hyla.model import FEED_FORWARDS, sraven_model
from hyla.train import RunConfig, grid
from hyla.train.population import Population

CHECKED_STEPS = 10
# Relative errors of the loss summed over these steps and of the first gradient, by norm. HYLA needs
# such tolerances: rounding may flip a ReLU, which its gradients amplify (docs/performance.md). The
# second is for 4 layers and, except in fp32, grows with their number, up to 0.5.
TOLERANCES = {
    "fp32": (1e-3, 0.02), "tf32": (0.01, 0.05), "fp16": (0.01, 0.05), "bf16": (0.02, 0.2)
}  # fmt: skip


def make(
    config: RunConfig,
    which: range,
    device: torch.device,
    compiled: bool,
    backend: str | None = None,
) -> tuple[Population, Tensor]:
    """Return a population after the checked steps, and its scaled gradients of the first step."""
    population = Population(config, which, device, compiled=compiled)
    for model in filter(None, (population.model, population.alone)):
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                module.backend = backend
    population.warm_up_kernels()
    population.capture()
    population.advance()
    gradients = population.moments.first.clone()
    for _ in range(CHECKED_STEPS - 1):
        population.advance()
    return population, gradients


def allowed(precision: str, layers: int) -> tuple[float, float]:
    """Return the tolerances of loss and gradients."""
    loss, gradient = TOLERANCES[precision]
    if precision != "fp32":
        gradient = min(0.5, gradient * max(1.0, layers / 4))
    return loss, gradient


def check(config: RunConfig, population: Population, gradients: Tensor) -> tuple[float, float]:
    """Return the largest errors of loss and gradients; SystemExit if they are too large."""
    plain, count = replace(config, precision="fp32"), len(config.members)
    errors = []
    for member in sorted({0, count // 2, count - 1}):
        which = range(member, member + 1)
        with native.using("products", None):
            alone, exact = make(plain, which, population.device, False, "reference")
        loss = abs(float(population.loss_sum[member] / alone.loss_sum[0] - 1))
        errors.append((loss, float((gradients[member] - exact[0]).norm() / exact[0].norm())))
    largest = max(loss for loss, _ in errors), max(gradient for _, gradient in errors)
    tolerance = allowed(config.precision, config.model.layers)
    if not (largest[0] < tolerance[0] and largest[1] < tolerance[1]):
        raise SystemExit(f"wrong: errors of loss and gradients {largest}, allowed {tolerance}")
    return largest


def steps_at_a_time(population: Population) -> int:
    """Return enough steps to make the overhead of timing negligible."""
    return 20 if population.device.type == "cuda" else 1


def milliseconds(population: Population, repeats: int) -> float:
    """Return the median time of a step."""
    times, steps = [], steps_at_a_time(population)
    for _ in range(repeats):
        if population.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            population.advance()
        if population.device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / steps)
    return statistics.median(times) * 1e3


def kernels(population: Population, count: int = 20) -> list[tuple[str, int, float]]:
    """Return the slowest kernels of a step: name, launches, milliseconds."""
    from torch.profiler import ProfilerActivity, profile

    steps = steps_at_a_time(population)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            population.advance()
        torch.cuda.synchronize()
    events = [event for event in profiler.key_averages() if event.device_time_total > 0]
    events.sort(key=lambda event: -event.device_time_total)
    rows = [
        (event.key, event.count // steps, event.device_time_total / 1e3 / steps) for event in events
    ]
    rest = ("all others", sum(row[1] for row in rows[count:]), sum(row[2] for row in rows[count:]))
    return [*rows[:count], rest]


def main() -> None:
    """Check, measure and print each combination of options."""
    parser = argparse.ArgumentParser(description=__doc__)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--task", default="sraven", choices=["sraven", "fuzzy"])
    kinds = ["softmax", "linear", "hyla"]
    parser.add_argument("--kind", nargs="+", default=kinds, choices=KINDS, metavar="KIND")
    parser.add_argument("--feed-forward", default="mlp", choices=FEED_FORWARDS)
    parser.add_argument("--heads", type=int, default=16, help="SRAVEN only; total width 64")
    parser.add_argument("--layers", type=int, help="default: 4 in SRAVEN, 2 in fuzzy logic")
    parser.add_argument("--width-factor", type=int, default=1, help="multiplies width and heads")
    parser.add_argument("--members", nargs="+", type=int, default=[32 if on_gpu else 2])
    precisions = ["bf16", "fp16", "tf32"] if on_gpu else ["fp32"]
    parser.add_argument("--precision", nargs="+", default=precisions, choices=TOLERANCES)
    parser.add_argument("--attention-dropout", nargs="+", type=float, default=[0.0])
    parser.add_argument("--mode", nargs="+", default=["compiled"], choices=["compiled", "eager"])
    parser.add_argument("--backend", choices=BACKENDS, help="default: the fastest")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--profile", action="store_true", help="list kernels by time (GPU only)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        sraven_model().with_heads(options.heads)
        if options.layers is None:
            options.layers = {"sraven": 4, "fuzzy": 2}[options.task]
    except ValueError as error:
        parser.error(f"--{error}")
    if min(*options.members, options.repeats, options.layers, options.width_factor) < 1:
        names = "--members, --repeats, --layers, --width-factor"
        parser.error(f"{names}: expected whole numbers of at least 1")
    size = {"layers": options.layers, "width_factor": options.width_factor}
    if options.device != "cpu" and not on_gpu:
        parser.error(f"--device: expected cpu (PyTorch sees no GPU), got {options.device}")
    if options.device == "cpu" and "tf32" in options.precision:
        parser.error("--precision: tf32 needs a GPU")
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    if not options.json:
        about = f"{options.layers} layers, width {128 * options.width_factor}"
        where = name if device.type == "cuda" else f"{name} with {torch.get_num_threads()} threads"
        title = {"sraven": "SRAVEN", "fuzzy": "Fuzzy logic"}[options.task]
        sys.stdout.write(f"{title}, {about}, batch 128, {where}, PyTorch {torch.__version__}\n")
    for attention, precision, members, dropout, mode in itertools.product(
        options.kind, options.precision, options.members, options.attention_dropout, options.mode
    ):
        torch.compiler.reset()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        everyone = grid(range(members), [1e-3], [0.1], [10])
        if options.task == "sraven":
            config = sraven_run(everyone, kind=attention, **size)
            model = config.model.with_heads(options.heads * options.width_factor)
        else:
            config = fuzzy_logic_run(everyone, kind=attention)
            model = replace(config.model, layers=options.layers)
        model = replace(model, feed_forward=options.feed_forward, attention_dropout=dropout)
        config = replace(config, model=model, precision=precision)
        population, gradients = make(
            config, range(members), device, mode == "compiled", options.backend
        )
        errors = check(config, population, gradients)
        step = milliseconds(population, options.repeats)
        result = {
            "task": options.task, "kind": attention, "feed_forward": options.feed_forward,
            "heads": model.heads, "attention_dropout": dropout,
            **size, "precision": precision, "members": members, "mode": mode,
            "milliseconds_a_step": round(step, 3),
            "instances_per_second": round(members * config.batch / step * 1e3),
            "loss_error": errors[0], "gradient_error": errors[1],
            "device": name, "torch": torch.__version__,
        }  # fmt: skip
        if device.type == "cuda":
            result["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        if options.profile:
            result["kernels"] = kernels(population)
        write(result, options.json)


def write(result: dict[str, object], as_json: bool) -> None:
    """Print one line, as JSON or readable with the kernels below it."""
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        return
    sys.stdout.write(
        "{kind:10}{feed_forward:5}{heads:2} heads, {precision:5}{members:4} members, "
        "dropout {attention_dropout:g}, {mode:9}"
        "{milliseconds_a_step:8.2f} ms/step,{instances_per_second:9,} instances/s; "
        "loss off by {loss_error:.0e}, gradients by {gradient_error:.0e}\n".format(**result)
    )
    for kernel, launches, time_taken in result.get("kernels", []):
        sys.stdout.write(f"    {time_taken:7.3f} ms {launches:4} x {kernel[:100]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
