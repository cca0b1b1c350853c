"""Atomic file writes, locks that are released when their process ends, JSON without NaN."""

import json
import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

from hyla.errors import bad_value

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"
SHOWN = 8  # differences listed in a message
NOTHING = object()


class TargetError(ValueError):
    """A file cannot be written at the given path."""


@contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only if the block succeeds.

    It is written beside its target under a temporary name, synced to disk and renamed.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, new_file(Path(folder, "a"), overwrite=False) as file:
    ...     [entry.name for entry in Path(folder).iterdir()] == ["a"]
    False
    """
    target = Path(os.path.realpath(path))
    _check_target(path, target, overwrite)
    temporary = target.with_name(f".{target.name}.{token_hex(4)}{PARTIAL}")
    try:
        with temporary.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        _check_target(path, target, overwrite)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def remove_partial(folder: Path) -> None:
    """Remove temporary files that a killed process left; no other process may use the folder."""
    for left in folder.glob(f".*{PARTIAL}"):
        left.unlink(missing_ok=True)


def _check_target(path: Path, target: Path, overwrite: bool) -> None:
    if not target.parent.is_dir():
        raise _target_error(path, "none", f"an existing folder {str(target.parent)!r}")
    if not os.access(target.parent, os.W_OK):
        raise _target_error(path, target.parent, "a writable folder")
    if not target.exists():
        return
    if not stat.S_ISREG(target.stat().st_mode):
        raise _target_error(path, "a folder or device", "the name of a file")
    if not overwrite:
        raise _target_error(path, "an existing file", "a new file (or the option --overwrite)")


def _target_error(path: Path, given: object, expected: str) -> TargetError:
    return TargetError(str(bad_value(str(path), given, expected)))


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power failure, where the system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def lock(path: Path) -> int | None:
    """Lock a file, creating it if needed; BlockingIOError if another process holds the lock.

    The lock lasts until the returned descriptor is closed or the process ends, even if killed.
    Returns None where the system or the file system has no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _flock(descriptor)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _flock(descriptor: int) -> None:
    if fcntl is None:
        raise OSError("this system has no locks")
    for _ in range(4):  # `is_locked` may hold it briefly
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.02)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Whether a process holds the `lock` of a file."""
    if fcntl is None:
        return False
    try:
        with path.open("rb") as handle:
            # Closing the file releases this lock.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def to_json(value: Any, indent: int | None = None) -> str:
    """Serialise to JSON with null for NaN and infinity, which standard JSON lacks.

    >>> to_json({"loss": [0.5, float("nan")]})
    '{"loss": [0.5, null]}'
    """
    return json.dumps(without_nan(value), indent=indent, allow_nan=False)


def without_nan(value: Any) -> Any:
    """Replace every NaN and infinity with None.

    >>> without_nan((1.0, {"a": float("inf")}))
    [1.0, {'a': None}]
    """
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; ValueError if it holds anything else."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise bad_value(str(path), f"damaged content ({error})", "a JSON object") from None
    if not isinstance(value, dict):
        raise bad_value(str(path), type(value).__name__, "a JSON object")
    return value


def differences(one: Any, other: Any, one_is: str, other_is: str) -> str:
    """List the fields in which two JSON values differ, by path; empty if they are equal.

    >>> differences({"model": {"layers": [4]}}, {"model": {"layers": [8]}}, "here", "there")
    'model.layers[0]: 4 here, 8 there'
    """
    found = [
        f"{name}: {_short(first)} {one_is}, {_short(second)} {other_is}"
        for name, first, second in _differing(one, other, "")
    ]
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "; ".join(found[:SHOWN] + more)


def _differing(one: Any, other: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one | other:
            inner = f"{name}.{key}" if name else key
            yield from _differing(one.get(key, NOTHING), other.get(key, NOTHING), inner)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from _differing(first, second, f"{name}[{index}]")
    elif one != other or isinstance(one, bool) != isinstance(other, bool):
        yield name, one, other


def _short(value: Any) -> str:
    if value is NOTHING:
        return "nothing"
    text = json.dumps(value)
    if len(text) <= 60:
        return text
    return f"{len(value)} items" if isinstance(value, list) else f"{text[:57]}..."
