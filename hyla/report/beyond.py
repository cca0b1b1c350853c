"""What the paper does not say: how far SRAVEN rows are from the ceiling, and in which rules."""

import math
from collections.abc import Sequence

from hyla.experiments.ablation import ROWS, SRAVEN, title
from hyla.experiments.declare import IN_DISTRIBUTION, Row
from hyla.experiments.judge import find
from hyla.report.tables import is_first_seed

LEAST_LEARNED = 3  # rules that are named


def beyond(rows: Sequence[Row]) -> list[str]:
    """A line for each SRAVEN row of the ablation table."""
    found = [find(rows, row=title(*names), task=SRAVEN) for names in ROWS]
    return [_line(row) for row in found if row is not None and row.get("solver_by_rule")]


def _line(row: Row) -> str:
    seeds = ", ".join("diverged" if x is None else f"{x:.1f}" for x in row["per_seed"])
    means = {rule: one["mean"] for rule, one in row["feature_accuracy_by_rule"].items()}
    by_rule = sorted((mean, rule) for rule, mean in means.items() if mean is not None)
    least, rest = by_rule[:LEAST_LEARNED], by_rule[LEAST_LEARNED:]
    best = row["solver_by_rule"]
    worst = ", ".join(f"{rule} {mean:.0f} of {best[rule]:.0f} %" for mean, rule in least)
    others = f"; all others {math.floor(rest[0][0])} % or more" if rest else ""
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
    values = [x for setting in row["grid"] for x in setting.get("per_seed", []) if x is not None]
    if not values:
        return ""
    return f"; from {min(values):.1f} to {max(values):.1f} in the {len(values)} trainings"


def _dead(row: Row) -> str:
    """Which seeds have layers whose value networks are never on."""
    found = []
    for value, layers in zip(row["per_seed"], row.get("active_units", []), strict=False):
        dead = [str(layer) for layer, percent in enumerate(layers or []) if percent == 0]
        if dead and value is not None:
            found.append(f"layer {', '.join(dead)} of the model with {value:.1f}")
    return f" Dead, no value network is ever on: {'; '.join(found)}." if found else ""
