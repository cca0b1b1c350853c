"""Files of records: one JSON object a line, validated when it is read."""

import json
import os
import time
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hyla.errors import bad_value, unknown_name
from hyla.files import lock, new_file, to_json

SCHEMA = 1  # of all records; a newer one is refused
Record = TypeVar("Record")


def decode(kind: Any, value: Any, place: str) -> Any:
    """Convert a JSON value to the type `kind`: plain types, dataclasses, tuples, dictionaries.

    place: the name of the value in errors.

    >>> decode(tuple[int, ...], [1, 2], "seeds"), decode(float | None, 1, "loss")
    ((1, 2), 1.0)
    >>> decode(dict[str, float], {"r2": "x"}, "measures")
    Traceback (most recent call last):
    ValueError: measures.r2: expected a float, got 'x'.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return None
        (kind,) = (one for one in arguments if one is not types.NoneType)
        return decode(kind, value, place)
    if is_dataclass(kind) and isinstance(value, dict):
        return _decode_dataclass(kind, value, place)
    if origin is tuple and isinstance(value, list):
        return tuple(decode(arguments[0], one, f"{place}[{i}]") for i, one in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {name: decode(arguments[1], one, f"{place}.{name}") for name, one in value.items()}
    if kind is Any or (isinstance(kind, type) and type(value) is kind):
        return value
    if kind is float and type(value) is int:
        return float(value)
    wanted = getattr(origin or kind, "__name__", str(kind))
    expected = "an object" if is_dataclass(kind) or origin is dict else f"a {wanted}"
    raise bad_value(place, repr(value)[:60], expected)


def _decode_dataclass(kind: Any, values: dict[str, Any], place: str) -> Any:
    hints, found = get_type_hints(kind), {}
    names = [field.name for field in fields(kind)]
    for name in values:
        if name not in names:
            raise unknown_name(place, name, names)
    for field in fields(kind):
        if field.name in values:
            inner = f"{place}.{field.name}"
            found[field.name] = decode(hints[field.name], values[field.name], inner)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise bad_value(f"{place}.{field.name}", "nothing", "a value")
    return kind(**found)


def check_schema(values: dict[str, Any], place: str) -> None:
    """Refuse what a newer version wrote."""
    if values.get("schema") != SCHEMA:
        expected = f"schema {SCHEMA} (is a newer version of hyla needed?)"
        raise bad_value(place, f"schema {values.get('schema')!r}", expected)


def read_records(path: Path, kind: type[Record]) -> Iterator[Record]:
    """Yield the records of a file, if it exists; ValueError names file, line and field."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise bad_value(place, f"damaged content ({error})", "a JSON object") from None
        if not isinstance(values, dict):
            raise bad_value(place, type(values).__name__, "a JSON object")
        check_schema(values, place)
        del values["schema"]
        yield decode(kind, values, place)


def to_line(record: Any) -> str:
    """Encode a record as a line."""
    return to_json({"schema": SCHEMA} | plain(record))


def plain(value: Any) -> Any:
    """Convert a value for JSON, without the fields of dataclasses that have their defaults."""
    if is_dataclass(value):
        found = {}
        for field in fields(value):
            inner, factory = getattr(value, field.name), field.default_factory
            if inner != (field.default if factory is MISSING else factory()):
                found[field.name] = plain(inner)
        return found
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def append_records(path: Path, records: Iterable[Any]) -> int:
    """Append the records that a file does not have yet, sorted; return their number.

    The file is replaced as a whole, under a lock; existing lines stay as they are.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent / ".lock"):
        before = path.read_text() if path.exists() else ""
        there = set(before.splitlines())
        new = sorted({to_line(record) for record in records} - there)
        if new:
            start = before if not before or before.endswith("\n") else before + "\n"
            with new_file(path, overwrite=True) as handle:
                handle.write((start + "\n".join(new) + "\n").encode())
    return len(new)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, waiting for it."""
    while True:
        try:
            descriptor = lock(path)
            break
        except BlockingIOError:
            time.sleep(0.05)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
