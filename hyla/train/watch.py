"""What a run tells whoever watches it: a terminal, TensorBoard, Weights & Biases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    step: done so far. stop_at: where this process will stop. steps: of the whole schedule.
    instances_per_second: over all members; 0.0 until it is known.
    losses: training loss of each member; None if it has diverged or is not known yet.
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
    """Told of everything that happens in a run; this one does nothing with it."""

    def say(self, text: str) -> None:
        """Something worth telling: where it resumed, that a member diverged."""

    def metrics(self, records: Sequence[dict[str, Any]]) -> None:
        """Records as they are written to `metrics.jsonl`."""

    def progress(self, progress: Progress) -> None:
        """Called at each record of the training loss, and before each phase."""

    def close(self) -> None:
        """The run has ended, one way or another."""
