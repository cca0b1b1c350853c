"""What the paper does not say: how far SRAVEN rows are from the ceiling, and in which rules."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from hyla.experiments.ablation import ROWS, SRAVEN, title
from hyla.experiments.declare import IN_DISTRIBUTION, Row
from hyla.experiments.judge import find
from hyla.report.drawn import Grid
from hyla.report.found import DAMAGE
from hyla.report.tables import marked, trainings
from hyla.report.text import number

ABOUT = (
    "Beyond the paper, SRAVEN in percent. Below the ceiling: the mean held out less what the exact "
    "solver gets right. By rule: the features that are right (of single rules a model may get more "
    "right than the solver, at the cost of others). In distribution: combinations of training that "
    "are solved. By seed: held-out ones that are. Trainings: the same of the whole grid, from the "
    "least to the most (their number)."
)
ABOUT_YARDSTICKS = (
    "Below the solver two yardsticks that see less than it and are no models either. Slot by slot: "
    "who finds each answer by itself, and may use a slot of another column for two of them. No "
    "sign: who also does not tell addition from subtraction."
)
LEAST_LEARNED = 3  # rules with a column of their own


@dataclass(frozen=True)
class _Line:
    name: str
    ceiling: float
    below: str
    cells: tuple[str, str, str]  # combinations of training, seeds, trainings
    right: dict[str, float]  # percent of the features, by rule
    solver: dict[str, float]
    dead: str


def beyond(rows: Sequence[Row], yardsticks: Sequence[Row] = ()) -> tuple[Grid | None, list[str]]:
    """A table of the SRAVEN rows of the ablation table, and notes on dead and damaged ones.

    yardsticks: rows of readers, which are no models.
    """
    lines, notes = [], []
    for names in ROWS:
        row = find(rows, row=title(*names), task=SRAVEN)
        try:
            lines += [_line(row)] if row and row.get("solver_by_rule") else []
        except DAMAGE as error:
            reason = f"{type(error).__name__}: {error}"
            notes.append(f"{title(*names)} on SRAVEN: the row is damaged ({reason}).")
    if not lines:
        return None, notes
    rules = dict.fromkeys(rule for line in lines for rule in line.right)
    learned = {rule: mean(x.right[rule] for x in lines if rule in x.right) for rule in rules}
    least = sorted(learned, key=lambda rule: learned[rule])[:LEAST_LEARNED]
    body = [[x.name, x.below, *_by_rule(x.right, least), *x.cells] for x in lines]
    solver = _by_rule(lines[0].solver, least)
    body.append(["exact solver", f"(at {lines[0].ceiling:.1f})", *solver, "", "", ""])
    below = len(body)
    for row in yardsticks:
        try:
            at, right = f"(at {_finite(row['mean']):.1f})", _by_rule(_right(row), least)
            body.append([row["row"], at, *right, *_ends(row), ""])
        except DAMAGE as error:
            notes.append(f"{row['row']}: the row is damaged ({type(error).__name__}: {error}).")
    tail = ["in distribution", "by seed", "trainings"]
    table = Grid(["row", "below the ceiling", *least, "other rules", *tail], body)
    told = [ABOUT_YARDSTICKS] if len(body) > below else []
    return table, [*told, *(line.dead for line in lines if line.dead), *notes]


def _by_rule(right: dict[str, float], least: Sequence[str]) -> list[str]:
    """The least learned rules, then the least of all others, never rounded up."""
    others = [value for rule, value in right.items() if rule not in least]
    cells = [f"{right[rule]:.0f}" if rule in right else "-" for rule in least]
    return [*cells, f"{math.floor(10 * min(others)) / 10} or more" if others else "-"]


def _line(row: Row) -> _Line:
    values, right = [value for value, _ in trainings(row)], _right(row)
    solver = {rule: _finite(row["solver_by_rule"][rule]) for rule in right}
    ceiling = _finite(row["ceiling"])
    return _Line(
        marked(row["row"], row),
        ceiling,
        f"{ceiling - _finite(row['mean']):.1f}",
        (*_ends(row), f"{min(values):.1f} to {max(values):.1f} ({len(values)})"),
        right,
        solver,
        _dead(row),
    )


def _right(row: Row) -> dict[str, float]:
    """Percent of the features, of the rules that occur."""
    means = {rule: one["mean"] for rule, one in row["feature_accuracy_by_rule"].items()}
    return {rule: _finite(value) for rule, value in means.items() if value is not None}


def _ends(row: Row) -> tuple[str, str]:
    """What is solved of combinations of training, and held out by seed."""
    seeds = ", ".join("diverged" if x is None else f"{x:.1f}" for x in row["per_seed"])
    return f"{_finite(row['measures'][IN_DISTRIBUTION]['mean']):.1f}", seeds


def _finite(value: Any) -> float:
    found = number(value)
    if found is None:
        raise ValueError(f"expected a number, got {value}")
    return found


def _dead(row: Row) -> str:
    """Which seeds have layers whose value networks are never on."""
    found = []
    for value, layers in zip(row["per_seed"], row.get("active_units", []), strict=False):
        dead = [str(layer) for layer, percent in enumerate(layers or []) if percent == 0]
        if dead and value is not None:
            found.append(f"layer {', '.join(dead)} of the model with {value:.1f}")
    return f"{row['row']} has dead value networks, never on: {'; '.join(found)}." if found else ""
