"""Hover texts: the configuration, the seeds and the runs behind a number."""

from collections.abc import Sequence
from typing import Any

from hyla.report.adapter import Flat
from hyla.report.text import at, number, of_seeds, places, rounded, shown, spoken, with_error

MAX_RUNS = 6  # names in a hover


def lines(row: Flat, axes: Sequence[str], name: str = "", values: Any = None) -> list[str]:
    """Describe one number of a row; `values` has its mean, standard error and seeds."""
    found = [places(axes, row)]
    if values is not None:
        text = with_error(at(values, "mean"), at(values, "standard_error")) + of_seeds(values)
        found.append(f"{name}: {text}" if name else text)
        found.append(_labelled("by seed", seeds(values)))
    return [line for line in [*found, *origin(row)] if line]


def origin(row: Flat) -> list[str]:
    """Describe how a row was made; the same for all of its numbers."""
    return [
        line
        for line in (
            _labelled("hyperparameters", settings(row.get("hyperparameters"))),
            _labelled("search", row.get("search", "")),
            _training(row),
            _labelled("on", _device(row)),
            _labelled("runs", runs(row)),
            "local runs, not published" if row.get("local") else "",
        )
        if line
    ]


def seeds(values: Any) -> str:
    """The number of each seed."""
    return ", ".join(map(rounded, at(values, "per_seed") or []))


def settings(values: Any) -> str:
    """Hyperparameters by name.

    >>> settings({"learning_rate": 0.001, "warmup": 100})
    'learning rate 0.001, warmup 100'
    """
    return ", ".join(f"{spoken(name)} {shown(value)}" for name, value in (values or {}).items())


def runs(row: Flat) -> str:
    """Names of run folders."""
    names = row.get("runs", [])
    more = f" and {len(names) - MAX_RUNS} more" if len(names) > MAX_RUNS else ""
    return ", ".join(names[:MAX_RUNS]) + more


def _training(row: Flat) -> str:
    if not row.get("members"):
        return ""
    models = f"{row['members']} model{'s' * (row['members'] != 1)}"
    return ", ".join([models, f"{shown(row['instances'])} instances", row["precision"]])


def _device(row: Flat) -> str:
    seconds = number(row.get("seconds"))
    parts = [row.get("device", ""), f"{seconds:,.1f} s" if seconds is not None else ""]
    return ", ".join(part for part in parts if part)


def _labelled(name: str, text: str) -> str:
    return f"{name}: {text}" if text else ""
