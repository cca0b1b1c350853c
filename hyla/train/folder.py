"""The run folder: everything a run writes, and what it resumes from after an interruption.

config.json    configuration, environment and a random id
metrics.jsonl  records; on the same machine, resuming leaves the same bytes as an unbroken run
log.jsonl      events with their times; append-only
checkpoints/   the newest few; each stores the length of metrics.jsonl at that step
summary.json   written when training ends
lock           held while a process trains here
"""

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from platform import node
from secrets import token_hex
from types import TracebackType
from typing import Any, BinaryIO, Self

from torch import Tensor

from hyla.errors import bad_value
from hyla.files import (
    PARTIAL,
    TargetError,
    differences,
    lock,
    new_file,
    read_object,
    remove_partial,
    to_json,
)
from hyla.train import checkpoint
from hyla.train.checkpoint import Checkpoint
from hyla.train.runs import (
    CHECKPOINTS,
    CONFIG,
    LOCK,
    LOG,
    METRICS,
    METRICS_BYTES,
    SUMMARY,
    read_config,
)

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunFolderError(OSError):
    """A run folder cannot be written; the message says why and what was kept."""


class FolderInUseError(ValueError):
    """Another process is training in the folder."""


class RunFolder:
    """The folder of one run, locked for one process; open it with `RunFolder.open`.

    resumed: the checkpoint to resume from; None at the beginning of a run.
    summary: that of the previous process, if it wrote one.
    messages: what the user should know about the folder as it was found.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     path = Path(place, "run")
    ...     with RunFolder.open(path, {"steps": 3}, {}) as folder:
    ...         folder.append_metrics([{"step": 1, "loss": 0.5}])
    ...         written = folder.save_checkpoint(1, {})
    ...         folder.append_metrics([{"step": 2, "loss": 0.4}])
    ...     with RunFolder.open(path, {"steps": 3}, {}) as folder:
    ...         folder.append_metrics([])  # the first write rewinds to the checkpoint
    ...         folder.resumed.step, (path / METRICS).read_text(), folder.messages
    (1, '{"step": 1, "loss": 0.5}\\n', ['resuming from step 1'])
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self.resumed: Checkpoint | None = None
        self.summary: dict[str, Any] | None = None
        self.messages: list[str] = []
        self._keep = keep
        self._lock: int | None = None
        self._damaged: list[Path] = []
        self._metrics_bytes = 0
        self._rewound = False

    @classmethod
    def open(
        cls, path: Path, config: dict[str, Any], environment: dict[str, Any], *, keep: int = 2
    ) -> Self:
        """Create the folder, or reopen one that has the same configuration.

        keep: number of checkpoints to keep.
        """
        folder = cls(Path(path).absolute(), keep)
        try:
            with folder._writing(folder.path):
                _check_place(folder.path)
                folder.path.mkdir(parents=True, exist_ok=True)
                folder._take_lock()
                _check_place(folder.path)
                remove_partial(folder.path)
            folder._begin(config, environment)
        except BaseException:
            folder.close()
            raise
        return folder

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def append_metrics(self, records: Iterable[dict[str, Any]]) -> None:
        """Append lines to metrics.jsonl."""
        lines = "".join(to_json(record) + "\n" for record in records).encode()
        self._rewind()
        with self._metrics() as handle:
            # A failed attempt may have left part of a line.
            handle.seek(self._metrics_bytes)
            handle.truncate()
            handle.write(lines)
        self._metrics_bytes += len(lines)

    def log(self, event: dict[str, Any]) -> None:
        """Append a line with the time to log.jsonl."""
        line = to_json({"time": datetime.now(UTC).isoformat(timespec="milliseconds")} | event)
        path = self.path / LOG
        with self._writing(path), path.open("a+b") as handle:
            if handle.seek(0, os.SEEK_END):
                handle.seek(-1, os.SEEK_END)
                if handle.read(1) != b"\n":  # a killed process left an incomplete line
                    handle.write(b"\n")
            handle.write(line.encode() + b"\n")

    def save_checkpoint(
        self, step: int, tensors: dict[str, Tensor], metadata: dict[str, Any] | None = None
    ) -> Path:
        """Save a checkpoint with the current length of metrics.jsonl."""
        self._rewind()
        self._sync_metrics()
        values = (metadata or {}) | {METRICS_BYTES: self._metrics_bytes}
        folder = self.path / CHECKPOINTS
        path = checkpoint.path_of(folder, step)
        with self._writing(path):
            checkpoint.save(folder, step, tensors, values, self._keep, self._damaged)
        self._damaged = []
        return path

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json; its field "state" is "finished", "stopped" or "diverged"."""
        self._rewind()
        self._sync_metrics()
        self._write(SUMMARY, summary)

    def set_environment(self, environment: dict[str, Any]) -> None:
        """Replace the environment in config.json, from which a resumed run takes its defaults."""
        self._write(CONFIG, read_object(self.path / CONFIG) | {"environment": environment})

    def _write(self, name: str, values: dict[str, Any]) -> None:
        text = to_json(values, indent=2) + "\n"
        path = self.path / name
        with self._writing(path), new_file(path, overwrite=True) as handle:
            handle.write(text.encode())

    def _take_lock(self) -> None:
        path = self.path / LOCK
        try:
            self._lock = lock(path)
        except BlockingIOError:
            who = path.read_text(errors="replace").strip() or "unknown process"
            raise FolderInUseError(
                f"{self.path}: another process is training here ({who}). "
                "Wait until it ends, or use another folder."
            ) from None
        if self._lock is None:
            self.messages.append("no file locks here: do not run a second process in this folder")
            return
        with suppress(OSError):  # the lock's owner is only used in messages
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"process {os.getpid()} on {node()}\n".encode(), 0)

    def _begin(self, config: dict[str, Any], environment: dict[str, Any]) -> None:
        config, environment = json.loads(to_json(config)), json.loads(to_json(environment))
        is_new = not (self.path / CONFIG).exists()
        if is_new:
            identity = {"id": token_hex(8)}
            self._write(CONFIG, identity | {"config": config, "environment": environment})
        else:
            there, then = read_config(self.path)
            _check_same(self.path, there, config)
            if changes := differences(then, environment, "in the folder", "now"):
                self.messages.append(f"the environment has changed: {changes}")
        with self._writing(self.path / CHECKPOINTS):
            (self.path / CHECKPOINTS).mkdir(exist_ok=True)
        with self._writing(self.path / METRICS):
            (self.path / METRICS).touch()
        if not is_new:
            self._resume()
            self._read_summary()
        step = self.resumed.step if self.resumed else 0
        event = {"event": "created" if is_new else "resumed", "step": step}
        self.log(event | {"environment": environment, "messages": self.messages})

    def _resume(self) -> None:
        """Find the newest intact checkpoint whose metrics are still complete."""
        size, short = (self.path / METRICS).stat().st_size, []

        def problem(found: Checkpoint) -> str:
            wanted = found.metadata.get(METRICS_BYTES)
            if isinstance(wanted, int) and wanted <= size:
                return ""
            short.append(f"it needs {wanted} bytes of {METRICS}, which has {size}")
            return short[-1]

        folder = self.path / CHECKPOINTS
        self.resumed, passed_over = checkpoint.latest(folder, problem)
        self.messages += passed_over
        if self.resumed is None and short:
            raise ValueError(
                f"{self.path / METRICS}: damaged, and no usable checkpoint remains: "
                f"{' '.join(passed_over)} Restore the file, or use another folder."
            )
        step = self.resumed.step if self.resumed else -1
        self._damaged = [
            path for path in checkpoint.paths(folder) if checkpoint.step_of(path) > step
        ]
        if self.resumed:
            self._metrics_bytes = self.resumed.metadata[METRICS_BYTES]
            self.messages.append(f"resuming from step {step}")
        else:
            self.messages.append("no checkpoint: starting at step 0")

    def _read_summary(self) -> None:
        try:
            self.summary = read_object(self.path / SUMMARY)
        except FileNotFoundError:
            pass
        except ValueError as error:
            self.messages.append(str(error))

    def _rewind(self) -> None:
        """Reset metrics and summary to the checkpoint, once, before the first write.

        Until then, opening the folder changes neither, so that a failed start loses nothing.
        """
        if self._rewound:
            return
        with self._metrics() as handle:
            handle.truncate(self._metrics_bytes)
        with self._writing(self.path / SUMMARY):
            (self.path / SUMMARY).unlink(missing_ok=True)
        self._rewound = True

    def _sync_metrics(self) -> None:
        with self._metrics() as handle:
            os.fsync(handle.fileno())

    @contextmanager
    def _metrics(self) -> Iterator[BinaryIO]:
        """Open metrics.jsonl; reopened for every write, so that its deletion is noticed."""
        path = self.path / METRICS
        with self._writing(path), path.open("r+b") as handle:
            if handle.seek(0, os.SEEK_END) < self._metrics_bytes:
                raise OSError(errno.EIO, "another program has truncated it")
            yield handle

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, TargetError) as error:
            raise RunFolderError(self._failure(path, error)) from error

    def _failure(self, path: Path, error: Exception) -> str:
        number, reason = getattr(error, "errno", None), getattr(error, "strerror", None)
        when = "there is space" if number in NO_SPACE else "it can be written"
        whole: list[Path] = []
        with suppress(OSError):
            found = checkpoint.paths(self.path / CHECKPOINTS)
            whole = [one for one in found if one not in self._damaged]
        if whole:
            state = "is intact" if self.resumed or self._rewound else "exists"
            left = f"The last checkpoint, of step {checkpoint.step_of(whole[0])}, {state}"
            then = f"the same command resumes from there once {when}"
        else:
            left = "There is no checkpoint"
            then = f"the same command starts from the beginning once {when}"
        return f"{path}: cannot be written: {reason or error}. {left}: {then}."


def _check_place(path: Path) -> None:
    """Raise ValueError unless a folder is new, empty, a run's, or left by a kill at creation."""
    if path.exists() and not path.is_dir():
        raise bad_value(str(path), "a file", "a folder")
    if not path.is_dir():
        return
    if (path / CONFIG).exists():
        read_config(path)
        return
    names = sorted(entry.name for entry in path.iterdir())
    partial = re.compile(rf"\.{re.escape(CONFIG)}\.\w+{re.escape(PARTIAL)}")
    others = [name for name in names if name != LOCK and not partial.fullmatch(name)]
    if others:
        given = f"a folder with {', '.join(map(repr, others[:3]))}"
        raise bad_value(str(path), given, f"an empty folder, or one with the {CONFIG} of a run")


def _check_same(path: Path, there: dict[str, Any], asked: dict[str, Any]) -> None:
    if changes := differences(there, asked, "in the folder", "requested"):
        raise ValueError(
            f"{path}: holds a run with another configuration: {changes}. "
            "Use another folder, or the configuration of this one."
        )
