"""One page with all results: `hyla report`, or `write` here.

>>> from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as folder:
...     page = render(Path(folder), None)
>>> "hyla reproduce ablation" in page
True
"""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

from hyla.experiments.judge import Verdict
from hyla.experiments.run import RESULTS, RUNS
from hyla.experiments.spec import Row
from hyla.files import new_file
from hyla.report.content import Content, Results, evidence, load, outcomes, outcomes_of_paper
from hyla.report.drawing import save
from hyla.report.figures import Table, draw, draw_headline
from hyla.report.text import duration, hyperparameters, mean_of, places, rounded, with_error
from hyla.train.runs import RunState, list_runs

__all__ = ["Content", "load", "render", "write", "write_figures"]


def render(runs: Path = RUNS, results: Path | None = RESULTS) -> str:
    """Render the page: one HTML text without scripts and external files.

    runs: folder of local run folders. results: folder of published results; None leaves them out.
    """
    return _page(load(runs, results))


def write(output: Path, runs: Path = RUNS, results: Path | None = RESULTS) -> Content:
    """Write the page and return its content. An error leaves an existing file unchanged."""
    content = load(runs, results)
    text = _page(content)
    with new_file(output, overwrite=True) as handle:
        handle.write(text.encode(errors="replace"))
    return content


def write_figures(content: Content, folder: Path) -> list[Path]:
    """Draw every figure with results as NAME.png and NAME.svg, NAME-2.png and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for results in content.results:
        views = (draw(figure, results) for figure in results.experiment.figures)
        drawings = [view.drawing for view in views if view.drawing is not None]
        for i, drawing in enumerate(drawings, start=1):
            name = f"{results.experiment.name}{f'-{i}' if i > 1 else ''}"
            for file_format in ("png", "svg"):
                path = folder / f"{name}.{file_format}"
                with new_file(path, overwrite=True) as handle:
                    save(drawing, handle, file_format)
                made.append(path)
    return made


def _page(content: Content) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_file("page.html"))
    sections = [_section(results) for results in content.results]
    return template.render(
        style=_file("page.css"),
        problems=content.problems,
        sections=sections,
        yours=[one for one in sections if one.results.local],
        headlines=[
            (headline, verdict, draw_headline(headline, rows))
            for headline, rows, verdict in content.headlines
        ],
        outcomes=outcomes_of_paper(content),
        facts=_facts(content),
        evidence_table=_evidence,
        states=_states(content.runs, list_runs(content.runs)),
        runs=content.runs,
    )


def _section(results: Results) -> SimpleNamespace:
    views = [draw(figure, results) for figure in results.experiment.figures]
    return SimpleNamespace(
        results=results,
        claims=[(claim.text, verdict) for claim, verdict in results.verdicts],
        outcomes=outcomes(results.verdicts),
        views=[view for view in views if view.drawing is not None or view.table is not None],
        configuration=_configuration(results),
        local=_local(results),
    )


def _local(results: Results) -> Table:
    """The results with local trainings, beside the paper's values."""
    body = [
        [
            places(results.experiment.axes, row.axes),
            mean_of(row.main),
            with_error(*row.paper or (None, None)),
        ]
        for row in results.local
        if row.measures and row.axes.get("label", "all") == "all"
    ]
    return Table(["result", "here", "paper"], body)


def _configuration(results: Results) -> Table:
    """How every trained result was made."""
    head = ["result", "hyperparameters", "by seed", "preset", "precision", "device", "time", "runs"]
    body = [
        [
            places(results.experiment.axes, row.axes),
            hyperparameters(row),
            ", ".join(map(rounded, row.main.per_seed)),
            row.preset.replace("_", " "),
            ", ".join(row.precisions),
            ", ".join(dict.fromkeys(one.origin.device for one in row.trainings)),
            _time(row),
            ", ".join(dict.fromkeys(one.run for one in row.trainings)),
        ]
        for row in (*results.rows, *results.as_published)
        if row.trainings and not row.picture and "what" not in row.axes
    ]
    return Table(head, body, len(head))


def _time(row: Row) -> str:
    seconds = {one.run: one.origin.seconds for one in row.trainings}
    known = [value for value in seconds.values() if value is not None]
    return duration(sum(known)) if len(known) == len(seconds) else ""


def _evidence(verdict: Verdict) -> Table:
    """The contrasts of a claim."""
    head = ["contrast", "claimed", "outcome", "value", "95 % interval", "seeds", "paired"]
    body = [
        [
            one.text,
            one.claimed,
            one.outcome,
            rounded(one.value),
            " to ".join(map(rounded, one.interval)) if one.interval else "",
            str(one.seeds or ""),
            "yes" if one.paired else "no",
        ]
        for one in evidence(verdict)
    ]
    return Table(head, body, 3)


def _facts(content: Content) -> dict[str, str]:
    """When and on what the published results were trained."""
    origins = [
        one.origin
        for results in content.results
        for row in results.rows
        for one in row.trainings
        if one.path is None
    ]
    days = sorted(origin.date[:10] for origin in origins if origin.date)
    if not days:
        return {}
    return {
        "days": " to ".join(dict.fromkeys((days[0], days[-1]))),
        "devices": ", ".join(dict.fromkeys(origin.device for origin in origins)),
    }


def _states(root: Path, states: Sequence[RunState]) -> Table:
    body = [
        [
            str(state.path.relative_to(root)) if state.path != root else state.path.name,
            state.state,
            state.task,
            state.kind,
            f"{state.step:,}/{state.steps:,}" if state.steps else "",
            str(state.members or ""),
        ]
        for state in states
    ]
    return Table(["run", "state", "task", "attention", "step", "models"], body, 4)


def _file(name: str) -> str:
    return files("hyla.report").joinpath(name).read_text(encoding="utf-8")
