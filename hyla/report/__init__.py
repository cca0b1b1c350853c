"""One page with all results: `hyla report`, or `write` here.

>>> from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as folder:
...     page = render(Path(folder), None)
>>> "hyla reproduce ablation" in page
True
"""

from pathlib import Path

from hyla.experiments.run import RESULTS, RUNS
from hyla.files import new_file
from hyla.report.found import Content, load
from hyla.report.page import whole_page

__all__ = ["Content", "load", "render", "write"]


def render(runs: Path = RUNS, results: Path | None = RESULTS) -> str:
    """Render the page: one HTML text without external files.

    runs: folder of local run folders. results: folder of published results; None leaves them out.
    """
    return whole_page(load(runs, results))


def write(output: Path, runs: Path = RUNS, results: Path | None = RESULTS) -> Content:
    """Write the page and return its content. An error leaves an existing file unchanged."""
    content = load(runs, results)
    text = whole_page(content)
    with new_file(output, overwrite=True) as handle:
        handle.write(text.encode(errors="replace"))
    return content
