"""Rows that need no run: made before, or by another experiment of the very same runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hyla.experiments import EXPERIMENTS
from hyla.experiments.declare import Experiment, Point, Row
from hyla.experiments.results import is_at, read_rows
from hyla.experiments.rows import SETTING, measured, paper_values
from hyla.experiments.search import SEARCHES, at_setting, run_names, setting_of
from hyla.train.runs import folder_name

TAKEN = "taken_from"  # names the experiment that a row was copied from


def has_more_seeds(row: Row, seeds: int | None) -> bool:
    """Whether a row has more than the seeds asked for, whatever else made it; None means all."""
    each = row.get("per_seed")
    own = row.get("seeds", len(each) if isinstance(each, list) else math.inf)
    return seeds is not None and own > seeds


def made_before(point: Point, rows: Sequence[Row], search: str) -> list[Row]:
    """The rows of a point that come from the runs it asks for: their names tell.

    Those of a full search will do for one on the first seed, which is a part of it; and those of
    a search for one setting, whatever they have chosen: they are worth more.
    """
    found = [row for row in rows if is_at(row, point.axes)]
    if point.config is None:
        return found
    seeds = len({member.seed for member in point.config.members})
    one = setting_of(search) is not None
    warmups = {member.warmup for member in point.config.members}
    parts = [_with_warmup(point, warmup) for warmup in warmups] if one else [point]
    enough = (search, *SEARCHES) if one else (search, "full")

    def complete(row: Row, runs: set[str]) -> bool:
        asked = [point] if row["search"] == search else parts
        return any(run_names(part, row["search"]) <= runs for part in asked)

    return [
        row
        for row in found
        if row.get("search") in enough
        and row.get("seeds", seeds) >= seeds
        and isinstance(runs := row.get("runs"), list)
        and all(isinstance(name, str) for name in runs)
        and complete(row, set(runs))
    ]


def made_elsewhere(
    experiment: Experiment, point: Point, search: str, file_of: Callable[[str], Path]
) -> list[Row]:
    """The row of a point, if another experiment has made one; where their files are is given."""
    if point.config is None or experiment.make is not measured:
        return []
    for other in EXPERIMENTS.values():
        if other.name == experiment.name or other.make is not measured:
            continue
        try:
            rows = read_rows(file_of(other.name))
        except (OSError, ValueError):  # told where that experiment is asked for
            continue
        for row in rows:
            if TAKEN in row:  # the source itself, not a copy of it
                continue
            bare = {name: value for name, value in row.items() if name not in other.axes}
            here = {**bare, **point.axes, **paper_values(point), TAKEN: other.name}
            if made_before(point, [here], search) and _made_of_all_runs(point, here, search):
                return [here]
    return []


def _with_warmup(point: Point, warmup: int) -> Point:
    """The part of a point with one warm-up, whose runs experiments share."""
    assert point.config is not None
    members = tuple(m for m in point.config.members if m.warmup == warmup)
    return replace(point, config=replace(point.config, members=members))


def _made_of_all_runs(point: Point, row: Row, search: str) -> bool:
    """Whether a row has the runs of a point, those of other seeds too, and no more.

    For one setting it may have more, but must have chosen it.
    """
    setting, runs = setting_of(search), set(row["runs"])
    if setting:
        point = _with_warmup(point, setting[-1])
    assert point.config is not None
    names = run_names(point, row["search"])
    if row["search"] == "first-seed":
        first = min(member.seed for member in point.config.members)
        rest = at_setting(point.config, chosen_setting(row), {first})
        names |= {folder_name(rest)} if rest else set()
    return names <= runs and chosen_setting(row) == setting if setting else names == runs


def chosen_setting(row: Row) -> tuple[Any, ...]:
    """The hyperparameters of a row."""
    chosen = row.get("hyperparameters")
    return tuple(map(chosen.get, SETTING)) if isinstance(chosen, dict) else ()
