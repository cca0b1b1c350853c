"""Colours for colour-blind readers, on white and on black."""

from collections.abc import Sequence
from typing import Any

from hyla.attention.variants import KINDS
from hyla.tasks.sraven import RULES

# After Okabe and Ito (2008); their contrast with both backgrounds is about 3 or more.
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#B5598F", "#A67C00", "#3D9BD1", "#8A6FD1", "#7A8088",
)  # fmt: skip
GREY = "#858b94"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
# Kinds of attention, by name and by title, and the rules of SRAVEN keep their colours.
NUMBERS = {name: i for i, name in enumerate(KINDS)} | {
    kind.title: i for i, kind in enumerate(KINDS.values())
}
NUMBERS |= {rule: i for i, rule in enumerate(RULES)}


def number_of(value: Any, values: Sequence[Any]) -> int:
    """The fixed number of a kind of attention or a rule; the position of any other value.

    >>> number_of("hyla", ["hyla"]), number_of("HYLA", ["HYLA"]), number_of(8, [4, 8])
    (2, 2, 1)
    """
    return NUMBERS[value] if value in NUMBERS else list(values).index(value)


def style(value: Any, values: Sequence[Any]) -> dict[str, str]:
    """Colour, dash and symbol of a value among others.

    Values without a fixed number use the first three colours last: they belong to kinds.
    """
    i = number_of(value, values)
    palette = PALETTE if value in NUMBERS else PALETTE[3:] + PALETTE[:3]
    turn = i // len(palette)  # a repeated colour gets another symbol and dash
    return {
        "colour": palette[i % len(palette)],
        "dash": DASHES[turn % len(DASHES)],
        "symbol": SYMBOLS[(i + turn) % len(SYMBOLS)],
    }


def many(count: int) -> list[str]:
    """Colours for many classes, spread over all hues."""
    return [f"hsl({(i * 137.508) % 360:.0f},60%,{45 + 12 * (i % 3)}%)" for i in range(count)]
