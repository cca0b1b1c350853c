"""Tables of the members of a run, best first."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from hyla.cli.display import duration, number
from hyla.cli.shared import output
from hyla.train.config import MAIN_MEASURES, RunConfig


def measure(evaluation: dict[str, Any] | None, split: str) -> tuple[str, float] | None:
    """The name and the value of the main measure on a split; None if it is not known.

    >>> measure({"held_out": {"loss": 1.0, "accuracy": 0.5}}, "held_out")
    ('accuracy', 0.5)
    """
    measured = (evaluation or {}).get(split) or {}
    for name in MAIN_MEASURES.values():
        if measured.get(name) is not None:
            return name, measured[name]
    return None


def splits_of(members: Iterable[dict[str, Any]]) -> list[str]:
    """The splits on which any member was evaluated, in their order."""
    names = (name for member in members for name in member.get("evaluation") or {})
    return list(dict.fromkeys(names))


def best_first(members: list[dict[str, Any]]) -> list[int]:
    """Numbers of the members, by the held-out measure, else the loss; diverged ones at the end."""
    splits = splits_of(members)
    split = "held_out" if "held_out" in splits or not splits else splits[0]

    def key(i: int) -> tuple[bool, float, float, int]:
        member = members[i]
        found = measure(member["evaluation"], split)
        loss = float("inf") if member["loss"] is None else member["loss"]
        return (
            member["diverged_at"] is not None,
            float("inf") if found is None else -found[1],
            loss,
            i,
        )

    return sorted(range(len(members)), key=key)


def print_summary(folder: Path, config: RunConfig, summary: dict[str, Any]) -> None:
    """The members of a run that has ended, where it is and what to do next."""
    console = output()
    console.print(_table(summary["members"]))
    step, steps, seconds = summary["step"], summary["steps"], summary["seconds"]
    rate = f"{summary['instances_per_second']:,.0f} instances/s"
    lines = [
        f"Loss: of training, the mean of the last {(step - 1) % config.log_every + 1} steps",
        f"{step} of {steps} steps in {duration(seconds)} of training, {rate}",
        f"Folder: {folder}",
    ]
    if summary["state"] == "diverged":
        lines.append("All members have diverged: try a lower --lr, or a longer --warmup")
    elif summary["state"] == "stopped":
        next_ = f"stopped at step {step} of {steps} as asked; "
        lines.append(next_ + "the same command without --stop-at goes on")
    else:
        lines.append(f"Next: `hyla runs {folder.parent}` compares it with the other runs there")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def _table(members: list[dict[str, Any]]) -> Table:
    splits, diverged = splits_of(members), any(m["diverged_at"] is not None for m in members)
    table = Table(box=box.SIMPLE, padding=(0, 0, 0, 1))
    settings = ("member", "seed", "lr", "decay", "warm-up")
    for name in (*settings, "loss", *(_title(members, split) for split in splits)):
        table.add_column(name, justify="right", overflow="fold")
    if diverged:
        table.add_column("diverged", justify="right")
    for i in best_first(members):
        member = members[i]
        found = [measure(member["evaluation"], split) for split in splits]
        cells = [str(i), str(member["seed"])]
        cells += [f"{member[name]:g}" for name in ("learning_rate", "weight_decay", "warmup")]
        cells += [number(member["loss"])]
        cells += [number(None if pair is None else pair[1]) for pair in found]
        at = member["diverged_at"]
        table.add_row(*cells, *(["" if at is None else f"step {at}"] if diverged else []))
    return table


def _title(members: list[dict[str, Any]], split: str) -> str:
    found = (measure(member["evaluation"], split) for member in members)
    name = next((pair[0] for pair in found if pair is not None), "")
    return f"{split} {name}".strip()
