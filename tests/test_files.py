"""Atomic files, locks, JSON."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hyla import files
from hyla.files import differences, is_locked, lock, new_file, read_object, remove_partial, to_json


def fail(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, existing: bool
) -> None:
    path = tmp_path / "a"
    if existing:
        path.write_text("precious")
    if where == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    if where == "replace":
        monkeypatch.setattr(Path, "replace", fail)

    def write() -> None:
        with new_file(path, overwrite=True) as handle:
            handle.write(b"new")
            if where == "write":
                fail()

    with pytest.raises(OSError, match="No space"):
        write()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"] * existing
    assert not existing or path.read_text() == "precious"


def test_a_link_stays_a_link_and_a_device_is_refused(tmp_path: Path) -> None:
    target, link = tmp_path / "target.jsonl", tmp_path / "link.jsonl"
    target.write_text("old")
    link.symlink_to(target)
    with new_file(link, overwrite=True) as handle:
        handle.write(b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    for place in (Path("/dev/null"), tmp_path):
        with pytest.raises(ValueError, match="a folder or device"), new_file(place, overwrite=True):
            pass


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("a", "a.partial", ".a", ".a.0123abcd.partial"):
        (tmp_path / name).touch()
    remove_partial(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"a", "a.partial", ".a"}


def test_a_lock_is_held_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    held = lock(path)
    assert held is not None
    assert is_locked(path)
    with pytest.raises(BlockingIOError):
        lock(path)
    os.close(held)
    assert not is_locked(path)
    again = lock(path)
    assert again is not None
    os.close(again)


def test_without_locks_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    assert lock(tmp_path / "lock") is None
    assert not is_locked(tmp_path / "lock")


def test_json_has_null_for_what_is_not_a_number() -> None:
    numbers = [float("nan"), float("inf"), -float("inf"), 0.1, -0.0, 3, True, "NaN", None]
    value = {"a": numbers, "b": {"c": tuple(numbers)}}
    back = json.loads(to_json(value), parse_constant=pytest.fail)
    expected = [None, None, None, 0.1, -0.0, 3, True, "NaN", None]
    assert back == {"a": expected, "b": {"c": expected}}
    assert json.loads(to_json(back, indent=2)) == back


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"[1]", b"3"])
def test_what_is_no_object_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json: expected a JSON object, got"):
        read_object(path)


@pytest.mark.parametrize(
    "one, other, expected",
    [
        ({"a": [1, {"b": 2.0}]}, {"a": [1, {"b": 2}]}, ""),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "a[1].b: 2 here, 3 there"),
        ({"a": 1}, {"a": True}, "a: 1 here, true there"),
        ({"a": None}, {}, "a: null here, nothing there"),
        ({}, {"a": {"b": 1}}, 'a: nothing here, {"b": 1} there'),
        ({"a": ["x"]}, {"a": ["x", "y"]}, 'a: ["x"] here, ["x", "y"] there'),
        ({"a": [{"seed": 0}] * 50}, {"a": [{"seed": 0}]}, 'a: 50 items here, [{"seed": 0}] there'),
    ],
)
def test_differences_are_told_by_path(one: Any, other: Any, expected: str) -> None:
    assert differences(one, other, "here", "there") == expected
    assert not differences(one, one, "here", "there")


def test_many_differences_are_counted() -> None:
    text = differences({"a": [0] * 20}, {"a": [1] * 20}, "here", "there")
    assert text.count(" here") == 8
    assert text.endswith("; and 12 more")
