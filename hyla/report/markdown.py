"""The README's part of the results: the ablation table and a line for every claim."""

from collections.abc import Sequence
from pathlib import Path

from hyla.errors import bad_value
from hyla.experiments.ablation import ABLATION, FUZZY, ROWS, SRAVEN, title
from hyla.experiments.declare import Row
from hyla.experiments.judge import FEW, NOT_MEASURED, find
from hyla.experiments.runner import Options
from hyla.files import new_file
from hyla.report.beyond import ABOUT, beyond
from hyla.report.found import Found
from hyla.report.summary import MEANING
from hyla.report.tables import marked_mean, notes
from hyla.report.text import with_error

BEGIN, END = "<!-- results -->\n", "<!-- end of results -->"


def results_block(found: Sequence[Found]) -> str:
    """Markdown of what is measured at the paper's scale."""
    there = [one for one in found if one.scale == "paper"]
    ablation = next((one for one in there if one.experiment is ABLATION), Found(ABLATION))
    rows = ablation.rows
    table, claims = _table(rows), _claims(found)
    lines = [
        *table,
        "",
        " ".join([*notes(rows), ABLATION.note]),
        "",
        MEANING,
        "",
        *claims,
        *_beyond(ablation),
    ]
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
            cells += [marked_mean(row) if row else "", with_error(*paper)]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return lines


def _beyond(ablation: Found) -> list[str]:
    grid, notes = beyond(ablation.rows, ablation.beside)
    lines = []
    if grid is not None:
        cells = [grid.head, ["---"] * len(grid.head), *grid.body]
        lines = ["", ABOUT, "", *(f"| {' | '.join(map(str, line))} |" for line in cells)]
    return [*lines, *(line for note in notes for line in ("", note))]


def _claims(found: Sequence[Found]) -> list[str]:
    """A line for each claim that is judged at the paper's scale, then for those that are not.

    Where a claim has many comparisons, its line has how they come out, and all follow folded.
    """
    judged, left, folded = [], [], []
    for one in found:
        if "paper" not in one.experiment.scales:
            continue
        where, missing = one.experiment.where, []
        for claim, verdict in one.verdicts:
            if one.scale == "paper" and verdict.outcome != NOT_MEASURED.outcome:
                told = verdict.evidence
                if len(verdict.comparisons) > FEW:
                    folded.append(f"- {claim.text}, {where}. {verdict.evidence}.")
                    told = verdict.summary
                judged.append(f"- {verdict.outcome.capitalize()}: {claim.text} ({where}). {told}.")
            else:
                missing.append(claim.text)
        if missing:
            commands = [Options("paper").command(one.experiment)]
            if one.scale == "paper":
                commands = one.commands_left()
            told = ": " * bool(commands) + ", ".join(f"`{text}`" for text in commands)
            left.append(f"- Not measured: {'; '.join(missing)} ({where}){told}.")
    if folded:
        heading = f"Each comparison of the claims that have more than {FEW}"
        folded = ["", f"<details><summary>{heading}</summary>", "", *folded, "", "</details>"]
    return judged + left + folded
