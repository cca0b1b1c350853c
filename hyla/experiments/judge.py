"""Whether claims hold: comparisons of rows against their standard errors."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hyla.experiments.declare import HELD_OUT, SEEDS, Axes, Row, Verdict
from hyla.experiments.results import is_at, is_given

REPRODUCED, IN_PART, NOT_REPRODUCED = "reproduced", "in part", "not reproduced"
OPEN = "open"  # nothing of what is measured holds, but more is to come
NOT_MEASURED = Verdict("not measured", "")
ERRORS = 2.0  # standard errors that a difference must have to count
TENDENCY = 1.0  # standard errors from which on it at least points somewhere

Judge = Callable[[Sequence[Row]], Verdict]


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
    text = f"{values['mean']:.1f}" + ("" if error is None else f" ± {error:.1f}")
    return text + of_seeds(values)


def of_seeds(values: Mapping[str, Any]) -> str:
    """What to say where a mean is not of all seeds.

    >>> of_seeds({"per_seed": [57.0, None, 59.0]}), of_seeds({"per_seed": [57.0]})
    (' (2 of 3 seeds)', ' (1 seed)')
    """
    seeds = values.get("per_seed")
    if not isinstance(seeds, list) or (None not in seeds and len(seeds) >= len(SEEDS)):
        return ""
    if None not in seeds:
        return f" ({len(seeds)} seed{'s' * (len(seeds) > 1)})"
    return f" ({len(seeds) - seeds.count(None)} of {len(seeds)} seeds)"


def difference(one: Row, other: Row, name: str = HELD_OUT) -> tuple[float, float | None]:
    """one - other, and how many standard errors that is; None if one of them has a single seed."""
    a, b = one["measures"][name], other["measures"][name]
    gap = a["mean"] - b["mean"]
    errors = (a.get("standard_error"), b.get("standard_error"))
    return gap, None if None in errors else in_errors(gap, *errors)


def of_same_seed(one: Row, other: Row, name: str = HELD_OUT) -> tuple[Row, Row]:
    """Both in the first seed alone, where one has no other: each holds out combinations of its own.

    >>> single, several = ({"measures": {HELD_OUT: {"per_seed": s}}} for s in ([5.0], [1.0, 3.0]))
    >>> of_same_seed(single, several)[1]["measures"][HELD_OUT]
    {'mean': 1.0, 'standard_error': None, 'per_seed': [1.0]}
    """
    seeds = [row["measures"][name].get("per_seed") or [] for row in (one, other)]
    if min(map(len, seeds)) != 1 or None in (seeds[0][0], seeds[1][0]):
        return one, other
    first, second = (
        row | {"measures": {name: {"mean": mean, "standard_error": None, "per_seed": [mean]}}}
        for row, (mean, *_) in zip((one, other), seeds, strict=True)
    )
    return first, second


def gap_row(one: Row, other: Row, name: str = HELD_OUT) -> Row:
    """one - other as the held-out measure of a row, to be compared with another such gap."""
    a, b = one["measures"][name], other["measures"][name]
    errors = (a.get("standard_error"), b.get("standard_error"))
    error = None if None in errors else math.hypot(*errors)
    values = {"mean": a["mean"] - b["mean"], "standard_error": error}
    if fewer := next((v["per_seed"] for v in (a, b) if of_seeds(v)), None):
        values["per_seed"] = fewer
    given = next((row["search"] for row in (one, other) if is_given(row)), None)
    return {"measures": {HELD_OUT: values}, "search": given}


def in_errors(gap: float, *errors: float) -> float:
    """How many standard errors a difference of means is, from the errors of the means."""
    spread = math.hypot(*errors)
    if spread == 0:
        return math.copysign(math.inf, gap) if gap else 0.0
    return gap / spread


def outcome(holds: Sequence[bool], tends: Sequence[bool]) -> str:
    """From many comparisons: whether each holds, and whether each at least points that way."""
    if all(holds):
        return REPRODUCED
    return IN_PART if any(holds) or all(tends) else NOT_REPRODUCED


def so_far(judged: str) -> str:
    """An outcome where a part of what belongs to it is not measured."""
    return OPEN if judged == NOT_REPRODUCED else IN_PART


def all_above(
    pairs: Sequence[tuple[Row | None, Row | None, str]], name: str = HELD_OUT, about: str = ""
) -> Verdict:
    """Whether the first of each pair is above the second, by more than two standard errors.

    With pairs that are not measured a claim is reproduced in part at best, and open at worst; so
    with those of a single seed, whose error is not known, and which are compared in that seed.
    about: what is compared, where the labels of the pairs do not say it.
    """
    found = [
        (*of_same_seed(a, b, name), label)
        for a, b, label in pairs
        if a is not None and b is not None
    ]
    if not found:
        return NOT_MEASURED
    gaps = [difference(a, b, name) for a, b, _ in found]
    each = [shown(gap_row(a, b, name)) for a, b, _ in found]
    comparisons = tuple(
        f"{label}: {shown(a, name)} against {shown(b, name)}{_in_paper(a, b, name)}, "
        f"a difference of {text}, {_in_short(errors)}"
        for (a, b, label), text, (_, errors) in zip(found, each, gaps, strict=True)
    )
    known = [errors for _, errors in gaps if errors is not None]
    holds = [errors > ERRORS for errors in known]
    judged = outcome(holds, [errors > TENDENCY for errors in known])
    told = f"{about}, " * bool(about)
    told += f"{sum(holds)} of {len(known)} hold" if known else "no comparison can be judged"
    asides = []
    if len(known) < len(pairs):
        judged = so_far(judged) if known else OPEN
    if len(found) < len(pairs):
        asides.append(f"{len(pairs) - len(found)} of {len(pairs)} comparisons not measured")
    if len(known) < len(found):
        asides.append(f"{len(found) - len(known)} with a single seed not judged")
    told += in_brackets(asides, [row for a, b, _ in found for row in (a, b)])
    by_size = sorted(
        (gap, text)
        for (gap, errors), text in zip(gaps, each, strict=True)
        if errors is not None or not known
    )
    (_, least), (_, most) = by_size[0], by_size[-1]
    several = len(by_size) > 1
    told += f", differences of {least} to {most}" if several else f", a difference of {most}"
    return Verdict(judged, told, comparisons)


def in_brackets(asides: Sequence[str], rows: Iterable[Row]) -> str:
    """What weakens a judgement; also if rows in it were not searched for."""
    given = ["without a search of hyperparameters"] if any(map(is_given, rows)) else []
    return f" ({'; '.join([*asides, *given])})" if asides or given else ""


def _in_short(errors: float | None) -> str:
    if errors is None:
        return "not judged: a single seed has no error"
    return "holds" if errors > ERRORS else "does not hold"


def _in_paper(one: Row, other: Row, name: str) -> str:
    """The same comparison in the paper, where it gives both numbers."""
    means = [row.get("paper_mean") for row in (one, other)]
    known = [isinstance(mean, float) and math.isfinite(mean) for mean in means]
    if name != HELD_OUT or not all(known):
        return ""
    return f" (paper: {' against '.join(f'{mean:.1f}' for mean in means)})"


def above(axis: str, high: Any, low: Any, groups: Sequence[Axes]) -> Judge:
    """Judges, in every group, whether the measure at one value of an axis is above another."""

    def judge(rows: Sequence[Row]) -> Verdict:
        pairs = []
        for group in groups:
            label = f"{in_words(group)}: {in_words({axis: high})} against {low}"
            top, bottom = (find(rows, **group, **{axis: value}) for value in (high, low))
            pairs.append((top, bottom, label))
        return all_above(pairs)

    return judge


def in_words(place: Axes) -> str:
    """Where rows stand, as it is said in evidence."""
    words = {"kind": "{}", "millions": "{} M instances"}
    return ", ".join(words.get(axis, axis + " {}").format(value) for axis, value in place.items())
