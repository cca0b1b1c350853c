"""Train end to end: one call creates a run folder or resumes it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hyla.errors import bad_value
from hyla.train.config import RunConfig
from hyla.train.folder import RunFolder
from hyla.train.placement import choose_placement, environment, in_words, make_populations
from hyla.train.run import Run
from hyla.train.runs import CONFIG, read_config
from hyla.train.watch import Progress, Watcher


def train(
    config: RunConfig,
    path: Path | str,
    *,
    device: str = "auto",
    compiled: bool | None = None,
    stop_at: int | None = None,
    members_at_once: int | None = None,
    checkpoint_seconds: float = 60.0,
    deadline: float | None = None,
    watchers: Sequence[Watcher] = (),
) -> dict[str, Any]:
    """Train a run in a folder, or resume it, and return its summary.

    device: `auto`, `cpu`, `cuda` (all GPUs) or one such as `cuda:1`. compiled: None chooses.
    stop_at: stop after this step of the schedule, then evaluate and save.
    members_at_once: the most members per population; None: as many as fit the memory.
    deadline: a time of `time.monotonic` after which to save and raise `TimeUp`.
    Ctrl-C and SIGTERM save first; the same call then resumes.
    """
    path = Path(path)
    if stop_at is not None and not 1 <= stop_at <= config.steps:
        raise bad_value("stop_at", stop_at, f"from 1 to the {config.steps} steps of the schedule")
    if not checkpoint_seconds >= 0:
        raise bad_value("checkpoint_seconds", checkpoint_seconds, "a number of at least 0")
    # Report splits that are impossible with a seed before creating the folder.
    config.task.bind([member.seed for member in config.members])
    recorded = read_config(path)[1] if (path / CONFIG).exists() else {}
    placed = choose_placement(config, device, compiled, members_at_once, recorded)
    with RunFolder.open(path, config.to_dict(), environment(placed)) as folder:
        everyone = WatcherGroup(watchers, folder)
        run = Run(config, folder, everyone, stop_at or config.steps)
        run.step = done = folder.resumed.step if folder.resumed else 0
        summary = folder.summary or {}
        # If the last checkpoint of a finished run is damaged, it is retrained from step `done`.
        ended = summary.get("state") in ("finished", "diverged") or run.stop_at == done
        if ended and summary.get("step") == done:
            everyone.say(f"this run is {summary['state']} at step {done}: nothing to do")
            return summary
        if run.stop_at < done:
            raise bad_value("stop_at", stop_at, f"at least {done}, the step already reached")
        for message in folder.messages:
            everyone.say(message)
        run.report("preparing")
        placement, run.populations = make_populations(config, placed, everyone.say)
        if placement != placed:
            folder.set_environment(environment(placement))
        everyone.say(in_words(config, placement))
        parts = [len(part) for part, _ in placement.parts(len(config.members))]
        folder.log({"event": "training", "step": done, "populations": parts})
        if folder.resumed is not None:
            run.load(folder.resumed)
        return run.train(checkpoint_seconds, deadline)


class WatcherGroup(Watcher):
    """Forwards everything to all watchers; one that fails is removed."""

    def __init__(self, watchers: Sequence[Watcher], folder: RunFolder) -> None:
        self.watchers, self.folder = list(watchers), folder

    def say(self, text: str) -> None:
        self._tell(lambda watcher: watcher.say(text))

    def metrics(self, records: Sequence[dict[str, Any]]) -> None:
        self._tell(lambda watcher: watcher.metrics(records))

    def progress(self, progress: Progress) -> None:
        self._tell(lambda watcher: watcher.progress(progress))

    def _tell(self, tell: Callable[[Watcher], None]) -> None:
        for watcher in list(self.watchers):
            try:
                tell(watcher)
            except Exception as error:  # a closed terminal must not stop the training
                self.watchers.remove(watcher)
                self.folder.log({"event": "a watcher failed", "error": repr(error)})
