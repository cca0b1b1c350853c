"""Where every number comes from: a table of all rows, so that nothing is in hovers alone."""

from collections.abc import Callable

from hyla.experiments.declare import Row
from hyla.report import about
from hyla.report.drawn import Grid
from hyla.report.found import Found
from hyla.report.parts import folded, table
from hyla.report.text import escape, rounded, shown, spoken, with_error

COLUMNS: dict[str, Callable[[Row], str]] = {
    "mean": lambda row: with_error(row.get("mean"), row.get("standard_error")),
    "by seed": about.seeds,
    "hyperparameters": lambda row: about.settings(row.get("hyperparameters")),
    "chosen as in the paper": about.choice,
    "models": lambda row: _known(row, "members"),
    "instances": lambda row: _known(row, "instances"),
    "precision": lambda row: _known(row, "precision"),
    "search": lambda row: _known(row, "search"),
    "device": lambda row: _known(row, "device"),
    "seconds": lambda row: rounded(row.get("seconds")) if "seconds" in row else "",
    "runs": about.runs,
    "taken from": lambda row: _known(row, "taken_from"),
}


def origins(found: Found) -> str:
    """The rows of an experiment; what is the same in all of them stands above the table."""
    if not found.rows:
        return ""
    axes = [axis for axis in found.experiment.axes if any(axis in row for row in found.rows)]
    columns = {name: [column(row) for row in found.rows] for name, column in COLUMNS.items()}
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    same = {name: c[0] for name, c in columns.items() if len(c) > 1 and len(set(c)) == 1}
    columns = {name: cells for name, cells in columns.items() if name not in same}
    names = [[_known(row, axis) for axis in axes] for row in found.rows]
    rest = list(zip(*columns.values(), strict=True)) or [()] * len(names)
    body = [[*name, *cells] for name, cells in zip(names, rest, strict=True)]
    head = [*map(spoken, axes), *columns]
    above = [str(found.file), *(f"{name}: {text}" for name, text in same.items())]
    title = f"Where the numbers come from ({len(found.rows)} rows)"
    text = f'<p class="soft">{escape("; ".join(above))}</p>'
    return folded(title, text + table(Grid(head, body, len(head)), title))


def _known(row: Row, name: str) -> str:
    return shown(row[name]) if row.get(name) is not None else ""
