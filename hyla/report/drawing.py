"""What all drawings share: colours, panels, legends, and SVG for a page."""

import html
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import IO, Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from PIL import Image

from hyla.attention.variants import KINDS
from hyla.tasks.base import NAMED_VALUES

# After Okabe and Ito (2008): colour-blind safe, on white and on black.
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#B5598F", "#A67C00", "#3D9BD1", "#8A6FD1", "#7A8088",
)  # fmt: skip
MARKERS, DASHES = "osD^vPX*", ("-", "--", ":", "-.")
OURS, PUBLISHED, GREY = PALETTE[0], PALETTE[1], "#858b94"
INK = "#010203"  # becomes the colour of the page's text
FIXED = NAMED_VALUES | {name: i for i, name in enumerate(KINDS)}
FIXED |= {kind.title: i for i, kind in enumerate(KINDS.values())}
WIDTH, HEIGHT = 3.6, 2.7  # of a panel, in inches
COLUMNS = 3
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "image.cmap": "viridis", "text.parse_math": False, "font.size": 9,
    "font.family": "sans-serif", "axes.titlesize": 9, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), INK
    ),
}  # fmt: skip
# What matplotlib writes into an SVG and the page does not need.
USELESS = re.compile(
    r' id="image[^"]*"|(?<=<g) id="[^"]*"| font-family: [^;]*;| clip-path="[^"]*"'
    r'| transform="rotate\(-0 [^"]*"'
)


def short(text: str, longest: int = 45) -> str:
    """A label that leaves room for the drawing."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def look_of(value: Any, values: Sequence[Any]) -> Any:
    """Colour, marker and dash of a value; kinds and rules keep theirs in every figure."""
    i = FIXED[value] if value in FIXED else values.index(value)
    palette = PALETTE if value in FIXED else PALETTE[3:] + PALETTE[:3]
    turn = i // len(palette)  # a repeated colour gets another marker and dash
    return {
        "color": palette[i % len(palette)],
        "marker": MARKERS[(i + turn) % len(MARKERS)],
        "linestyle": DASHES[turn % len(DASHES)],
    }


def limits(values: Sequence[float], *, percent: bool) -> tuple[float, float]:
    """The range of y. It includes 0; percentages above 60 extend it to 100."""
    top, bottom = max(values, default=1.0), min(values, default=0.0)
    if percent and bottom >= 0 and 60 < top <= 100:
        return 0.0, 103.0
    low = min(0.0, bottom) if percent or bottom > 0 else bottom
    room = 0.08 * ((top - low) or 1.0)
    return low - (room if low < 0 else 0.0), top + room


def panels_for(
    count: int, width: float = WIDTH, height: float = HEIGHT, columns: int = COLUMNS
) -> tuple[Drawing, list[Axes]]:
    """Make a drawing of so many panels, each of this size in inches."""
    across = min(columns, count)
    down = math.ceil(count / across)
    drawing = Drawing(figsize=(width * across, height * down), layout="constrained")
    axes = drawing.subplots(down, across, squeeze=False).ravel().tolist()
    for unused in axes[count:]:
        unused.set_axis_off()
    return drawing, axes[:count]


def add_legend(drawing: Drawing, axes: Axes) -> None:
    """Put the labels of these axes below all panels, if there are several."""
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        columns = min(len(handles), max(1, int(drawing.get_figwidth() / 1.3)))
        drawing.legend(
            handles, labels, loc="outside lower center", ncols=columns, fontsize=8,
            markerscale=1 if len(axes.lines) else 2.5,
        )  # fmt: skip


def save(
    drawing: Drawing, handle: IO[bytes], file_format: str, salt: str = "hyla", **options: Any
) -> None:
    """Write a drawing as "svg" or "png", with the same bytes every time. salt: makes ids unique."""
    metadata = {"Date": None} if file_format == "svg" else None
    with rc_context(STYLE | {"svg.hashsalt": salt}):
        drawing.savefig(handle, format=file_format, metadata=metadata, **{"dpi": 150} | options)


def to_svg(drawing: Drawing, alt: str) -> str:
    """An element that takes the page's colour of text; ids are unique in the page."""
    memory = BytesIO()
    save(drawing, memory, "svg", alt, dpi=72, transparent=True)
    text = memory.getvalue().decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    text = USELESS.sub("", text)
    text = re.sub(r"(?<=data:image/png;base64,)[^\"]+", _with_fewer_colours, text)
    text = re.sub(r'="[^"]*"', _shorter, text)
    width, height = (round(96 * size) for size in drawing.get_size_inches())
    box = f'viewBox="0 0 {width * 0.75:g} {height * 0.75:g}" width="{width}"'
    label = f'role="img" aria-label="{html.escape(alt)}"'
    linked = 'xmlns:xlink="http://www.w3.org/1999/xlink"'
    text = re.sub(r"<svg [^>]*>", lambda _: f"<svg {label} {box} {linked}>", text, count=1)
    return re.sub(r"\n\s*", "\n", text.replace(INK, "currentColor"))


def _with_fewer_colours(image: re.Match[str]) -> str:
    """A PNG of 128 colours takes half."""
    memory = BytesIO()
    with Image.open(BytesIO(b64decode(image.group()))) as original:
        fewer = original.convert("RGBA").quantize(128, Image.Quantize.FASTOCTREE)
        fewer.save(memory, "png", optimize=True)
    return b64encode(memory.getvalue()).decode()


def _shorter(attribute: re.Match[str]) -> str:
    """Two decimals of a coordinate are enough."""
    return re.sub(r"(\.\d\d)\d+", r"\1", attribute.group())
