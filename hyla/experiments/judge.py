"""Whether claims hold: comparisons of rows against their standard errors."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Any

from hyla.experiments.declare import HELD_OUT, Axes, Row, Verdict
from hyla.experiments.results import is_at

REPRODUCED, IN_PART, NOT_REPRODUCED = "reproduced", "in part", "not reproduced"
NOT_MEASURED = Verdict("not measured", "")
ERRORS = 2.0  # standard errors that a difference must have to count


def find(rows: Iterable[Row], **axes: Any) -> Row | None:
    """The row with these axes and a mean, if there is one."""
    found = (row for row in rows if is_at(row, axes) and row.get("mean") is not None)
    return next(found, None)


def shown(row: Row, name: str = HELD_OUT) -> str:
    """Mean and standard error of a measure.

    >>> shown({"measures": {"held out": {"mean": 58.04, "standard_error": 2.0}}})
    '58.0 ± 2.0'
    """
    values = row["measures"][name]
    error = values.get("standard_error")
    return f"{values['mean']:.1f}" + ("" if error is None else f" ± {error:.1f}")


def difference(one: Row, other: Row, name: str = HELD_OUT) -> tuple[float, float]:
    """one - other, and how many standard errors that is; 0 errors if they are not known."""
    a, b = one["measures"][name], other["measures"][name]
    gap = a["mean"] - b["mean"]
    errors = (a.get("standard_error"), b.get("standard_error"))
    if None in errors:
        return gap, 0.0
    spread = math.hypot(*errors)
    if spread == 0:
        return gap, math.copysign(math.inf, gap) if gap else 0.0
    return gap, gap / spread


def outcome(holds: Sequence[bool], tends: Sequence[bool]) -> str:
    """From many comparisons: whether each holds, and whether each at least points that way."""
    if all(holds):
        return REPRODUCED
    return IN_PART if any(holds) or all(tends) else NOT_REPRODUCED


def all_above(pairs: Sequence[tuple[Row | None, Row | None, str]]) -> Verdict:
    """Whether the first of each pair is above the second, by more than two standard errors."""
    there = [(a, b, label) for a, b, label in pairs if a is not None and b is not None]
    if not there:
        return NOT_MEASURED
    gaps = [difference(a, b) for a, b, _ in there]
    evidence = "; ".join(f"{label}: {shown(a)} against {shown(b)}" for a, b, label in there)
    if len(there) < len(pairs):
        evidence += f" ({len(pairs) - len(there)} of {len(pairs)} comparisons not measured)"
    holds, tends = [errors > ERRORS for _, errors in gaps], [gap > 0 for gap, _ in gaps]
    if len(there) < len(pairs):
        holds.append(False)
    return Verdict(outcome(holds, tends), evidence)


def grows(axis: str, groups: Sequence[Axes]) -> Callable[[Sequence[Row]], Verdict]:
    """Judges whether the held-out measure is higher at the largest value of an axis."""

    def judge(rows: Sequence[Row]) -> Verdict:
        pairs = []
        for group in groups:
            line = [row for row in rows if is_at(row, group) and row.get("mean") is not None]
            line.sort(key=lambda row: row[axis])
            if len(line) > 1:
                label = ", ".join(
                    str(v) if k == "attention" else f"{k} {v}" for k, v in group.items()
                )
                ends = f"{label}: {axis} {line[-1][axis]:,} against {line[0][axis]:,}"
                pairs.append((line[-1], line[0], ends))
        return all_above(pairs)

    return judge


def average(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are there."""
    there = [value for value in values if value is not None]
    return mean(there) if there else None
