"""Tables and lines as PNG files, from the same drawings as the page."""

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyla.experiments.spec import Figure as Declared
from hyla.files import new_file
from hyla.report.drawn import Drawn, Panel, Trace
from hyla.report.figures import draw
from hyla.report.found import Found
from hyla.report.summary import DEMO_BADGE
from hyla.tasks.sraven_draw import INK, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("table", "lines")
WIDTH, HEIGHT = 3.6, 2.9  # of a panel of lines, in inches
COLUMNS = 3
MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v",
    "cross": "P", "x": "X", "star": "*", "diamond-open": "D", "line-ew": "_",
}  # fmt: skip
LINES: dict[str, Any] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "longdash": (0, (8, 3)),
}


def draw_figures(found: Sequence[Found], folder: Path) -> list[Path]:
    """Draw the tables and lines of all experiments with results and return the files.

    Their names are NAME.png, NAME-2.png and so on, after the experiment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for one in found:
        declared = [figure for figure in one.experiment.figures if figure.kind in KINDS]
        for i, figure in enumerate(declared, start=1):
            drawn = draw(figure, one.rows_for(figure), one.experiment.axes)
            if not one.rows or not drawn.panels:
                continue
            path = folder / f"{one.experiment.name}{f'-{i}' if i > 1 else ''}.png"
            title = drawn.title + f"\n{DEMO_BADGE}" * one.experiment.is_demo
            with new_file(path, overwrite=True) as handle:
                save(_draw(figure, drawn, title), handle, "png")
            made.append(path)
    return made


def _draw(declared: Declared, drawn: Drawn, title: str) -> "Figure":
    from matplotlib.figure import Figure

    count, columns = len(drawn.panels), min(COLUMNS, len(drawn.panels))
    lines = -(-count // columns)
    dots = declared.kind == "table"
    height = drawn.panels[0].height / 130 if dots else HEIGHT
    size = ((5.0 if dots else WIDTH) * columns, height * lines + 0.9)
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    figure.suptitle(_text(html.escape(title)), color=INK, fontsize=11)
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for i, axes in enumerate(grid.flat):
        if i < count:
            _panel(axes, drawn.panels[i], first=i % columns == 0)
        else:
            axes.set_visible(False)
    _legend(figure, drawn)
    return figure


def _panel(axes: Any, panel: Panel, *, first: bool) -> None:
    axes.set_title(_text(html.escape(panel.title)), fontsize=10, color=INK)
    axes.grid(color="#e3e6ea", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    x, y = panel.layout["xaxis"], panel.layout["yaxis"]
    if "categoryarray" in y:  # the first trace may lack some
        axes.yaxis.update_units([_text(name) for name in y["categoryarray"]])
    for trace in panel.data:
        _trace(axes, trace)
    axes.set_xlabel(_text(x["title"]["text"]), fontsize=9)
    if first:
        axes.set_ylabel(_text(y["title"]["text"]), fontsize=9)
    log = x.get("type") == "log"
    if log:
        axes.set_xscale("log")
        axes.minorticks_off()
    if "tickvals" in x:
        axes.set_xlim(*(10**end if log else end for end in x["range"]))
        axes.set_xticks(x["tickvals"], [_text(text) for text in x["ticktext"]])
    if "range" in y:
        axes.set_ylim(*y["range"])
    if y.get("autorange") == "reversed" and not axes.yaxis_inverted():
        axes.invert_yaxis()
    axes.tick_params(labelsize=8)


def _trace(axes: Any, trace: Trace) -> None:
    line = trace.get("line", {})
    marker = trace.get("marker", {})
    colour = line.get("color") or marker["color"]
    symbol = marker.get("symbol", "circle")
    axes.errorbar(
        [_text(x) if isinstance(x, str) else x for x in trace["x"]],
        [_text(y) if isinstance(y, str) else y for y in trace["y"]],
        xerr=_errors(trace.get("error_x")),
        yerr=_errors(trace.get("error_y")),
        color=colour,
        marker=MARKERS.get(symbol, "o"),
        markerfacecolor="white" if symbol.endswith("-open") else colour,
        markersize=3.5 if "opacity" in marker else 5,
        alpha=marker.get("opacity"),
        linestyle=LINES[line.get("dash", "solid")] if "lines" in trace["mode"] else "",
        linewidth=1.6,
        elinewidth=1.0,
        capsize=2.5,
        clip_on=trace.get("cliponaxis", True),
    )


def _errors(bars: dict[str, Any] | None) -> list[float] | None:
    """The lengths of error bars; NaN, so that no bar is drawn, where an error is unknown."""
    if bars is None:
        return None
    return [math.nan if length is None else length for length in bars["array"]]


def _legend(figure: "Figure", drawn: Drawn) -> None:
    from matplotlib.lines import Line2D

    if len(drawn.legend) < 2:
        return
    handles = [
        Line2D(
            [], [], color=key.colour, label=_text(key.name), marker=MARKERS.get(key.symbol, ""),
            linestyle=LINES[key.dash] if key.dash else "",
        )
        for key in drawn.legend
    ]  # fmt: skip
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(
            handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
        )
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _text(text: str) -> str:
    """Convert a text of plotly to matplotlib, which interprets dollars as mathematics."""
    text = html.unescape(text.replace("<br>", "\n")).replace("$", r"\$")
    return text.encode(errors="replace").decode()
