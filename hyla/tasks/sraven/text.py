"""SRAVEN instances as text: validated JSON input and prompts for language models."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hyla.errors import bad_value, unknown_name
from hyla.tasks.sraven import SravenConfig

Panel = list[int]

RULES_IN_WORDS = (
    "it stays the same, it changes by +1, +2, -1 or -2 from panel to panel, the third is the sum or"
    " the difference (first minus second) of the first two, or the same three different numbers"
    " appear in every row, in any order"
)


@dataclass(frozen=True)
class Instance:
    """An instance read from JSON: panels `[1, 3, 3, K]`, and the last panel if it was given."""

    panels: Tensor
    config: SravenConfig
    given: Panel | None


def panel_text(panel: Sequence[int]) -> str:
    """Format the symbols of a panel on one line.

    >>> panel_text([3, 0, 7])
    '3 0 7'
    """
    return " ".join(map(str, panel))


def prompt(panels: Sequence[Sequence[Sequence[int]]], config: SravenConfig) -> str:
    """Format an instance as a prompt for a language model, without the last panel.

    >>> row = [[1], [2], [3]]
    >>> prompt([row, row, row], SravenConfig(features=1)).splitlines()[-3:]
    ['1 | 2 | 3', '1 | 2 | 3', '1 | 2 | ?']
    """
    lines = [" | ".join(map(panel_text, row)) for row in panels]
    lines[2] = " | ".join([*map(panel_text, panels[2][:2]), "?"])
    count = "1 number" if config.features == 1 else f"{config.features} numbers"
    many = config.features > 1
    places = "It follows one rule."
    if many and not config.permute:
        places = "Each place of a panel follows one rule, and the rules of the places come in the"
        places += " order in which they are listed here; a rule may come more than once."
    if many and config.permute:
        places = "A number that follows one rule has its own place in each of the three columns,"
        places += " which may differ between columns but not between rows."
    return (
        f"Complete a 3 x 3 matrix of panels. Each panel has {count} from 0 to {config.values - 1};"
        f" arithmetic is modulo {config.values}. From left to right in a row, each number follows a"
        f" rule, the same in all three rows: {RULES_IN_WORDS}. {places} Answer with the {count} of"
        " the panel marked ? and nothing else.\n\n" + "\n".join(lines)
    )


def read_instance(
    text: str | bytes,
    *,
    values: int | None = None,
    permute: bool | None = None,
    fields: Sequence[str] = ("panels", "values", "permute"),
) -> Instance:
    """Read one instance from JSON; an error names the wrong row, column and feature.

    values, permute: override those of the instance. fields: the allowed field names; allowed fields
    that are not needed here are ignored, unknown ones rejected.

    >>> row = "[[1], [2], [3]]"
    >>> read_instance(f'{{"values": 8, "panels": [{row}, {row}, [[1], [9]]]}}')
    Traceback (most recent call last):
    ...
    ValueError: row 2, column 1, feature 0: expected a symbol from 0 to 7, got 9.
    """
    entry = _json_object(text)
    for name in entry:
        if name not in fields:
            raise unknown_name("instance", name, fields)
    if "panels" not in entry:
        names = ", ".join(map(repr, entry)) or "no fields"
        raise bad_value("instance", names, "a field 'panels' with 3 rows of 3 panels")
    settings = {"values": values, "permute": permute}
    settings = {name: entry.get(name) if now is None else now for name, now in settings.items()}
    if settings["values"] is None:
        raise bad_value("values", "nothing", "the number of symbols, in the JSON or as option")
    rows = _rows(entry["panels"])
    features = entry.get("features")
    if type(features) is not int:
        lengths = [len(panel) for row in rows for panel in row if isinstance(panel, list)]
        features = Counter(lengths).most_common(1)[0][0] if lengths else 1
    given_settings = {name: value for name, value in settings.items() if value is not None}
    config = SravenConfig.from_dict({"features": features, **given_settings})
    given, answer = rows[2].pop() if rows[2][2:] else None, entry.get("answer")
    if None not in (given, answer) and given != answer:
        raise bad_value(
            "answer", str(answer)[:40], f"the same as the last panel, {str(given)[:40]}"
        )
    given = answer if given is None else given
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            _check_panel(panel, config, i, j)
    if given is not None:
        _check_panel(given, config, 2, 2)
    last = [0] * config.features if given is None else given
    return Instance(torch.tensor([[*rows[:2], [*rows[2], last]]]), config, given)


def _json_object(text: str | bytes) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except json.JSONDecodeError as error:
        if not error.doc.strip():
            raise bad_value("instance", "nothing", "a JSON object") from None
        where = f"{error.msg} at line {error.lineno}, column {error.colno}"
        if error.msg == "Extra data":
            where += " (one at a time: `head -n 1 FILE | hyla sraven solve -`)"
        raise bad_value("instance", where, "one JSON object") from None
    except (UnicodeDecodeError, RecursionError):
        raise bad_value("instance", "something that is not JSON", "one JSON object") from None
    if not isinstance(entry, dict):
        raise bad_value("instance", _shown(entry), "a JSON object with a field 'panels'")
    return entry


def _rows(panels: Any) -> list[list[Any]]:
    """Check the shape of the panels: three rows of three, of which the last may have two."""
    if not isinstance(panels, list) or len(panels) != 3:
        raise bad_value("panels", _shown(panels, "rows"), "3 rows")
    for i, row in enumerate(panels):
        if not isinstance(row, list) or len(row) not in ((2, 3) if i == 2 else (3,)):
            expected = (
                "3 panels, of which the last may be null or omitted" if i == 2 else "3 panels"
            )
            raise bad_value(f"row {i}", _shown(row, "panels"), expected)
    return [list(row) for row in panels]


def _check_panel(panel: Any, config: SravenConfig, row: int, column: int) -> None:
    where = f"row {row}, column {column}"
    if not isinstance(panel, list) or len(panel) != config.features:
        expected = "1 symbol" if config.features == 1 else f"{config.features} symbols"
        raise bad_value(where, _shown(panel, "symbols"), expected)
    for feature, symbol in enumerate(panel):
        if type(symbol) is not int or not 0 <= symbol < config.values:
            expected = f"a symbol from 0 to {config.values - 1}"
            raise bad_value(f"{where}, feature {feature}", _shown(symbol), expected)


def _shown(thing: Any, items: str = "items") -> str:
    """Describe a value briefly: the length of a list, or the beginning of its JSON."""
    if isinstance(thing, list):
        return f"{len(thing)} {items}" if items == "symbols" or thing else f"no {items}"
    text = json.dumps(thing)
    return text if len(text) <= 40 else f"{text[:40]}..."
