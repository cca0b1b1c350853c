"""The documentation site: `make docs`. Warnings are errors; nothing is fetched."""

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

import hyla

project = "hyla"
author = "The hyla developers"
release = hyla.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_timeout = 60
nb_execution_raise_on_error = True
nb_execution_excludepatterns = ["conf.py"]
exclude_patterns = ["_build", "conf.py", "jupyter_execute"]
suppress_warnings = ["mystnb.unknown_mime_type"]
html_theme = "furo"
html_title = "hyla"
html_static_path: list[str] = []
html_math_renderer = "mathml"  # browsers draw it themselves, without a network
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"


ITEM = re.compile(r"[a-z_]+(, [a-z_ ]+)*( \([^)]*\))?: ")


def as_rst(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Our docstrings say `name: text`, indented where it goes on, and have tables of Markdown."""
    found: list[str] = []
    before = ""
    for line in lines:
        text, inside = line.strip(), before in ("item", "table")
        if ITEM.match(line):
            found, before = [*found, *([""] if before != "item" else []), f"- {text}"], "item"
        elif before == "item" and line.startswith(" "):
            found.append(f"  {text}")
        elif text.startswith("|"):
            found += ["", "::", "", f"    {text}"] if before != "table" else [f"    {text}"]
            before = "table"
        elif before == "text" and line.startswith(" ") and not found[-1].startswith(" "):
            found.append(text)
        else:
            found, before = [*found, *([""] if inside and text else []), line], "text"
    lines[:] = found


def setup(app: Any) -> None:
    """Formulas as MathML, docstrings as reStructuredText."""
    app.connect("autodoc-process-docstring", as_rst)

    def inline(writer: Any, node: nodes.math) -> None:
        writer.body.append(convert(node.astext()))
        raise nodes.SkipNode

    def block(writer: Any, node: nodes.math_block) -> None:
        writer.body.append(convert(node.astext(), display="block"))
        raise nodes.SkipNode

    app.add_html_math_renderer("mathml", (inline, None), (block, None))
