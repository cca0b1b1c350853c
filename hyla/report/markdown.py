"""Results in Markdown, between marks in a file: table 1, and the verdicts on all claims."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hyla.errors import bad_value
from hyla.experiments.judge import OUTCOMES
from hyla.experiments.paper.ablation import ABLATION, FUZZY, ROWS, SRAVEN, title
from hyla.files import new_file
from hyla.report.found import Found
from hyla.report.tables import marked_mean, notes
from hyla.report.text import with_error
from hyla.report.verdicts import contrast_counts

Block = Callable[[Sequence[Found]], Iterator[str]]


def _table(found: Sequence[Found]) -> Iterator[str]:
    (rows,) = (one.with_paper for one in found if one.experiment is ABLATION)
    at = {(row["row"], row["task"]): row for row in rows}
    yield "| held out, percent | fuzzy logic, R2 | paper | SRAVEN, accuracy | paper |"
    yield "|---|---|---|---|---|"
    for kinds, papers in ROWS.items():
        name, cells = title(*kinds), []
        for task, paper in zip((FUZZY, SRAVEN), papers, strict=True):
            cells += [marked_mean(at[name, task]), with_error(*paper)]
        yield f"| {' | '.join([name, *cells])} |"
    for note in notes(rows):
        yield f"\n{note}"


def _claims(found: Sequence[Found]) -> Iterator[str]:
    """A line for each claim: its verdict and the outcomes of its contrasts."""
    yield f"| claim | in the paper | verdict | {' | '.join(OUTCOMES)} |"
    yield "|---" * (3 + len(OUTCOMES)) + "|"
    for one in found:
        for claim, judged in one.verdicts if not one.experiment.is_demo else ():
            numbers = map(str, contrast_counts(judged).values())
            cells = [claim.text, one.experiment.where, judged.outcome, *numbers]
            yield f"| {' | '.join(cells)} |"


BLOCKS: dict[str, Block] = {"table 1": _table, "claims": _claims}  # by the names in their marks


def marks(name: str) -> tuple[str, str]:
    """Return the lines before and after a block."""
    return f"<!-- {name} -->\n", f"<!-- end of {name} -->"


def blocks_in(path: Path) -> list[str]:
    """List the blocks whose marks a file has; ValueError if it has none."""
    text = path.read_text()
    found = [name for name in BLOCKS if 0 <= text.find(marks(name)[0]) < text.find(marks(name)[1])]
    if not found:
        known = " or ".join(repr(marks(name)[0].strip()) for name in BLOCKS)
        raise bad_value(str(path), "a file without marks", f"one with the line {known}")
    return found


def filled(text: str, name: str, found: Sequence[Found]) -> str:
    """Replace a block between its marks."""
    first, last = marks(name)
    before, after = text.partition(first)[0], text.partition(last)[2]
    return f"{before}{first}" + "\n".join(BLOCKS[name](found)) + f"\n{last}{after}"


def update(path: Path, found: Sequence[Found]) -> None:
    """Replace all blocks of a file."""
    text = path.read_text()
    for name in blocks_in(path):
        text = filled(text, name, found)
    with new_file(path, overwrite=True) as handle:
        handle.write(text.encode())
