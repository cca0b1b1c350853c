"""Numbers, axes and hyperparameters as readable text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hyla.experiments.spec import SEEDS, Row
from hyla.statistics import Sample

MILLION = 1_000_000
# Readable names of axes; "held out" is a measure.
WORDS = {"millions": "millions of instances", "held_out": "fraction held out"}
ONE_SEED_SEARCH = "†"
NOTES = {
    ONE_SEED_SEARCH: "The hyperparameter search used the first seed only. That seed is then the "
    "best of all settings, so the mean is biased upwards.",
}


def is_number(value: Any) -> bool:
    """Whether a value is a finite number.

    >>> is_number(1), is_number("1"), is_number(float("nan")), is_number(True)
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def shown(value: Any) -> str:
    """Format the value of an axis or a hyperparameter.

    >>> shown(20_000_000), shown(51_200), shown(0.0003), shown("hyla")
    ('20 M', '51,200', '0.0003', 'hyla')
    """
    if not is_number(value):
        return "none" if value is None else str(value).encode(errors="replace").decode()
    if abs(value) >= MILLION:
        return f"{value / MILLION:,.10g} M"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def rounded(value: float | None) -> str:
    """Format a measured number with about three significant digits.

    >>> rounded(58.042), rounded(0.01234), rounded(-1150.2), rounded(None)
    ('58.0', '0.0123', '-1,150', '-')
    """
    if value is None or not is_number(value):
        return "-"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or not size else f"{value:.3g}"


def with_error(mean: float | None, error: float | None) -> str:
    """Format a mean and its standard error with the same number of decimals.

    >>> with_error(58.04, 2.0), with_error(58.04, None), with_error(None, None)
    ('58.0 ± 2.0', '58.0', '-')
    """
    text = rounded(mean)
    if mean is None or error is None or not is_number(error):
        return text
    if "e" in text:
        return f"{text} ± {rounded(error)}"
    return f"{text} ± {error:,.{len(text.partition('.')[2])}f}"


def mean_of(sample: Sample | None) -> str:
    """Format the mean of a sample; name the seeds if some diverged or there are fewer than usual.

    >>> mean_of(Sample((57.0, None, 59.0))), mean_of(Sample((57.0,))), mean_of(Sample((None,)))
    ('58.0 ± 1.0 (2 of 3 seeds)', '57.0 (1 seed)', 'diverged')
    """
    if sample is None or not sample.per_seed:
        return "-"
    if sample.mean is None:
        return "diverged"
    text, seeds, there = with_error(sample.mean, sample.standard_error), len(sample.per_seed), 0
    there = len(sample.values)
    if sample.error is not None or (there == seeds and seeds >= SEEDS):
        return text
    if there < seeds:
        return f"{text} ({there} of {seeds} seeds)"
    return f"{text} ({seeds} seed{'s' * (seeds > 1)})"


def mark(row: Row) -> str:
    """Return the mark of a row whose hyperparameters were chosen on one seed."""
    return ONE_SEED_SEARCH if row.search and row.search.settings > 1 == row.search.seeds else ""


def notes(rows: Sequence[Row]) -> list[str]:
    """Explain the marks of these rows."""
    marks = {mark(row) for row in rows}
    return [f"{symbol} {note}" for symbol, note in NOTES.items() if symbol in marks]


def hyperparameters(row: Row) -> str:
    """Format the chosen hyperparameters and how many were compared."""
    if row.setting is None:
        return ""
    names = ("learning_rate", "weight_decay", "warmup")
    text = ", ".join(f"{spoken(name)} {shown(getattr(row.setting, name))}" for name in names)
    if row.search is None or row.search.settings == 1:
        return f"{text}; not searched"
    seeds = f"{row.search.seeds} seed{'s' * (row.search.seeds > 1)}"
    return f"{text}; best of {row.search.settings} settings on {seeds}"


def places(axes: Sequence[str], values: Mapping[str, Any]) -> str:
    """Format the values of some axes.

    >>> places(("attention", "heads"), {"attention": "hyla", "heads": 4, "mean": 1.0})
    'hyla, heads 4'
    """
    found = [(axis, values[axis]) for axis in axes if values.get(axis) not in (None, "")]
    return ", ".join(
        shown(value) if isinstance(value, str) else f"{spoken(axis)} {shown(value)}"
        for axis, value in found
    )


def spoken(name: str) -> str:
    """Return the name of an axis or field in words.

    >>> spoken("held_out"), spoken("weight_decay")
    ('fraction held out', 'weight decay')
    """
    return WORDS.get(name, name.replace("_", " "))


def duration(seconds: float) -> str:
    """Format a time.

    >>> duration(42), duration(1500), duration(7000), duration(400_000)
    ('42 s', '25 min', '1.9 h', '4.6 days')
    """
    for limit, unit, name in ((120, 1, "s"), (7200 * 0.9, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.{0 if unit < 3600 else 1}f} {name}"
    return f"{seconds / 86_400:.1f} days"
