"""Find and inspect run folders."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyla.errors import bad_value, unknown_name
from hyla.files import is_locked, read_object
from hyla.train import checkpoint
from hyla.train.config import RunConfig

CONFIG, METRICS, LOG, SUMMARY = "config.json", "metrics.jsonl", "log.jsonl", "summary.json"
METRICS_BYTES = "metrics_bytes"  # checkpoint metadata: the length of metrics.jsonl
LONGEST_RECORD = 1 << 16
CHECKPOINTS, LOCK = "checkpoints", "lock"
ENDED = ("finished", "stopped", "diverged")  # states in a summary


@dataclass(frozen=True)
class RunState:
    """Summary of a run folder.

    state: "running", "finished", "stopped" (early, with a summary), "diverged" (all members),
        "interrupted" (without a summary), "new" (no checkpoint yet) or "damaged".
    step: that of the newest checkpoint's name, or of the last record while the run is running.
    problem: why the folder is damaged.
    """

    path: Path
    state: str
    step: int = 0
    steps: int = 0
    task: str = ""
    kind: str = ""
    members: int = 0
    problem: str = ""
    summary: dict[str, Any] | None = None


def folder_name(config: RunConfig) -> str:
    """Return a name unique to a configuration, so that the same command finds the same folder."""
    text = json.dumps(config.to_dict(), sort_keys=True, separators=(",", ":"))
    digits = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{config.task_name}-{config.model.kind}-{digits}"


def list_runs(root: Path) -> list[RunState]:
    """List the run folders at or below a folder, by path; symbolic links are not followed.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     list_runs(Path(folder))
    []
    """
    return [read_state(path) for path in folders(root)]


def folders(root: Path) -> Iterator[Path]:
    """Yield the paths of the run folders at or below a folder."""
    for place, names, _ in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if _is_run(Path(place)):
            names.clear()
            yield Path(place)


def _is_run(path: Path) -> bool:
    try:
        if (path / LOCK).is_file():
            return (path / CONFIG).is_file() or (path / CHECKPOINTS).is_dir()
        read_config(path)
    except (OSError, ValueError):
        return False
    return True


def read_state(path: Path) -> RunState:
    """Read the state of a run folder, without reading its checkpoints."""
    try:
        config, _ = read_config(path)
        step = max(map(checkpoint.step_of, checkpoint.paths(path / CHECKPOINTS)), default=None)
        state, problem, summary = _progress(path, begun=step is not None)
        if state == "running":
            step = max(step or 0, _last_recorded_step(path / METRICS))
    except (OSError, ValueError) as error:
        return RunState(path, "damaged", problem=str(error))
    task, model, members = (config.get(name) for name in ("task", "model", "members"))
    steps = config.get("steps")
    return RunState(
        path,
        state,
        step or 0,
        steps if isinstance(steps, int) else 0,
        str(task.get("name", "")) if isinstance(task, dict) else "",
        str(model.get("kind", "")) if isinstance(model, dict) else "",
        len(members) if isinstance(members, list) else 0,
        problem,
        summary,
    )


def _progress(path: Path, begun: bool) -> tuple[str, str, dict[str, Any] | None]:
    """Return state, problem and summary."""
    running, summary, problem = is_locked(path / LOCK), None, ""
    try:
        summary = read_object(path / SUMMARY)
        if summary.get("state") not in ENDED:
            problem = str(unknown_name(f"{path / SUMMARY}: state", summary.get("state"), ENDED))
    except FileNotFoundError:
        pass
    except ValueError as error:
        problem = str(error)
    if running:
        return "running", "", summary
    if problem:
        return "damaged", problem, summary
    if summary:
        return summary["state"], "", summary
    return "interrupted" if begun else "new", "", None


def _last_recorded_step(path: Path) -> int:
    """Return the step of the last complete line of metrics; 0 without one."""
    with path.open("rb") as handle:
        handle.seek(max(0, handle.seek(0, os.SEEK_END) - LONGEST_RECORD))
        lines = handle.read().split(b"\n")[:-1]
    try:
        return int(json.loads(lines[-1])["step"])
    except (IndexError, KeyError, TypeError, ValueError):
        return 0


def read_id(path: Path) -> str:
    """Return the random id of a run, which distinguishes runs with the same configuration."""
    found = read_object(path / CONFIG).get("id")
    if not isinstance(found, str) or not found:
        raise bad_value(f"{path / CONFIG}: id", repr(found), "the id of a run")
    return found


def read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read configuration and environment of a run folder; ValueError if they are damaged."""
    values = read_object(path / CONFIG)
    config, environment = values.get("config"), values.get("environment")
    if not isinstance(config, dict) or not isinstance(environment, dict):
        given = ", ".join(map(repr, values)) or "no fields"
        raise bad_value(str(path / CONFIG), given, "the fields 'config' and 'environment' of a run")
    return config, environment
