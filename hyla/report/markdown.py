"""Results in Markdown, between marks in a file: table 1, and the verdicts on all claims."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hyla.errors import bad_value
from hyla.experiments.judge import OUTCOMES
from hyla.experiments.paper.ablation import ABLATION, FUZZY, ROWS, SRAVEN, title
from hyla.files import new_file
from hyla.report.content import Results, contrast_outcomes
from hyla.report.figures import marked_mean
from hyla.report.text import mean_of, notes, with_error

Block = Callable[[Sequence[Results]], Iterator[str]]


def _table(found: Sequence[Results]) -> Iterator[str]:
    """Table 1: both presets beside the paper."""
    (results,) = (one for one in found if one.experiment is ABLATION)
    ours = {(row.axes["row"], row.axes["task"]): row for row in results.rows}
    theirs = {(row.axes["row"], row.axes["task"]): row for row in results.as_published}
    columns = "as described | authors' code | paper"
    yield f"| held out, percent | fuzzy logic, R2: {columns} | SRAVEN, accuracy: {columns} |"
    yield "|---" * 7 + "|"
    for kinds, papers in ROWS.items():
        name, cells = title(*kinds), list[str]()
        for task, paper in zip((FUZZY, SRAVEN), papers, strict=True):
            other = theirs.get((name, task))
            published = "" if other is None else mean_of(other.main)
            cells += [marked_mean(ours.get((name, task))), published, with_error(*paper)]
        yield f"| {' | '.join([name, *cells])} |"
    for note in notes(results.rows):
        yield f"\n{note}"


def _claims(found: Sequence[Results]) -> Iterator[str]:
    """A line for each claim: its verdict and the outcomes of its contrasts."""
    yield f"| claim | in the paper | verdict | {' | '.join(OUTCOMES)} |"
    yield "|---" * (3 + len(OUTCOMES)) + "|"
    for one in found:
        for claim, verdict in one.verdicts if not one.experiment.is_demo else ():
            numbers = map(str, contrast_outcomes(verdict).values())
            cells = [claim.text, one.experiment.where, verdict.outcome, *numbers]
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


def filled(text: str, name: str, found: Sequence[Results]) -> str:
    """Replace a block between its marks."""
    first, last = marks(name)
    before, after = text.partition(first)[0], text.partition(last)[2]
    return f"{before}{first}" + "\n".join(BLOCKS[name](found)) + f"\n{last}{after}"


def update(path: Path, found: Sequence[Results]) -> None:
    """Replace all blocks of a file."""
    text = path.read_text()
    for name in blocks_in(path):
        text = filled(text, name, found)
    with new_file(path, overwrite=True) as handle:
        handle.write(text.encode())
