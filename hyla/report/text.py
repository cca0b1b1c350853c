"""Numbers, axes and hyperparameters as readable text."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hyla.experiments.spec import SEEDS, Row
from hyla.statistics import Sample

MILLION = 1_000_000
# Readable names of axes; "held out" is a measure.
WORDS = {"millions": "millions of instances", "held_out": "fraction held out"}
ONE_SEED_SEARCH = "†"
ONE_SEED_NOTE = (
    f"{ONE_SEED_SEARCH} The hyperparameter search used the first seed only. That seed is then the "
    "best of all settings, so the mean is biased upwards."
)


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


def of_paper(value: tuple[float, float] | None) -> str:
    """Format the paper's mean and standard error."""
    return with_error(*value or (None, None))


def mean_of(sample: Sample | None) -> str:
    """Format the mean of a sample; name the seeds if some diverged or there are fewer than usual.

    >>> mean_of(Sample((57.0, None, 59.0))), mean_of(Sample((57.0,))), mean_of(Sample((None,)))
    ('58.0 ± 1.0 (2 of 3 seeds)', '57.0 (1 seed)', 'diverged')
    """
    if sample is None or not sample.per_seed:
        return "-"
    if sample.mean is None:
        return "diverged"
    text = with_error(sample.mean, sample.standard_error)
    seeds, there = len(sample.per_seed), len(sample.values)
    if sample.error is not None or (there == seeds and seeds >= SEEDS):
        return text
    if there < seeds:
        return f"{text} ({there} of {seeds} seeds)"
    return f"{text} ({seeds} seed{'s' * (seeds > 1)})"


def mark(row: Row) -> str:
    """Return the mark of a row whose hyperparameters were chosen on one seed."""
    return ONE_SEED_SEARCH if row.search and row.search.settings > 1 == row.search.seeds else ""


def marked(row: Row | None, measure: str = "") -> str:
    """Format a measure of a row, by default the main one, with the mark of the row."""
    if row is None:
        return "not measured"
    return f"{mean_of(row.measures.get(measure) if measure else row.main)} {mark(row)}".rstrip()


def notes(rows: Sequence[Row]) -> list[str]:
    """Explain the mark, if some of these rows have it."""
    return [ONE_SEED_NOTE] if any(map(mark, rows)) else []


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


def named(axis: str, value: Any) -> str:
    """Format the value of an axis with the name of the axis, where the value needs it.

    >>> named("kind", "hyla"), named("held_out", 0.5), named("", None)
    ('hyla', 'fraction held out 0.5', '')
    """
    if value in (None, ""):
        return ""
    return shown(value) if isinstance(value, str) else f"{spoken(axis)} {shown(value)}"


def places(axes: Iterable[str], values: Mapping[str, Any]) -> str:
    """Format the values of some axes.

    >>> places(("attention", "heads"), {"attention": "hyla", "heads": 4, "mean": 1.0})
    'hyla, heads 4'
    """
    return ", ".join(filter(None, (named(axis, values.get(axis)) for axis in axes)))


def spoken(name: str) -> str:
    """Return the name of an axis or field in words.

    >>> spoken("held_out"), spoken("weight_decay")
    ('fraction held out', 'weight decay')
    """
    return WORDS.get(name, name.replace("_", " "))
