"""Draw SRAVEN instances with a shape for each symbol."""

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from hyla.drawing import COLOURS, FAINT, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPES = ("o", "s", "^", "D", "*", "P", "v", "X")
FILLS = ("full", "none", "left", "bottom", "right", "top")
MAX_SHAPES = len(SHAPES) * len(FILLS)
SIZES = {"*": 1.35, "D": 0.85, "P": 1.15, "X": 1.1}  # to look equally large


def draw(panels: Sequence[Sequence[Sequence[int]]], values: int, title: str = "") -> "Figure":
    """Draw the matrix with a cell per slot, a shape per symbol and a ? for the last panel.

    panels: 3 rows of 3 panels of K symbols from 0 to values - 1; the last panel is ignored.
    With more than 48 symbols (the number of shapes and fills), symbols are drawn as numbers.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    features = len(panels[0][0])
    columns = math.ceil(math.sqrt(features))
    rows = math.ceil(features / columns)
    legend_rows = math.ceil(values / len(SHAPES)) if values <= MAX_SHAPES else 0
    # One unit is a panel with its margin; the title is above the matrix, the legend below.
    x_range, y_range = (-0.15, 3.15), (-0.3, 3.1 + 0.16 * legend_rows)
    width = 6.6
    height = width * (y_range[1] - y_range[0]) / (x_range[1] - x_range[0])
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=x_range, ylim=y_range[::-1])
    axes.axis("off")
    axes.text(1.5, -0.14, title, ha="center", va="center", color=INK, fontsize=11)
    for row, column in product(range(3), range(3)):
        corner = (column + 0.05, row + 0.05)
        asked = row == column == 2
        box = FancyBboxPatch(
            corner, 0.9, 0.9, boxstyle="round,pad=0,rounding_size=0.04",
            facecolor="#F4F4F4" if asked else "white", edgecolor=INK, linewidth=1.2,
        )  # fmt: skip
        axes.add_patch(box)
        if asked:
            axes.text(2.5, 2.5, "?", ha="center", va="center", color=INK, fontsize=64)
        else:
            _draw_panel(axes, panels[row][column], values, corner, (rows, columns))
    for value in range(values if legend_rows else 0):
        line, place = divmod(value, len(SHAPES))
        x, y = 1.5 + (place - (min(values, len(SHAPES)) - 1) / 2) * 0.375, 3.1 + 0.16 * line
        draw_symbol(axes, value, values, (x - 0.045, y), 11)
        axes.text(x + 0.045, y, str(value), ha="left", va="center", color=INK, fontsize=10)
    return figure


def _draw_panel(
    axes: Any,
    panel: Sequence[int],
    values: int,
    corner: tuple[float, float],
    cells: tuple[int, int],
) -> None:
    """Draw the symbols of a panel in reading order, with faint lines between the cells."""
    rows, columns = cells
    left, top = corner
    step_x, step_y = 0.9 / columns, 0.9 / rows
    size = 68 / max(columns, rows)  # in points; a panel is 130 points wide
    for line in range(1, columns):
        x = left + line * step_x
        axes.plot((x, x), (top + 0.04, top + 0.86), color=FAINT, linewidth=0.6)
    for line in range(1, rows):
        y = top + line * step_y
        axes.plot((left + 0.04, left + 0.86), (y, y), color=FAINT, linewidth=0.6)
    for slot, value in enumerate(panel):
        row, column = divmod(slot, columns)
        place = (left + (column + 0.5) * step_x, top + (row + 0.5) * step_y)
        draw_symbol(axes, value, values, place, size)


def draw_symbol(
    axes: Any, value: int, values: int, place: tuple[float, float], size: float
) -> None:
    """Draw one symbol: its shape and colour, or a number if there are too many symbols."""
    if values > MAX_SHAPES:
        axes.text(*place, str(value), ha="center", va="center", color=INK, fontsize=size * 0.6)
        return
    fill, kind = divmod(value, len(SHAPES))
    shape, colour = SHAPES[kind], COLOURS[kind]
    axes.plot(
        *place, marker=shape, fillstyle=FILLS[fill], color=colour, markerfacecoloralt="white",
        markersize=size * SIZES.get(shape, 1.0), markeredgecolor=colour,
        markeredgewidth=max(1.0, size / 14),
    )  # fmt: skip
