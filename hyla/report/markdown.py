"""Results in Markdown: tables of ablations and claims for the README, and what claims rest on."""

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
from hyla.report.summary import MEANING
from hyla.report.tables import marked_mean, notes
from hyla.report.text import with_error

BEGIN, END = "<!-- results -->\n", "<!-- end of results -->"


def results_block(found: Sequence[Found]) -> str:
    """What is measured at the paper's scale: the table of ablations, a line for every claim."""
    there = [one for one in found if one.scale == "paper"]
    ablation = next((one for one in there if one.experiment is ABLATION), Found(ABLATION))
    rows = ablation.rows
    lines = [*_table(rows), "", " ".join([*notes(rows), ABLATION.note]), "", MEANING, ""]
    lines += ["| claim of the paper | verdict | numbers here |", "|---|---|---|"]
    lines += [
        f"| {claim.text} ({one.experiment.where}) | {verdict.outcome} | {verdict.summary} |"
        for one, claim, verdict in _claims(found)
    ]
    return "\n".join([*lines, *_beyond(ablation)]) + "\n"


def claims_block(found: Sequence[Found]) -> str:
    """Every claim with each of its comparisons, or with the commands that would measure it."""
    lines, where = [], ""
    for one, claim, verdict in _claims(found):
        if one.experiment.where != where:
            where = one.experiment.where
            lines += [f"## {one.experiment.title}: {where}", ""]
        lines += [
            f"**{verdict.outcome.capitalize()}: {claim.text}.** {verdict.summary}".strip(),
            "",
        ]
        told = list(verdict.comparisons)
        if verdict == NOT_MEASURED:
            left = [Options("paper").command(one.experiment)]
            told = [f"`{text}`" for text in (one.commands_left() if one.scale == "paper" else left)]
        lines += [*(f"- {text}" for text in told), *([""] if told else [])]
    return "\n".join(lines)


def _claims(found: Sequence[Found]) -> Iterator[tuple[Found, Claim, Verdict]]:
    """The claims of the paper, as they are judged at its scale."""
    for one in found:
        for claim, verdict in one.verdicts if "paper" in one.experiment.scales else ():
            yield one, claim, verdict if one.scale == "paper" else NOT_MEASURED


def update(path: Path, block: str) -> None:
    """Writes a block between the two marks in a file."""
    text = path.read_text()
    begin, end = text.find(BEGIN), text.find(END)
    if not 0 <= begin < end:
        raise bad_value(str(path), "none", f"a file with the lines {BEGIN.strip()} and {END}")
    text = text[: begin + len(BEGIN)] + block + text[end:]
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
