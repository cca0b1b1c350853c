"""What rounding does to a training on SRAVEN: `python benchmarks/sensitivity.py`.

Trains copies of one member: the same seed, data and hyperparameters, but every initial weight of a
copy is off by up to one part in ten million, about one rounding of fp32. Attention is plain, so no
kernel of ours has a part in it. What the copies come to differ by is what rounding alone does.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hyla.attention.layer import MultiHeadAttention
from hyla.attention.variants import KINDS
from hyla.model import ModelConfig
from hyla.tasks.sraven import SravenConfig
from hyla.train import RunConfig, grid, sraven_run
from hyla.train.config import Member
from hyla.train.population import Population

OFF = 1e-7  # relative


def reduced(members: tuple[Member, ...], attention: str) -> RunConfig:
    """SRAVEN with 2 features and a small model, for a CPU."""
    task = SravenConfig(features=2)
    model = ModelConfig(
        input_size=task.values, output_size=task.values, layers=3, width=64, heads=8, head_size=4,
        hidden_size=256, kind=attention, buckets=task.tokens,
    )  # fmt: skip
    return RunConfig(task, model, members, 6000, batch=64, interim_instances=1024)


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
    parser.add_argument("--kind", default="hyla", choices=list(KINDS))
    parser.add_argument("--reduced", action="store_true", help=reduced.__doc__)
    parser.add_argument("--heads", type=int, help="so many, of the same size together")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--steps", type=int, help="of a schedule of 156,250, or 6000 if reduced")
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="a file for the curves, which are added to it")
    options = parser.parse_args()
    if options.steps is None:
        options.steps = 6000 if options.reduced else 20_000
    if min(options.copies, options.every, options.steps) < 1 or options.steps % options.every:
        parser.error("--copies, --steps, --every: expected at least 1, steps a multiple of every")
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device: expected cpu, for there is no GPU here, got {options.device}")
    if options.output is not None and not options.output.parent.is_dir():
        parser.error(f"--output: there is no folder {options.output.parent}")
    settings = {name: value for name, value in vars(options).items() if name != "output"}
    warmup = 200 if options.reduced else 1000
    members = grid([options.seed], [options.learning_rate], [options.weight_decay], [warmup])
    config = (reduced if options.reduced else sraven_run)(members, kind=options.kind)
    if options.heads is not None:
        try:
            config = replace(config, model=config.model.with_heads(options.heads))
        except ValueError as error:
            parser.error(f"--{error}")
    population = copies_of(config, options.copies, torch.device(options.device))
    instances = config.interim_instances
    sys.stdout.write(f"{options.kind}: {options.copies} copies on {options.device}\n")
    curves: dict[str, list[Any]] = {"step": [], "loss": [], "held_out": []}
    for step in range(options.every, options.steps + 1, options.every):
        for _ in range(options.every):
            population.advance()
        loss = [round(row[0] / options.every, 5) for row in population.take_log().tolist()]
        sums = population.evaluate("held_out", instances).tolist()
        found = [population.objective.measures(one, instances)["accuracy"] for one in sums]
        held_out = [round(100 * value, 2) for value in found]
        for name, value in zip(curves, (step, loss, held_out), strict=True):
            curves[name].append(value)
        sys.stdout.write(f"step {step}: loss {loss}, held out {held_out} %\n")
        sys.stdout.flush()
        if options.output is not None:
            write(options.output, settings | curves)


def write(output: Path, row: dict[str, Any]) -> None:
    """Puts the curves of a command into a file, in the place of earlier ones of the same."""
    command = " ".join(["python", "benchmarks/sensitivity.py", *sys.argv[1:]])
    on_gpu = row["device"].startswith("cuda")
    device = torch.cuda.get_device_name(row["device"]) if on_gpu else row["device"]
    row = row | {"device": device, "torch": torch.__version__, "command": command}
    rows = json.loads(output.read_text()) if output.exists() else []
    rows = [one for one in rows if one["command"] != command] + [row]
    output.write_text("[\n" + ",\n".join(json.dumps(one) for one in rows) + "\n]\n")


if __name__ == "__main__":
    main()
