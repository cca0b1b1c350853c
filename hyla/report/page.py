"""The page: one HTML file with its style, scripts and figures."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from string import Template

from hyla.report.found import Content
from hyla.report.parts import Plots
from hyla.report.sections import SELECTION_RULE, experiment_section, runs_section
from hyla.report.summary import first_screen
from hyla.report.text import escape, script_json
from hyla.train.runs import list_runs

TITLE = "Attention as a Hypernetwork: a reproduction"


def whole_page(content: Content) -> str:
    """HTML that opens from a file, without a network."""
    plots = Plots()
    sections = "\n".join(experiment_section(one, plots) for one in content.found)
    body = "\n".join(
        [
            first_screen(content),
            _contents(content),
            '<main id="experiments"><h2>Experiments</h2>',
            f"<p>{escape(SELECTION_RULE)}</p>",
            sections,
            runs_section(content.runs, list_runs(content.runs)),
            "</main>",
        ]
    )
    library, script = plotly_script(), _file("page.js")
    return Template(_file("page.html")).substitute(
        policy=_policy([library, script]),
        title=escape(TITLE),
        style=_file("page.css"),
        body=body,
        plots=script_json(plots.specs),
        library=library,
        script=script,
    )


def _contents(content: Content) -> str:
    items = "".join(
        f'<li><a href="#{escape(one.experiment.name)}">{escape(one.experiment.title)}</a></li>'
        for one in content.found
    )
    return f'<nav aria-label="Contents"><ul>{items}<li><a href="#runs">Runs</a></li></ul></nav>'


def _policy(scripts: Sequence[str]) -> str:
    """Forbid the network and all scripts but ours, so that injected markup cannot run."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def plotly_script() -> str:
    """The whole plotting library."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    # This text would end the script element; escaped, it has the same meaning in a string.
    return get_plotlyjs().replace("</script", r"<\/script")


def _file(name: str) -> str:
    return files("hyla.report").joinpath(name).read_text(encoding="utf-8")
