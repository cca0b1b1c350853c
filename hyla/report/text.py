"""Values as text, escaped for HTML, for a figure or for a script."""

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from hyla.experiments.spec import SEEDS
from hyla.files import without_nan

LONGEST = 300  # characters of one value in a figure
MILLION = 1_000_000
# Readable names of axes; "held out" is a measure.
WORDS = {
    "millions": "millions of instances",
    "held_out": "fraction held out",
}


def escape(value: object) -> str:
    """Text for HTML, inside an element or a quoted attribute.

    >>> escape('<b a="1">')
    '&lt;b a=&quot;1&quot;&gt;'
    """
    return html.escape(str(value), quote=True)


def plain(value: object) -> str:
    """Escape text for a figure: plotly interprets some HTML in labels and hovers.

    >>> plain("<a href='x'>R2 & more</a>")
    "&lt;a href='x'&gt;R2 &amp; more&lt;/a&gt;"
    """
    text = " ".join(str(value).split())
    text = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    return html.escape(text, quote=False)


def hover(lines: Iterable[object]) -> str:
    """Lines for the hover of a figure."""
    return "<br>".join(map(plain, lines))


def label(value: object, width: int = 22) -> str:
    """A label of a figure, broken into lines.

    >>> label("Linear attention + RMSHead", 16)
    'Linear attention<br>+ RMSHead'
    """
    return "<br>".join(plain(part) for part in _wrapped(str(value), width))


def _wrapped(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for word in text[:LONGEST].split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def script_json(value: Any) -> str:
    """JSON that cannot close the script element around it.

    >>> script_json("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(without_nan(value), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def number(value: Any) -> float | None:
    """The value if it is a finite number.

    >>> number(1), number("1"), number(float("nan")), number(True)
    (1.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    found = float(value)
    return found if math.isfinite(found) else None


def at(thing: Any, *path: Any) -> Any:
    """The value at a path of keys; None if it is missing.

    >>> at({"a": {"b": 1}}, "a", "b"), at({"a": 2}, "a", "b")
    (1, None)
    """
    for key in path:
        if not isinstance(thing, dict):
            return None
        thing = thing.get(key)
    return thing


def shown(value: Any) -> str:
    """The value of an axis or a setting.

    >>> shown(20_000_000), shown(51_200), shown(0.0003), shown("hyla")
    ('20 M', '51,200', '0.0003', 'hyla')
    """
    found = number(value)
    if found is None:
        return "none" if value is None else str(value)
    if abs(found) >= 1000 * MILLION:
        return f"{found / MILLION / 1000:,.3f} billion" if found < 1e15 else f"{found:.3g}"
    if abs(found) >= MILLION:
        return f"{found / MILLION:,.10g} M"
    return f"{value:,}" if isinstance(value, int) else f"{found:g}"


def rounded(value: Any) -> str:
    """A measured number with about three significant digits.

    >>> rounded(58.042), rounded(0.01234), rounded(-1150.2), rounded(None)
    ('58.0', '0.0123', '-1,150', '-')
    """
    found = number(value)
    if found is None:
        return "-"
    size = abs(found)
    if size >= 1000:
        return f"{found:,.0f}"
    if size >= 10:
        return f"{found:.1f}"
    return f"{found:.2f}" if size >= 0.1 or not size else f"{found:.3g}"


def with_error(mean: Any, error: Any) -> str:
    """A mean and its standard error with the same number of decimals.

    >>> with_error(58.04, 2.0), with_error(58.04, None), with_error(None, None)
    ('58.0 ± 2.0', '58.0', '-')
    """
    found, spread = number(mean), number(error)
    if found is None or spread is None:
        return rounded(mean)
    text = rounded(mean)
    if "e" in text:
        return f"{text} ± {rounded(error)}"
    places = len(text.partition(".")[2])
    return f"{text} ± {spread:,.{places}f}"


def of_seeds(values: Any) -> str:
    """A remark where a mean is not over the usual number of seeds, or some diverged.

    >>> of_seeds({"per_seed": [57.0, None, 59.0]}), of_seeds({"per_seed": [57.0]})
    (' (2 of 3 seeds)', ' (1 seed)')
    """
    seeds = at(values, "per_seed")
    if not seeds or (None not in seeds and len(seeds) >= SEEDS):
        return ""
    if None not in seeds:
        return f" ({len(seeds)} seed{'s' * (len(seeds) > 1)})"
    return f" ({len(seeds) - seeds.count(None)} of {len(seeds)} seeds)"


def duration(seconds: float) -> str:
    """A readable time.

    >>> duration(42), duration(1500), duration(7000), duration(400_000)
    ('42 s', '25 min', '1.9 h', '4.6 days')
    """
    for limit, unit, name in ((120, 1, "s"), (7200 * 0.9, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.{0 if unit < 3600 else 1}f} {name}"
    return f"{seconds / 86_400:.1f} days"


def places(axes: Sequence[str], row: dict[str, Any]) -> str:
    """The values of a row's axes.

    >>> places(("attention", "heads"), {"attention": "hyla", "heads": 4, "mean": 1.0})
    'hyla, heads 4'
    """
    found = [(axis, row[axis]) for axis in axes if row.get(axis) not in (None, "")]
    return ", ".join(
        shown(value) if isinstance(value, str) else f"{spoken(axis)} {shown(value)}"
        for axis, value in found
    )


def spoken(name: str) -> str:
    """The name of an axis or field in words.

    >>> spoken("held_out"), spoken("millions")
    ('fraction held out', 'millions of instances')
    """
    return WORDS.get(name, name.replace("_", " "))
