"""Tables of the members of a run, best first."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from hyla.cli.display import duration, number
from hyla.cli.shared import output
from hyla.tasks.base import TaskConfig
from hyla.train.config import RunConfig


def splits_of(members: Iterable[dict[str, Any]]) -> list[str]:
    """The splits on which any member was evaluated, in their order."""
    names = (name for member in members for name in member.get("evaluation") or {})
    return list(dict.fromkeys(names))


def main_measure(member: dict[str, Any], split: str, task: type[TaskConfig]) -> float | None:
    """Return the main measure of a member on a split, if it was evaluated there."""
    value = ((member["evaluation"] or {}).get(split) or {}).get(task.measures[0].name)
    return None if value is None else float(value)


def best_first(members: list[dict[str, Any]], task: type[TaskConfig]) -> list[int]:
    """Order the members by the main measure, else by the loss; diverged ones come last."""
    splits = splits_of(members)
    split = task.headline if task.headline in splits or not splits else splits[0]
    sign = -1 if task.measures[0].higher_is_better else 1

    def key(i: int) -> tuple[bool, float, float, int]:
        member = members[i]
        found = main_measure(member, split, task)
        loss = float("inf") if member["loss"] is None else member["loss"]
        cost = float("inf") if found is None else sign * found
        return (member["diverged_at"] is not None, cost, loss, i)

    return sorted(range(len(members)), key=key)


def print_summary(folder: Path, config: RunConfig, summary: dict[str, Any]) -> None:
    """The members of a run that has ended, where it is and what to do next."""
    console = output()
    console.print(_table(summary["members"], type(config.task)))
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


def _table(members: list[dict[str, Any]], task: type[TaskConfig]) -> Table:
    splits, diverged = splits_of(members), any(m["diverged_at"] is not None for m in members)
    table = Table(box=box.SIMPLE, padding=(0, 0, 0, 1))
    settings = ("member", "seed", "lr", "decay", "warm-up")
    for name in (*settings, "loss", *(f"{split} {task.measures[0].name}" for split in splits)):
        table.add_column(name, justify="right", overflow="fold")
    if diverged:
        table.add_column("diverged", justify="right")
    for i in best_first(members, task):
        member = members[i]
        cells = [str(i), str(member["seed"])]
        cells += [f"{member[name]:g}" for name in ("learning_rate", "weight_decay", "warmup")]
        cells += [number(member["loss"])]
        cells += [number(main_measure(member, split, task)) for split in splits]
        at = member["diverged_at"]
        table.add_row(*cells, *(["" if at is None else f"step {at}"] if diverged else []))
    return table
