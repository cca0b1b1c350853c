"""Jobs in several processes at once, which end together."""

import multiprocessing
import sys
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
    try:
        job()
    except KeyboardInterrupt:  # told by the process that waits for this one
        sys.exit(INTERRUPTED)
