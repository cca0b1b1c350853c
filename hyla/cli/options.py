"""Options of the command line made from configuration classes, which alone state them."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any

from tyro.conf import arg

from hyla.config import Config
from hyla.errors import bad_value

MANY = 6  # choices, from which on the help lists them
METAVARS: dict[Any, str] = {int: "INT", float: "FLOAT", str: "STR"}


def options_of(
    default: Any,
    *,
    hidden: Collection[str] = (),
    metavars: Mapping[str, str] | None = None,
    allowed: Mapping[str, Collection[str]] | None = None,
    title: str = "",
) -> type:
    """Make a group of options: a plain dataclass with the fields of a configuration as defaults.

    Nothing is checked when it is made, so that errors are those of the configuration. The help of a
    field is what the docstring of its class says after `name:`. allowed: values of fields, beside
    the `choices` of the class.
    """
    texts, names = field_texts(type(default)), metavars or {}
    choices = {**type(default).choices, **(allowed or {})}
    groups = []
    for one in fields(default):
        if one.name in hidden:
            continue
        value = getattr(default, one.name)
        kind: Any = str if hasattr(one.type, "__set__") else one.type  # a descriptor of a name
        known, text = choices.get(one.name, ()), texts.get(one.name, "")
        metavar = "{" + ",".join(known) + "}" if 0 < len(known) < MANY else METAVARS.get(kind)
        text += f" One of {', '.join(known)}." if len(known) >= MANY else ""
        about = arg(help=text, metavar=names.get(one.name, metavar))
        groups.append((one.name, Annotated[kind, about], field(default=value)))
    group = make_dataclass(type(default).__name__, groups, frozen=True)
    group.__doc__ = title
    return group


def field_texts(config: type[Config]) -> dict[str, str]:
    """Return what the docstring of a configuration says about each field.

    >>> from hyla.tasks.sraven import SravenConfig
    >>> field_texts(SravenConfig)["values"]
    'F, the number of different symbols.'
    """
    names = [one.name for one in fields(config)]
    text = " ".join((config.__doc__ or "").split(">>>")[0].split())
    pattern = r"(?:^|(?<=[.;)] ))((?:" + "|".join(names) + r")(?:, \w+)*): "
    found: dict[str, str] = {}
    parts = re.split(pattern, text)
    for given, about in zip(parts[1::2], parts[2::2], strict=True):
        text = about.strip()
        for name in given.split(", "):
            found[name] = text[:1].upper() + text[1:]
    return found


def different(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return a list of the command line: at least one value, none of them twice."""
    twice = next((value for value in values if values.count(value) > 1), None)
    if not values or twice is not None:
        shown = "nothing" if not values else f"{twice} twice"
        raise bad_value(name, shown, "one or more different values")
    return tuple(values)
