"""`hyla runs`: list run folders."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from hyla.cli.members import best_first, measure
from hyla.cli.shared import output, write_json
from hyla.errors import bad_value
from hyla.experiments.run import RUNS
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


def best(summary: dict[str, Any] | None) -> tuple[int, str, float] | None:
    """Return the best member on held-out instances: its number, the measure and its value."""
    try:
        members = (summary or {})["members"]
        i = best_first(members)[0]
        found = measure(members[i]["evaluation"], "held_out")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None  # not evaluated, or not a summary written by hyla
    return None if found is None else (i, *found)


def _record(state: RunState) -> dict[str, Any]:
    record = asdict(state) | {"path": str(state.path)}
    found = best(state.summary)
    names = ("member", "measure", "value")
    return record | {"best": None if found is None else dict(zip(names, found, strict=True))}


def _table(root: Path, found: list[RunState]) -> Table:
    table = Table(title=f"Runs in {root}", title_justify="left")
    table.add_column("run", overflow="fold")
    for name in ("state", "step", "task", "kind", "members", "best held out", "member"):
        text = name in ("state", "task", "kind")
        table.add_column(name, justify="left" if text else "right")
    for state in found:
        top = best(state.summary)
        name = state.path.name if state.path == root else str(state.path.relative_to(root))
        of_best = ("", "") if top is None else (f"{top[1]} {top[2]:.4f}", str(top[0]))
        step = f"{state.step}/{state.steps}" if state.steps else ""
        members = str(state.members) if state.members else ""
        table.add_row(name, state.state, step, state.task, state.kind, members, *of_best)
    return table
