"""What stands behind a number: the configuration, the seeds and the runs of a row."""

from collections.abc import Sequence
from typing import Any

from hyla.experiments.declare import Row
from hyla.experiments.judge import of_seeds
from hyla.experiments.results import is_given
from hyla.report.text import at, number, places, rounded, shown, spoken, with_error

MAX_RUNS = 6  # names in a hover


def lines(row: Row, axes: Sequence[str], name: str = "", values: Any = None) -> list[str]:
    """All about one number of a row, for a hover: `values` has its mean, error and seeds."""
    found = [places(axes, row)]
    if values is not None:
        text = with_error(at(values, "mean"), at(values, "standard_error"))
        text += of_seeds(values) if isinstance(values, dict) else ""
        found.append(f"{name}: {text}" if name else text)
        found.append(_labelled("by seed", seeds(values)))
    return [line for line in [*found, *origin(row)] if line]


def origin(row: Row) -> list[str]:
    """The lines that are the same for all numbers of a row."""
    return [
        line
        for line in (
            _labelled("hyperparameters", settings(row.get("hyperparameters"))),
            _labelled("chosen as in the paper", choice(row)),
            _training(row),
            _labelled("on", _device(row)),
            _labelled("search", shown(row["search"]) if row.get("search") else ""),
            _labelled("runs", runs(row)),
        )
        if line
    ]


def seeds(values: Any) -> str:
    """Each seed's number."""
    found = at(values, "per_seed")
    return ", ".join(map(rounded, found)) if isinstance(found, list) else ""


def settings(values: Any) -> str:
    """Hyperparameters by name.

    >>> settings({"learning_rate": 0.001, "warmup": 100})
    'learning rate 0.001, warmup 100'
    """
    if not isinstance(values, dict):
        return ""
    return ", ".join(f"{spoken(str(name))} {shown(value)}" for name, value in values.items())


def choice(row: Row) -> str:
    """What the paper's rule for choosing hyperparameters gives."""
    mean = at(row, "paper_choice", "mean")
    if number(mean) is None or is_given(row):
        return ""
    text = with_error(mean, at(row, "paper_choice", "standard_error"))
    at_ = settings(at(row, "paper_choice", "hyperparameters"))
    return f"{text} ({at_})" if at_ else text


def runs(row: Row) -> str:
    """Names of run folders."""
    names = row.get("runs")
    if not isinstance(names, list):
        return ""
    more = f" and {len(names) - MAX_RUNS} more" if len(names) > MAX_RUNS else ""
    return ", ".join(map(str, names[:MAX_RUNS])) + more


def _training(row: Row) -> str:
    members, instances = number(row.get("members")), number(row.get("instances"))
    parts = []
    if instances is not None:
        parts.append(f"{shown(row['instances'])} instances")
    if members is not None:
        parts = [f"{shown(row['members'])} model{'s' * (members != 1)}", *parts]
    if row.get("precision"):
        parts.append(shown(row["precision"]))
    return ", ".join(parts)


def _device(row: Row) -> str:
    parts = [shown(row["device"])] if row.get("device") else []
    seconds = number(row.get("seconds"))
    return ", ".join([*parts, *([f"{seconds:,.1f} s"] if seconds is not None else [])])


def _labelled(name: str, text: str) -> str:
    return f"{name}: {text}" if text else ""
