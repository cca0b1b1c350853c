"""One page with all results: `hyla report`, or `write` here.

>>> page = render(Content([], [], ["A run is damaged."], Path("runs")))
>>> "A run is damaged." in page
True
"""

from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from hyla.experiments.run import RESULTS, RUNS
from hyla.files import new_file
from hyla.report.content import Content, load
from hyla.report.drawing import save
from hyla.report.figures import draw_headline, views
from hyla.report.tables import configuration, evidence, local, run_folders

__all__ = ["Content", "load", "render", "write", "write_figures"]


def write(output: Path, runs: Path = RUNS, results: Path | None = RESULTS) -> Content:
    """Write the page and return its content. An error leaves an existing file unchanged.

    runs: folder of local run folders. results: folder of published results; None leaves them out.
    """
    content = load(runs, results)
    text = render(content)
    with new_file(output, overwrite=True) as handle:
        handle.write(text.encode(errors="replace"))
    return content


def write_figures(content: Content, folder: Path) -> list[Path]:
    """Draw every figure with results as NAME.png and NAME.svg, NAME-2.png and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for results in content.results:
        drawings = [view.drawing for view in views(results) if view.drawing is not None]
        for i, drawing in enumerate(drawings, start=1):
            name = f"{results.experiment.name}{f'-{i}' if i > 1 else ''}"
            for file_format in ("png", "svg"):
                path = folder / f"{name}.{file_format}"
                with new_file(path, overwrite=True) as handle:
                    save(drawing, handle, file_format)
                made.append(path)
    return made


def render(content: Content) -> str:
    """Render the page: one HTML text without scripts and external files."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style, template = (
        files("hyla.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "page.html")
    )
    return environment.from_string(template).render(
        style=style,
        content=content,
        sections=[(results, views(results)) for results in content.results],
        headlines=[
            (headline, verdict, draw_headline(headline, rows))
            for headline, rows, verdict in content.headlines
        ],
        origins=[
            one.origin
            for results in content.results
            for row in results.rows
            for one in row.trainings
            if one.path is None
        ],
        states=run_folders(content.runs),
        configuration=configuration,
        evidence=evidence,
        local=local,
    )
