"""Callbacks of a run, for a terminal, TensorBoard or Weights & Biases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    step: steps done. stop_at: where this process will stop. steps: length of the schedule.
    instances_per_second: over all members; 0.0 until known.
    losses: training loss of each member; None if diverged or not yet known.
    measures: held-out measure of each member at the last evaluation; None before the first.
    measure: its name, such as `held_out accuracy` or `held_out r2`.
    doing: `preparing`, `training`, `evaluating` or `saving`.
    """

    step: int
    stop_at: int
    steps: int
    instances_per_second: float
    seconds_left: float | None
    losses: tuple[float | None, ...]
    measures: tuple[float | None, ...]
    measure: str
    doing: str


class Watcher:
    """Callback interface; every method is a no-op by default."""

    def say(self, text: str) -> None:
        """Receive a message, such as where the run resumed or that a member diverged."""

    def metrics(self, records: Sequence[dict[str, Any]]) -> None:
        """Receive records as they are written to `metrics.jsonl`."""

    def progress(self, progress: Progress) -> None:
        """Receive the progress at each record of the training loss and before each phase."""

    def close(self) -> None:
        """Clean up; called when the run ends, even with an error."""
