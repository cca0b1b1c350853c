"""From a declared figure and rows to what is on the page."""

from collections.abc import Sequence

from hyla.experiments.spec import Figure
from hyla.report.adapter import Flat
from hyla.report.bars import draw_bars, draw_rules
from hyla.report.drawn import Drawn
from hyla.report.lines import draw_lines
from hyla.report.maps import draw_matrix, draw_scatter
from hyla.report.tables import draw_measures, draw_table

DRAWINGS = {
    "table": draw_table,
    "lines": draw_lines,
    "rules": draw_rules,
    "scatter": draw_scatter,
    "measures": draw_measures,
    "bars": draw_bars,
    "matrix": draw_matrix,
}


def draw(figure: Figure, rows: Sequence[Flat], axes: Sequence[str]) -> Drawn:
    """Draw a declared figure. axes: those of the experiment, which tell its rows apart."""
    there = [row for row in rows if figure.where.items() <= row.items()]
    return DRAWINGS[figure.kind](figure, there, axes)
