"""`hyla runs`: list run folders."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from hyla.cli.members import best_first, main_measure
from hyla.cli.shared import output, write_json
from hyla.errors import bad_value
from hyla.experiments.run import RUNS
from hyla.tasks.base import task_class
from hyla.train.runs import RunState, list_runs


def runs(
    root: Positional[Annotated[Path, arg(metavar="[ROOT]")]] = RUNS, json: bool = False
) -> None:
    """List run folders with their progress and best member.

    Args:
        root: Folder to search, including its subfolders.
        json: Print JSON only.
    """
    if not root.is_dir() and (root.exists() or root != RUNS):
        raise bad_value("root", root, "a folder")
    found = list_runs(root)
    if json:
        write_json([_record(state) for state in found])
        return
    console = output()
    if not found:
        where = f"No runs in {root}" if root.exists() else f"No runs: no folder {root}"
        text = (
            f"{where}. Start one with hyla train sraven or hyla train fuzzy; see hyla train --help."
        )
        console.print(text, soft_wrap=True, markup=False)
        return
    console.print(_table(root, found))
    for state in found:
        if state.problem:
            text = f"{state.path} is {state.state}: {' '.join(state.problem.split())}"
            console.print(text, soft_wrap=True, markup=False)


def best(state: RunState) -> tuple[int, str, float] | None:
    """Return number, main measure and its value of the best member on held-out instances."""
    try:
        task, members = task_class(state.task), (state.summary or {})["members"]
        i = best_first(members, task)[0]
        found = main_measure(members[i], task.headline, task)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return None  # not evaluated, not a summary of ours, or a task that is not registered
    return None if found is None else (i, task.measures[0].name, found)


def _record(state: RunState) -> dict[str, Any]:
    record = asdict(state) | {"path": str(state.path)}
    found = best(state)
    names = ("member", "measure", "value")
    return record | {"best": None if found is None else dict(zip(names, found, strict=True))}


def _table(root: Path, found: list[RunState]) -> Table:
    table = Table(title=f"Runs in {root}", title_justify="left")
    table.add_column("run", overflow="fold")
    for name in ("state", "step", "task", "kind", "members", "best held out", "member"):
        text = name in ("state", "task", "kind")
        table.add_column(name, justify="left" if text else "right")
    for state in found:
        top = best(state)
        name = state.path.name if state.path == root else str(state.path.relative_to(root))
        of_best = ("", "") if top is None else (f"{top[1]} {top[2]:.4f}", str(top[0]))
        step = f"{state.step}/{state.steps}" if state.steps else ""
        members = str(state.members) if state.members else ""
        table.add_row(name, state.state, step, state.task, state.kind, members, *of_best)
    return table
