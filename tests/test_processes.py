"""Jobs in parallel processes: order, number, and how they end, alone and together."""

import multiprocessing
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from hyla.processes import run_all


def write(folder: Path, name: str, seconds: float = 0.0, code: int = 0) -> None:
    """Notes when it begins and ends."""
    (folder / f"{name} begins").touch()
    time.sleep(seconds)
    (folder / f"{name} ends").touch()
    sys.exit(code)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)


def save_when_asked(folder: Path) -> None:
    def end(*_: object) -> None:
        (folder / "saved").touch()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    (folder / "ready").touch()
    time.sleep(60)


def when(path: Path) -> int:
    return path.stat().st_mtime_ns


def test_no_more_at_once_than_asked_for(tmp_path: Path) -> None:
    jobs = {name: partial(write, tmp_path, name, 0.3) for name in "abc"}
    assert [name for name, _ in run_all(jobs, 1)] == ["a", "b", "c"]
    assert when(tmp_path / "a ends") <= when(tmp_path / "b begins")
    assert when(tmp_path / "b ends") <= when(tmp_path / "c begins")


def test_others_go_on_when_one_fails(tmp_path: Path) -> None:
    codes = (0, 7, 0)
    jobs = {n: partial(write, tmp_path, n, code=c) for n, c in zip("abc", codes, strict=True)}
    assert dict(run_all(jobs, 2)) == dict(zip("abc", codes, strict=True))


def test_an_interrupted_job_ends_all_and_they_may_save(tmp_path: Path) -> None:
    jobs = {"other": partial(save_when_asked, tmp_path), "one": partial(_wait_then_stop, tmp_path)}
    with pytest.raises(KeyboardInterrupt):
        dict(run_all(jobs, 2))
    assert (tmp_path / "saved").exists()


def _wait_then_stop(folder: Path) -> None:
    while not (folder / "ready").exists():
        time.sleep(0.01)
    interrupt()


def test_who_stops_asking_ends_all(tmp_path: Path) -> None:
    jobs = {"a": partial(_wait_then_end, tmp_path), "b": partial(save_when_asked, tmp_path)}
    ending = run_all(jobs, 2)
    assert next(ending) == ("a", 0)
    ending.close()
    assert (tmp_path / "saved").exists()


def _wait_then_end(folder: Path) -> None:
    while not (folder / "ready").exists():
        time.sleep(0.01)


def start_and_wait(folder: Path) -> None:
    dict(run_all({"one": partial(save_when_asked, folder)}, 1))


def test_they_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    parent = spawn.Process(target=start_and_wait, args=(tmp_path,))
    parent.start()
    deadline = time.monotonic() + 60
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.kill()
    while not (tmp_path / "saved").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "saved").exists()
