"""What all drawings share: colours, ink, and how a figure becomes a file."""

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Dark enough for white paper, and distinguishable by the colour-blind (Okabe and Ito, 2008).
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#AA4499", "#B8860B", "#222222", "#56B4E9", "#882255"
)  # fmt: skip
INK, FAINT = "#222222", "#BBBBBB"
FORMATS = ("png", "svg")


def save(figure: "Figure", handle: IO[bytes], file_format: str) -> None:
    """Write a figure as "svg" or "png", with the same bytes for the same figure."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "hyla"}):
        metadata = {"Date": None} if file_format == "svg" else None
        figure.savefig(handle, format=file_format, dpi=150, metadata=metadata)
