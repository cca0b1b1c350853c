"""One page that shows all results: `hyla report`, or `write` here.

>>> from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as folder:
...     page = render(Path(folder), Path(folder))
>>> "hyla reproduce ablation --scale paper" in page
True
"""

from pathlib import Path

from hyla.experiments.results import RESULTS, RUNS
from hyla.files import new_file
from hyla.report.found import Found, load
from hyla.report.page import whole_page

__all__ = ["Found", "load", "render", "write"]


def render(results: Path = RESULTS, runs: Path = RUNS) -> str:
    """The page as text: HTML that needs nothing else.

    results: folder of the results at the paper's scale. runs: folder of run folders, and of the
    results at other scales.
    """
    return whole_page(load(results, runs), runs)


def write(output: Path, results: Path = RESULTS, runs: Path = RUNS) -> list[Found]:
    """Writes the page; what it is about. After an error the old file is still there."""
    found = load(results, runs)
    text = whole_page(found, runs)
    with new_file(output, overwrite=True) as handle:
        handle.write(text.encode(errors="replace"))  # JSON may hold halves of characters
    return found
