"""Run jobs in parallel processes that stop together."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

INTERRUPTED = 130  # exit code after Ctrl-C

Job = Callable[[], None]  # must be picklable


def run_all(jobs: Mapping[str, Job], processes: int) -> Iterator[tuple[str, int]]:
    """Run jobs in order, at most `processes` at once; yield name and exit code as each ends.

    Ctrl-C in a job raises KeyboardInterrupt here. If the caller stops iterating or is interrupted,
    running jobs get SIGTERM and are waited for, so that they can save.
    """
    spawn = multiprocessing.get_context("spawn")
    waiting, running = list(jobs.items()), dict[str, BaseProcess]()
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                name, job = waiting.pop(0)
                running[name] = spawn.Process(target=_run, args=(job,))
                running[name].start()
            wait([process.sentinel for process in running.values()])
            for name in [name for name, process in running.items() if not process.is_alive()]:
                process = running.pop(name)
                process.join()
                if process.exitcode == INTERRUPTED:
                    raise KeyboardInterrupt
                yield name, process.exitcode or 0
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()


def _run(job: Job) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        job()
    except KeyboardInterrupt:  # reported by the parent process
        sys.exit(INTERRUPTED)


def _end_with_parent() -> None:
    """Send this process SIGTERM when its parent is gone, even if killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def told(code: int) -> str:
    """Describe an exit code in words.

    >>> told(-9)
    'killed by SIGKILL, as when memory runs out'
    """
    if code >= 0:
        return f"exit code {code}"
    why = ", as when memory runs out" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{why}"
