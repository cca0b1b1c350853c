"""The README's part of the results: the ablation table and a line for every claim."""

import math
from collections.abc import Sequence
from pathlib import Path

from hyla.errors import bad_value
from hyla.experiments.ablation import FUZZY, ROWS, SRAVEN, title
from hyla.experiments.declare import Row
from hyla.experiments.judge import NOT_MEASURED, find
from hyla.files import new_file
from hyla.report.found import Found
from hyla.report.summary import MEANING
from hyla.report.text import with_error

LEAST_LEARNED = 3  # rules that are named
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->"


def results_block(found: Sequence[Found]) -> str:
    """Markdown of what is measured at the paper's scale."""
    there = [one for one in found if one.scale == "paper"]
    rows = next((one.rows for one in there if one.experiment.name == "ablation"), [])
    table, claims = _table(rows), _claims(there)
    lines = [*table, "", MEANING, "", *claims, *map(_beyond, _on_sraven(rows))]
    return "\n".join(lines) + "\n"


def update(path: Path, found: Sequence[Found]) -> None:
    """Writes the block between its two marks in a file."""
    text = path.read_text()
    begin, end = text.find(BEGIN), text.find(END)
    if not 0 <= begin < end:
        raise bad_value(str(path), "none", f"a file with the lines {BEGIN.strip()} and {END}")
    text = text[: begin + len(BEGIN)] + results_block(found) + text[end:]
    with new_file(path, overwrite=True) as handle:
        handle.write(text.encode())


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| held out, percent | fuzzy logic, R2 | paper | SRAVEN, accuracy | paper |",
        "|---|---|---|---|---|",
    ]
    for (attention, feed_forward), papers in ROWS.items():
        name, cells = title(attention, feed_forward), []
        for task, paper in zip((FUZZY, SRAVEN), papers, strict=True):
            row = find(rows, row=name, task=task)
            ours = with_error(row["mean"], row.get("standard_error")) if row else ""
            cells += [ours, with_error(*paper)]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return lines


def _on_sraven(rows: Sequence[Row]) -> list[Row]:
    found = [find(rows, row=title(*names), task=SRAVEN) for names in ROWS]
    return [row for row in found if row is not None and row.get("solver_by_rule")]


def _beyond(row: Row) -> str:
    """What the paper does not say: the distance from the ceiling, and the rules not learned."""
    seeds = ", ".join("diverged" if x is None else f"{x:.1f}" for x in row["per_seed"])
    means = {rule: one["mean"] for rule, one in row["feature_accuracy_by_rule"].items()}
    by_rule = sorted((mean, rule) for rule, mean in means.items() if mean is not None)
    least, rest = by_rule[:LEAST_LEARNED], by_rule[LEAST_LEARNED:]
    best = row["solver_by_rule"]
    worst = ", ".join(f"{rule} {mean:.0f} of {best[rule]:.0f} %" for mean, rule in least)
    others = f"; all others {math.floor(rest[0][0])} % or more" if rest else ""
    search = "" if row.get("search") == "full" else ", the grid searched on the first seed only"
    return (
        f"- Beyond the paper: {row['row']} on SRAVEN ({seeds} by seed{search}) is "
        f"{row['ceiling'] - row['mean']:.1f} points below the ceiling of {row['ceiling']:.1f}. "
        "Features it gets right, by rule, the least first, of what the exact solver gets right: "
        f"{worst}{others}.{_dead(row)}"
    )


def _dead(row: Row) -> str:
    """Which seeds have layers whose value networks are never on."""
    found = []
    for value, layers in zip(row["per_seed"], row.get("active_units", []), strict=False):
        dead = [str(layer) for layer, percent in enumerate(layers or []) if percent == 0]
        if dead and value is not None:
            found.append(f"layer {', '.join(dead)} of the model with {value:.1f}")
    return f" Dead, no value network is ever on: {'; '.join(found)}." if found else ""


def _claims(found: Sequence[Found]) -> list[str]:
    return [
        f"- {judged.outcome.capitalize()}: {claim.text} ({one.experiment.where}). "
        f"{judged.evidence}."
        for one in found
        for claim, judged in one.verdicts
        if judged.outcome != NOT_MEASURED.outcome
    ]
