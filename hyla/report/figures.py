"""From a declared figure and rows to what is on the page."""

from collections.abc import Sequence

from hyla.experiments.declare import Figure, Row
from hyla.report.bars import draw_bars, draw_rules
from hyla.report.drawn import Drawn, rows_of
from hyla.report.lines import draw_curves, draw_lines
from hyla.report.maps import draw_matrix, draw_scatter
from hyla.report.tables import draw_measures, draw_table

DRAWINGS = {
    "table": draw_table,
    "lines": draw_lines,
    "rules": draw_rules,
    "curves": draw_curves,
    "measures": draw_measures,
    "bars": draw_bars,
    "matrix": draw_matrix,
}


def draw(figure: Figure, rows: Sequence[Row], axes: Sequence[str]) -> list[Drawn]:
    """A declared figure: one drawing, or one for each colouring of a map.

    axes: those of the experiment, which tell rows apart. A kind that is not known gives a drawing
    without plots that says so.
    """
    there = rows_of(figure, rows)
    if figure.kind == "scatter":
        return list(draw_scatter(figure, there, axes))
    if figure.kind not in DRAWINGS:
        return [Drawn(figure.title, skipped=[f"cannot draw a figure of the kind {figure.kind!r}"])]
    return [DRAWINGS[figure.kind](figure, there, axes)]
