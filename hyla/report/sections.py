"""The sections of the page: an experiment with all of its figures, and the runs."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyla.experiments import rows as choosing
from hyla.experiments.ablation import ABLATION
from hyla.experiments.declare import Figure
from hyla.report.beyond import ABOUT, beyond
from hyla.report.drawn import Drawn, Grid
from hyla.report.figures import draw
from hyla.report.found import DAMAGE, Found
from hyla.report.origins import origins
from hyla.report.parts import Plots, command, figure, folded, table
from hyla.report.summary import NAMES, badge, verdict
from hyla.report.text import at, escape, number, places
from hyla.train.config import MAIN_MEASURES
from hyla.train.runs import RunState

MANY_COMMANDS = 3  # from here on they are folded
ALWAYS = {
    "lines": "Means over seeds, with standard errors (a single seed has none). "
    "Hover a point for what is behind it.",
    "rules": "Means over seeds; bars have standard errors (a single seed has none).",
    "curves": "Means over seeds.",
    "table": "Mean ± standard error over seeds. Hover a number for what is behind it.",
}


def selection_rule() -> str:
    """How hyperparameters are chosen, in the words of the module that does it."""
    paragraphs = (choosing.__doc__ or "").split("\n\n")
    text = " ".join(paragraphs[1].split()) if len(paragraphs) > 1 else ""
    return text.replace("`paper_choice`", '"chosen as in the paper"')


def experiment_section(found: Found, plots: Plots) -> str:
    """Title, place in the paper, claims with verdicts, commands, figures, rows."""
    experiment, name = found.experiment, escape(found.experiment.name)
    parts = [
        f'<section id="{name}" aria-labelledby="{name}-title">',
        f'<h3 id="{name}-title">{escape(experiment.title)}</h3>',
        f'<p class="soft">In the paper: {escape(experiment.where)}. Name: <code>{name}</code> '
        f"{badge(found.scale)}</p>",
        f"<p>{escape(experiment.note)}</p>" if experiment.note else "",
        _claims(found),
        *(f'<div class="problem"><p>{escape(text)}</p></div>' for text in found.problems),
        _how(found),
        _unusual(found),
        *(_figures(found, plots) if found.rows else [_nothing(found)]),
        _beyond(found),
        origins(found),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _claims(found: Found) -> str:
    items = "".join(verdict(claim, judged, found.scale) for claim, judged in found.verdicts)
    return f'<ul class="verdicts">{items}</ul>' if items else ""


def _beyond(found: Found) -> str:
    """What the paper does not say."""
    if found.experiment is not ABLATION:
        return ""
    grid, notes = beyond(found.rows, found.beside)
    parts = [f"<p>{escape(ABOUT)}</p>", table(grid, "Beyond the paper")] if grid else []
    return "".join([*parts, *(f"<p>{escape(note)}</p>" for note in notes)])


def _how(found: Found) -> str:
    """How far it has come, and the commands that make it, complete it or do it at full scale."""
    if not found.rows:
        return ""
    commands = _commands(found)
    by = "by" if len(commands) == 1 else "by these, each some of them"
    parts = [f"<p>All {found.points} points are measured. Made {by}:</p>"]
    if found.left:
        rest = found.commands_left()
        done = f"{found.measured} of {found.points} points are measured"
        words = "this does the rest" if len(rest) == 1 else "these do the rest"
        if any(row.get("seeds") for row in found.rows):
            words += ", and all seeds of rows with fewer"
        parts = [f"<p><strong>{done}</strong>; {words}:</p>", *map(command, rest)]
        commands = [text for text in commands if text not in rest]
        parts += ["<p>Measured by other commands:</p>"] if commands else []
    listed = "".join(map(command, commands))
    many = f"{len(commands)} commands"
    parts.append(listed if len(commands) <= MANY_COMMANDS else folded(many, listed))
    whole = found.experiment.scales[0]
    if found.scale != whole:
        parts.append(f"<p>At {NAMES[whole]}:</p>")
        parts.append(command(f"hyla reproduce {found.experiment.name} --scale {whole}"))
    return "".join(parts)


def _unusual(found: Found) -> str:
    """Which points were asked for with fewer seeds or another precision than most."""
    axes = [name for point in found.experiment.points()[:1] for name in point.axes]
    asked = [(str(row.get("seeds", "")), str(row.get("precision", ""))) for row in found.rows]
    usual = Counter(asked).most_common(1)
    others = []
    for row, how in zip(found.rows, asked, strict=True):
        seeds, precision = how
        if precision and how != usual[0][0]:
            told = [places(axes, row), precision]
            told += [f"seeds: {seeds}"] if seeds else []
            others.append(f"<li>{escape(', '.join(told))}</li>")
    listed = "".join(dict.fromkeys(others))  # a point with many rows is one
    return f"<p>Made unlike the others:</p><ul>{listed}</ul>" if listed else ""


def _figures(found: Found, plots: Plots) -> list[str]:
    return [part for one in found.experiment.figures for part in _figure(one, found, plots)]


def _figure(declared: Figure, found: Found, plots: Plots) -> list[str]:
    """One declared figure, or the place where it will be."""
    try:
        drawings = draw(declared, found.rows_for(declared), found.experiment.axes)
    except DAMAGE as error:  # a row so odd that no check has seen it
        reason = f"the rows could not be drawn ({type(error).__name__}: {error})"
        drawings = [Drawn(declared.title, skipped=[reason])]
    caption = " ".join(text for text in (declared.caption, ALWAYS.get(declared.kind, "")) if text)
    return [
        figure(drawn, caption, plots) if drawn.panels or drawn.table else _empty(drawn)
        for drawn in drawings
    ]


def _nothing(found: Found) -> str:
    """The place of all figures of an experiment that is not measured."""
    titles = "".join(f"<li>{escape(one.title)}</li>" for one in found.experiment.figures)
    commands = "".join(map(command, found.commands_left()))
    return (
        f'<div class="empty"><ul>{titles}</ul><p>Not measured. This fills it:</p>{commands}</div>'
    )


def _empty(drawn: Drawn) -> str:
    """The place of a figure for which there are no rows yet."""
    skipped = "".join(f"<li>{escape(line)}</li>" for line in drawn.skipped)
    listed = f"<ul>{skipped}</ul>" if skipped else ""
    text = "<p>Nothing to show yet: what is left is made by the commands above.</p>"
    return f'<div class="empty"><h4>{escape(drawn.title)}</h4>{listed}{text}</div>'


def _commands(found: Found) -> list[str]:
    """Those that made the rows."""
    return list(dict.fromkeys(str(row["command"]) for row in found.rows if row.get("command")))


def runs_section(root: Path, states: Sequence[RunState]) -> str:
    """All run folders; damaged ones with what is wrong with them."""
    parts = ['<section id="runs" aria-labelledby="runs-title"><h2 id="runs-title">Runs</h2>']
    if not states:
        parts.append(f"<p>There are no run folders in {escape(root)}.</p></section>")
        return "".join(parts)
    for state in states:
        if state.state == "damaged":
            text = f"{_relative(state.path, root)} is damaged: {state.problem}"
            parts.append(f'<div class="problem"><p>{escape(text)}</p></div>')
    head = ["run", "state", "task", "attention", "step", "models", "best held out"]
    body = []
    for state in states:
        if state.state == "damaged":
            continue
        step = f"{state.step:,}/{state.steps:,}" if state.steps else ""
        cells = [_relative(state.path, root), state.state, state.task, state.attention, step]
        body.append([*cells, str(state.members or ""), best(state.summary)])
    states_ = list(dict.fromkeys(state.state for state in states))
    told = ", ".join(f"{sum(s.state == name for s in states)} {name}" for name in states_)
    title = f"{len(states)} run folders: {told}"
    parts.append(folded(title, table(Grid(head, body, 4), "Runs"), " open" * (len(body) <= 12)))
    return "".join([*parts, "</section>"])


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path != root else path.name


def best(summary: Any) -> str:
    """The best member on held-out instances, in percent."""
    members = at(summary, "members")
    found = []
    for i, member in enumerate(members if isinstance(members, list) else []):
        for name in MAIN_MEASURES.values():
            value = number(at(member, "evaluation", "held_out", name))
            if value is not None:
                found.append((value, -i, name))
    if not found:
        return ""
    value, place, name = max(found)
    return f"{name} {100 * value:.1f} % (member {-place})"
