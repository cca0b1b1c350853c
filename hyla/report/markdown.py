"""Results in Markdown: tables of ablations and claims for the README, and what claims rest on."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from hyla.errors import bad_value
from hyla.experiments.ablation import ABLATION, FUZZY, ROWS, SRAVEN, title
from hyla.experiments.declare import Claim, Row, Verdict
from hyla.experiments.judge import NOT_MEASURED, find
from hyla.experiments.runner import Options
from hyla.files import new_file
from hyla.report.beyond import ABOUT, beyond
from hyla.report.found import Found
from hyla.report.summary import JUDGED_OTHERWISE, MEANINGS, meanings
from hyla.report.tables import marked_mean, notes
from hyla.report.text import with_error


def results_block(found: Sequence[Found]) -> str:
    """What is measured at the paper's scale: the table of ablations, a line for every claim."""
    there = [one for one in found if one.scale == "paper"]
    ablation = next((one for one in there if one.experiment is ABLATION), Found(ABLATION))
    rows = ablation.rows
    lines = [*_table(rows), "", " ".join([*notes(rows), ABLATION.note]), ""]
    outcomes = Counter(verdict.outcome for _, _, verdict in _claims(found))
    each = [f"{outcomes[name]} {name}" for name in MEANINGS if outcomes[name]]
    lines += [f"Of {outcomes.total()} claims of the paper: {', '.join(each)}.", ""]
    lines += [*(f"- {line}" for line in meanings(outcomes)), "", JUDGED_OTHERWISE, ""]
    lines += ["| claim of the paper | verdict | comparisons that hold, differences in points |"]
    lines += ["|---|---|---|"]
    for one, claim, verdict in _claims(found):
        told = _in_one_line(verdict.summary) or f"[how](docs/claims.md#{_anchor(_heading(one))})"
        lines += [f"| {claim.text} ({one.experiment.where}) | {verdict.outcome} | {told} |"]
    return "\n".join([*lines, *_beyond(ablation)]) + "\n"


def claims_block(found: Sequence[Found]) -> str:
    """Every claim with each of its comparisons, or with the commands that would measure it."""
    lines, where = [], ""
    for one, claim, verdict in _claims(found):
        if one.experiment.where != where:
            where = one.experiment.where
            lines += [f"## {_heading(one)}", ""]
        judged = (
            f"**{verdict.outcome.capitalize()}: {claim.text}.** {_in_one_line(verdict.summary)}"
        )
        told = list(verdict.comparisons)
        if verdict.outcome == NOT_MEASURED.outcome:
            left = one.commands_left() if one.scale == "paper" else []
            told = [f"`{text}`" for text in left or [Options("paper").command(one.experiment)]]
            told += [note] if (note := _in_one_line(one.experiment.note)) else []
        lines += [judged.strip(), "", *(f"- {text}" for text in told), *([""] if told else [])]
    return "\n".join(lines)


def _claims(found: Sequence[Found]) -> Iterator[tuple[Found, Claim, Verdict]]:
    """The claims of the paper, as they are judged at its scale."""
    for one in found:
        for claim, verdict in one.verdicts if "paper" in one.experiment.scales else ():
            yield one, claim, verdict if one.scale == "paper" else NOT_MEASURED


def _heading(one: Found) -> str:
    return f"{one.experiment.title} ({one.experiment.where})"


def _anchor(heading: str) -> str:
    """Where a heading is to be found on a page.

    >>> _anchor("SRAVEN: more data, more width (figures 4A and 10A)")
    'sraven-more-data-more-width-figures-4a-and-10a'
    """
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _in_one_line(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def marks(name: str) -> tuple[str, str]:
    """What stands before and after a block in a file."""
    return f"<!-- {name} -->\n", f"<!-- end of {name} -->"


def around(path: Path, name: str) -> tuple[str, str]:
    """What a file has before and after a block, with its marks; ValueError if it has none."""
    text, (first, last) = path.read_text(), marks(name)
    begin, end = text.find(first), text.find(last)
    if not 0 <= begin < end:
        raise bad_value(str(path), "none", f"a file with the lines {first.strip()} and {last}")
    return text[: begin + len(first)], text[end:]


def update(path: Path, name: str, block: str) -> None:
    """Writes a block between its marks in a file."""
    before, after = around(path, name)
    with new_file(path, overwrite=True) as handle:
        handle.write(f"{before}{block}{after}".encode())


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


BLOCKS = {"results": results_block, "claims": claims_block}  # by the names in their marks
