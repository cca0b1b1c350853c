"""Configurations: frozen dataclasses, checked on construction, JSON both ways."""

import json
from collections.abc import Collection
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Self

from hyla.errors import bad_value, unknown_name


@dataclass(frozen=True)
class Config:
    """What all configurations share: JSON both ways, and an error for an unknown field.

    choices: the allowed values of fields that are names. Docstrings describe each field after its
    name and a colon; commands show this as help.
    """

    choices: ClassVar[dict[str, Collection[str]]] = {}

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain JSON values, defaults written out."""
        return asdict(self)

    def to_json(self) -> str:
        """Every field, defaults written out."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The configuration with these fields; an unknown one is refused with the nearest name."""
        names = [field.name for field in fields(cls)]
        for name in values:
            if name not in names:
                raise unknown_name(cls.__name__, name, names)
        for field in fields(cls):
            if field.default is MISSING and field.name not in values:
                raise bad_value(f"{cls.__name__}.{field.name}", "nothing", "a value")
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`; a field that is not given takes its default."""
        values = json.loads(text)
        if not isinstance(values, dict):
            raise bad_value(cls.__name__, type(values).__name__, "a JSON object")
        return cls.from_dict(values)

    def _check_types(self) -> None:
        """Refuses a field whose value is not of the plain type that the field is declared with."""
        for field in fields(self):
            value, wanted = getattr(self, field.name), field.type
            if wanted is float and type(value) is int:
                continue
            # A descriptor has checked the value itself.
            if not isinstance(wanted, type) or hasattr(wanted, "__set__") or type(value) is wanted:
                continue
            if not (issubclass(wanted, Config) and isinstance(value, wanted)):  # a task's own class
                raise bad_value(field.name, repr(value), f"a value of type {wanted.__name__}")

    def _check_at_least(self, minimum: int, *names: str) -> None:
        for name in names:
            if getattr(self, name) < minimum:
                expected = f"a whole number of at least {minimum}"
                raise bad_value(name, getattr(self, name), expected)

    def _check_split_seed(self) -> None:
        """Of a task: -1, or a seed of 63 bits."""
        split_seed = getattr(self, "split_seed", -1)
        if not -1 <= split_seed < 2**63:
            raise bad_value("split_seed", split_seed, "-1, or a seed from 0 to 2^63 - 1")

    def _check_choices(self) -> None:
        for name, allowed in self.choices.items():
            if getattr(self, name) not in allowed:
                raise unknown_name(name, getattr(self, name), allowed)
