"""The sections of the page: an experiment with its claims and figures, and the runs."""

from collections.abc import Sequence
from pathlib import Path

from hyla.experiments.spec import Figure
from hyla.report.drawn import Drawn, Grid
from hyla.report.figures import draw
from hyla.report.found import Found
from hyla.report.parts import Plots, command, figure, folded, table
from hyla.report.summary import badge
from hyla.report.text import escape
from hyla.report.verdicts import with_evidence
from hyla.train.runs import RunState

SELECTION_RULE = (
    "Hyperparameters are those with the lowest validation loss, averaged over all seeds on which "
    "every setting was trained. The validation set has new instances of training combinations. "
    "Results whose hyperparameters were not searched this way are marked."
)
ALWAYS = {
    "lines": "Means over seeds with standard errors; a single seed has no error bar. Hover a point "
    "for its seeds, hyperparameters and runs.",
    "rules": "Means over seeds; bars show standard errors, except for single seeds.",
    "table": "Mean ± standard error over seeds. Hover a number for its seeds, hyperparameters and "
    "runs.",
}


def experiment_section(found: Found, plots: Plots) -> str:
    """Title, place in the paper, claims with verdicts, progress and figures."""
    experiment, name = found.experiment, escape(found.experiment.name)
    claims = "".join(with_evidence(claim, judged) for claim, judged in found.verdicts)
    parts = [
        f'<section id="{name}" aria-labelledby="{name}-title">',
        f'<h3 id="{name}-title">{escape(experiment.title)}</h3>',
        f'<p class="soft">In the paper: {escape(experiment.where)}. Name: <code>{name}</code> '
        f"{badge(found)}</p>",
        f"<p>{escape(experiment.note)}</p>" if experiment.note else "",
        f'<ul class="verdicts">{claims}</ul>' if claims else "",
        _progress(found),
        *([_figure(one, found, plots) for one in experiment.figures] if found.rows else []),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _progress(found: Found) -> str:
    """How many points have a result, and the command for the others."""
    local = sum(row.is_local for row in found.rows)
    text = f"{found.measured} of {found.points} points are measured."
    if local:
        text += f" {local} of {len(found.rows)} results come from local runs."
    if found.measured == found.points:
        return f"<p>{text}</p>"
    return f"<p>{text} This command measures the others:</p>{command(found.command)}"


def _figure(declared: Figure, found: Found, plots: Plots) -> str:
    """One declared figure, or a box in its place if it has no values."""
    drawn = draw(declared, found.rows_for(declared), found.experiment.axes)
    caption = " ".join(text for text in (declared.caption, ALWAYS.get(declared.kind, "")) if text)
    if drawn.panels or drawn.table:
        return figure(drawn, caption, plots)
    return _empty(drawn)


def _empty(drawn: Drawn) -> str:
    skipped = "".join(f"<li>{escape(line)}</li>" for line in drawn.skipped)
    listed = f"<ul>{skipped}</ul>" if skipped else ""
    return f'<div class="empty"><h4>{escape(drawn.title)}</h4><p>No results yet.</p>{listed}</div>'


def runs_section(root: Path, states: Sequence[RunState]) -> str:
    """A table of all local run folders."""
    parts = ['<section id="runs" aria-labelledby="runs-title"><h2 id="runs-title">Runs</h2>']
    if not states:
        parts.append(f"<p>{escape(root)} has no run folders.</p></section>")
        return "".join(parts)
    head = ["run", "state", "task", "attention", "step", "models"]
    body = [
        [
            _relative(state.path, root), state.state, state.task, state.kind,
            f"{state.step:,}/{state.steps:,}" if state.steps else "", str(state.members or ""),
        ]
        for state in states
    ]  # fmt: skip
    title = f"{len(states)} run folders"
    parts.append(folded(title, table(Grid(head, body, 4), "Runs"), " open" * (len(body) <= 12)))
    return "".join([*parts, "</section>"])


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path != root else path.name
