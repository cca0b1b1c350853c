"""Draw embedded codes, coloured by the labels of their instances."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hyla.analysis.codes import Array, Codes
from hyla.drawing import COLOURS, INK
from hyla.errors import bad_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 3.6  # of a panel, in inches
MAX_LEGEND = 16  # classes; more are drawn without a legend


def draw_embedding(points: Array, codes: Codes, labels: Sequence[str], title: str = "") -> "Figure":
    """Draw embedded codes `[instances, 2]`, one panel per label.

    Save it with `hyla.drawing.save`.
    """
    from matplotlib.figure import Figure

    if points.shape != (codes.instances, 2):
        raise bad_value("points", list(points.shape), f"[{codes.instances}, 2]")
    figure = Figure(figsize=(SIDE * len(labels), SIDE + 0.9), facecolor="white")
    figure.suptitle(title, color=INK, fontsize=11)
    grid = figure.subplots(1, len(labels), squeeze=False)
    for axes, label in zip(grid[0], labels, strict=True):
        _draw_label(figure, axes, points, codes, label)
    figure.tight_layout()
    return figure


def _draw_label(figure: "Figure", axes: Any, points: Array, codes: Codes, label: str) -> None:
    axes.set(xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title(label, color=INK, fontsize=10)
    axes.spines[:].set_visible(False)
    style: dict[str, Any] = {"s": 5, "linewidths": 0}
    values = codes.label(label)
    if values.ndim > 1:
        raise bad_value(
            "label", f"{label!r} of {values.shape[1]} columns", "one of a single column"
        )
    if values.dtype.kind == "f":
        drawn = axes.scatter(*points.T, c=values, cmap="viridis", **style)
        figure.colorbar(drawn, ax=axes, orientation="horizontal", shrink=0.8, pad=0.02)
        return
    names, classes = codes.classes(label)
    there = np.unique(classes)
    if len(there) > MAX_LEGEND:
        axes.scatter(*points.T, c=classes, cmap="turbo", **style)
        return
    for c in there:
        at = points[classes == c]
        colour = COLOURS[c % len(COLOURS)] if len(names) <= len(COLOURS) else _of_many(c, names)
        axes.scatter(*at.T, color=colour, label=names[c], **style)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2 if label == "rule" else 4,
        fontsize=7, markerscale=2, frameon=False, handletextpad=0.1,
    )  # fmt: skip


def _of_many(number: int, names: Sequence[str]) -> Any:
    from matplotlib import colormaps

    return colormaps["turbo"]((number + 0.5) / len(names))
