"""Pieces of HTML: tables, figures, commands. They escape all text from files."""

from collections.abc import Sequence
from typing import Any

from hyla.report.drawn import Cell, Drawn, Grid, Key, Panel
from hyla.report.text import escape

SHOWN_SKIPS = 8
SHORT = 28  # characters of a cell on one line
# Symbols of points in the legend, 10 wide.
SHAPES = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0",
    "square": "M-4-4H4V4H-4Z",
    "diamond": "M0-5L5 0L0 5L-5 0Z",
    "triangle-up": "M0-5L5 4H-5Z",
    "triangle-down": "M0 5L5-4H-5Z",
    "cross": "M-2-5H2V-2H5V2H2V5H-2V2H-5V-2H-2Z",
    "x": "M-5-3L-3-5L0-2L3-5L5-3L2 0L5 3L3 5L0 2L-3 5L-5 3L-2 0Z",
    "star": "M0-5L1.5-1.5L5-1L2.4 1.5L3 5L0 3.2L-3 5L-2.4 1.5L-5-1L-1.5-1.5Z",
}
MARKS = {"above": "▲", "below": "▼"}


class Plots:
    """The plots of a page by the ids of their elements."""

    def __init__(self) -> None:
        self.specs: dict[str, Any] = {}

    def add(self, panel: Panel) -> str:
        """Add a plot and return the id of its element."""
        name = f"plot-{len(self.specs) + 1}"
        self.specs[name] = {"data": panel.data, "layout": panel.layout, "height": panel.height}
        return name


def table(grid: Grid, caption: str = "") -> str:
    """A table that scrolls inside its own box."""
    head = "".join(
        f'<th scope="col"{_numeric(i, grid)}>{escape(name)}</th>'
        for i, name in enumerate(grid.head)
    )
    lines = []
    for line in grid.body:
        cells = "".join(_cell(cell, i, grid) for i, cell in enumerate(line))
        lines.append(f"<tr>{cells}</tr>")
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    name = escape(caption or "table")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{name}"><table>{title}'
        f"<thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"
    )


def _numeric(column: int, grid: Grid) -> str:
    return ' class="number"' if column >= grid.texts else ""


def _cell(cell: Cell | str, column: int, grid: Grid) -> str:
    if isinstance(cell, str):
        cell = Cell(cell)
    classes = ["long"] if len(cell.text) > SHORT else []
    if column == 0:
        return f'<th scope="row"{_class(classes)}>{escape(cell.text)}</th>'
    classes += ["number"] if column >= grid.texts else []
    mark = ""
    if cell.mark in MARKS:
        classes.append(cell.mark)
        words = f"{cell.mark} the paper's value"
        mark = f' <span class="mark" role="img" aria-label="{words}">{MARKS[cell.mark]}</span>'
    about = f' data-about="{escape(cell.about)}" tabindex="0"' if cell.about else ""
    return f"<td{_class(classes)}{about}>{escape(cell.text)}{mark}</td>"


def _class(names: Sequence[str]) -> str:
    return f' class="{" ".join(names)}"' if names else ""


def command(text: str) -> str:
    """A command with a button that copies it."""
    return (
        f'<p class="command"><code>{escape(text)}</code>'
        '<button type="button" class="copy">copy</button></p>'
    )


def figure(drawn: Drawn, caption: str, plots: Plots) -> str:
    """A figure: table, legend, plots, caption, skipped rows and numbers."""
    parts = [f"<h4>{escape(drawn.title)}</h4>"]
    if drawn.table is not None:
        parts.append(table(drawn.table, drawn.title))
    if drawn.panels:
        if len(drawn.legend) > 1:
            parts.append(_legend(drawn.legend))
        parts.append('<div class="panels">')
        parts += [_panel(panel, drawn.title, plots) for panel in drawn.panels]
        parts.append("</div>")
    text = " ".join(part for part in (caption, drawn.note) if part)
    parts.append(f"<figcaption>{escape(text)}</figcaption>" if text else "")
    parts.append(_skips(drawn.skipped))
    if drawn.numbers is not None and drawn.panels:
        inside = table(drawn.numbers, f"Numbers: {drawn.title}")
        parts.append(folded("Numbers", inside))
    return "<figure>" + "\n".join(part for part in parts if part) + "</figure>"


def problem(text: str) -> str:
    """A box with an error message."""
    return f'<div class="problem"><p>{escape(text)}</p></div>'


def folded(title: str, inside: str, extra: str = "") -> str:
    """A part that a click unfolds; print shows it open."""
    return f"<details{extra}><summary>{escape(title)}</summary>{inside}</details>"


def _panel(panel: Panel, title: str, plots: Plots) -> str:
    name = plots.add(panel)
    heading = f'<p class="panel-title">{escape(panel.title)}</p>' if panel.title else ""
    about = escape(", ".join(part for part in (title, panel.title) if part))
    wide = " wide" if panel.wide else ""
    return (
        f'<div class="panel{wide}">{heading}<div class="plot" id="{name}" role="img" '
        f'aria-label="{about}" style="height:{panel.height}px"></div></div>'
    )


def _legend(keys: Sequence[Key]) -> str:
    items = "".join(
        f'<button type="button" aria-pressed="true" data-key="{i}">'
        f'<svg width="26" height="12" aria-hidden="true">{_swatch(key)}</svg>'
        f"{escape(key.name)}</button>"
        for i, key in enumerate(keys)
    )
    return f'<div class="legend" role="group" aria-label="shown in the plots">{items}</div>'


def _swatch(key: Key) -> str:
    colour = "currentColor" if key.colour == "ink" else key.colour
    parts = []
    if key.dash:
        dashes = "" if key.dash == "solid" else ' stroke-dasharray="6 4"'
        width = 2 if key.symbol else 4
        parts.append(f'<path d="M0 6H26" stroke="{colour}" stroke-width="{width}"{dashes}/>')
    if key.symbol:
        shape = SHAPES[key.symbol]
        parts.append(f'<path transform="translate(13 6)" fill="{colour}" d="{shape}"/>')
    return "".join(parts)


def _skips(skipped: Sequence[str]) -> str:
    if not skipped:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in skipped[:SHOWN_SKIPS])
    more = len(skipped) - SHOWN_SKIPS
    items += f"<li>and {more} more</li>" if more > 0 else ""
    count = "1 row is" if len(skipped) == 1 else f"{len(skipped)} rows are"
    return f'<div class="problem"><p>{count} not shown here:</p><ul>{items}</ul></div>'
