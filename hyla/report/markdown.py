"""Results in Markdown, between marks in a file: table 1, and the verdicts on all claims."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hyla.errors import bad_value
from hyla.experiments.judge import NOT_TESTED, OUTCOMES
from hyla.experiments.paper.ablation import ABLATION
from hyla.files import new_file
from hyla.report.content import Results, tally
from hyla.report.tables import beside_paper
from hyla.report.text import notes


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(found: Sequence[Results]) -> Iterator[str]:
    """Table 1: both presets beside the paper."""
    (results,) = (one for one in found if one.experiment is ABLATION)
    kinds = ["authors' code", "paper"]
    first, second = "fuzzy logic, R2: as described", "SRAVEN, accuracy: as described"
    yield _line(["held out, percent", first, *kinds, second, *kinds])
    yield "|---" * 7 + "|"
    yield from map(_line, beside_paper(ABLATION.figures[0], results).body)
    for note in notes(results.rows):
        yield f"\n{note}"


def _claims(found: Sequence[Results]) -> Iterator[str]:
    """A line for each claim: its verdict and the outcomes of its contrasts."""
    yield _line(["claim", "in the paper", "verdict", *OUTCOMES])
    yield "|---" * (3 + len(OUTCOMES)) + "|"
    for one in found:
        for claim, verdict in one.verdicts if not one.experiment.is_demo else ():
            outcomes = [contrast.outcome for contrast in verdict.comparisons]
            counts = tally(outcomes + [NOT_TESTED] * len(verdict.untested))
            yield _line(
                [claim.text, one.experiment.where, verdict.outcome, *map(str, counts.values())]
            )


# By the names in their marks.
BLOCKS: dict[str, Callable[[Sequence[Results]], Iterator[str]]] = {
    "table 1": _table,
    "claims": _claims,
}


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
