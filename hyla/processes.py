"""Jobs in several processes at once, which end together."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

INTERRUPTED = 130  # what a process ends with after Ctrl-C

Job = Callable[[], None]  # that can be pickled


def run_all(jobs: Mapping[str, Job], processes: int) -> Iterator[tuple[str, int]]:
    """Runs jobs in their order, at most so many at once; gives name and exit code as each ends.

    Ctrl-C in one of them is Ctrl-C here. When the caller stops asking, or is itself interrupted,
    those that run are asked to end, and waited for: they may save first.
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
    except KeyboardInterrupt:  # told by the process that waits for this one
        sys.exit(INTERRUPTED)


def _end_with_parent() -> None:
    """Asks this process to end when the one that started it is gone, however it went."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def told(code: int) -> str:
    """An exit code in words.

    >>> told(-9)
    'killed by SIGKILL, as when memory runs out'
    """
    if code >= 0:
        return f"exit code {code}"
    why = ", as when memory runs out" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{why}"
