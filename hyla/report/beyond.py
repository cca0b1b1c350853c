"""What the paper does not say: how far SRAVEN rows are from the ceiling, and in which rules."""

import math
from collections.abc import Sequence

from hyla.experiments.ablation import ROWS, SRAVEN, title
from hyla.experiments.declare import IN_DISTRIBUTION, Row
from hyla.experiments.judge import find
from hyla.experiments.results import is_first_seed
from hyla.report.found import DAMAGE
from hyla.report.tables import trainings

LEAST_LEARNED = 3  # rules that are named


def beyond(rows: Sequence[Row]) -> list[str]:
    """A line for each SRAVEN row of the ablation table, or one that says that it is damaged."""
    lines = []
    for names in ROWS:
        row = find(rows, row=title(*names), task=SRAVEN)
        try:
            lines += [_line(row)] if row and row.get("solver_by_rule") else []
        except DAMAGE as error:
            reason = f"{type(error).__name__}: {error}"
            lines.append(f"{title(*names)} on SRAVEN: the row is damaged ({reason}).")
    return lines


def _line(row: Row) -> str:
    seeds = ", ".join("diverged" if x is None else f"{x:.1f}" for x in row["per_seed"])
    means = {rule: one["mean"] for rule, one in row["feature_accuracy_by_rule"].items()}
    by_rule = sorted((mean, rule) for rule, mean in means.items() if mean is not None)
    least, rest = by_rule[:LEAST_LEARNED], by_rule[LEAST_LEARNED:]
    best = row["solver_by_rule"]
    worst = ", ".join(f"{rule} {mean:.0f} of {best[rule]:.0f} %" for mean, rule in least)
    others = f"; all others {math.floor(10 * rest[0][0]) / 10} % or more" if rest else ""
    search = ", the grid searched on the first seed only" if is_first_seed(row) else ""
    return (
        f"{row['row']} on SRAVEN ({seeds} by seed{search}{_trainings(row)}) is "
        f"{row['ceiling'] - row['mean']:.1f} points below the ceiling of {row['ceiling']:.1f}, and "
        f"has {row['measures'][IN_DISTRIBUTION]['mean']:.1f} on combinations of training. "
        "Features it gets right, by rule, the least first, of what the exact solver gets right: "
        f"{worst}{others}.{_dead(row)}"
    )


def _trainings(row: Row) -> str:
    """How much the trainings of the whole grid differ."""
    values = [value for value, _ in trainings(row)]
    return f"; from {min(values):.1f} to {max(values):.1f} in {len(values)} trainings"


def _dead(row: Row) -> str:
    """Which seeds have layers whose value networks are never on."""
    found = []
    for value, layers in zip(row["per_seed"], row.get("active_units", []), strict=False):
        dead = [str(layer) for layer, percent in enumerate(layers or []) if percent == 0]
        if dead and value is not None:
            found.append(f"layer {', '.join(dead)} of the model with {value:.1f}")
    return f" Dead, no value network is ever on: {'; '.join(found)}." if found else ""
