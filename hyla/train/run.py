"""The training loop of a run: steps, records, evaluations, checkpoints, summary."""

import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from hyla.files import without_nan
from hyla.records import SCHEMA
from hyla.train.checkpoint import Checkpoint
from hyla.train.clock import Clock
from hyla.train.config import RunConfig
from hyla.train.folder import RunFolder
from hyla.train.population import Population
from hyla.train.signals import deferred_signals
from hyla.train.watch import Progress, Watcher

PLACE = ("step", "member", "split")  # fields of an evaluation record that are not measures
SECONDS_BETWEEN_REPORTS = 0.5
MOST_PENDING = 8  # logs in transit from the device; bounds how far the host runs ahead


class TimeUp(Exception):  # noqa: N818 (not an error)
    """The deadline of a run has passed; it is saved, and the same call resumes it."""


@dataclass(frozen=True)
class PendingLog:
    """The log of a step while it is copied from the devices."""

    step: int
    rows: list[Tensor]
    arrivals: list[torch.cuda.Event]

    def has_arrived(self) -> bool:
        """Whether `wait` would return at once."""
        return all(event.query() for event in self.arrivals)

    def wait(self) -> list[list[float]]:
        """Wait for the log; return the rows of `Population.take_log` for all members."""
        for event in self.arrivals:
            event.synchronize()
        return torch.cat(self.rows).tolist()


class Run:
    """A run while it trains. `step`: the last one queued on the devices, perhaps still running."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, watcher: Watcher, stop_at: int
    ) -> None:
        self.config, self.folder, self.watcher, self.stop_at = config, folder, watcher, stop_at
        self.populations: list[Population] = []
        self.pending: deque[PendingLog] = deque()
        self.step, self.saved_step = 0, -1
        self.clock = Clock()
        members = len(config.members)
        self.losses: list[float | None] = [None] * members
        self.measures: list[float | None] = [None] * members
        self.diverged_at: list[int | None] = [None] * members
        self.divergence_recorded: set[int] = set()  # members whose divergence has been recorded
        headline = config.task.headline
        self.shown_split = headline if headline in config.splits else config.splits[0]

    def train(self, checkpoint_seconds: float, deadline: float | None = None) -> dict[str, Any]:
        """Train up to `stop_at`; raise `TimeUp` after the deadline."""
        every, saved = self.config.evaluate_every, time.monotonic()
        with deferred_signals() as signals:
            self.resume_timer()
            while self.step < self.stop_at and len(self.divergence_recorded) < len(self.losses):
                for population in self.populations:
                    population.advance()
                self.step += 1
                if self.step % self.config.log_every == 0 or self.step == self.config.steps:
                    self.request_log()
                self.collect_logs()
                self.show_step()
                if every and self.step % every == 0 and self.step < self.config.steps:
                    self.pause("evaluating")
                    splits = [
                        name
                        for name in self.config.splits
                        if not self.config.task.splits[name].selects
                    ]
                    self.evaluate(splits, self.config.interim_instances)
                    self.resume_timer()
                now = time.monotonic()
                late = deadline is not None and now > deadline and self.step < self.stop_at
                if signals or late or now - saved > checkpoint_seconds:
                    self.save()
                    self.resume_timer()
                    saved = time.monotonic()
                if signals:
                    self.end(signals[0])
                if late:
                    self.end(None)
            self.save()
            if signals:
                self.end(signals[0])
        return self.finish()

    def request_log(self) -> None:
        """Request this step's log from the devices without waiting for it."""
        rows, arrivals = [], []
        for population in self.populations:
            row = population.take_log()
            if row.is_cuda:
                row = torch.empty_like(row, device="cpu", pin_memory=True).copy_(
                    row, non_blocking=True
                )
                with torch.cuda.device(population.device):
                    arrivals.append(torch.cuda.current_stream().record_event())
            rows.append(row)
        self.pending.append(PendingLog(self.step, rows, arrivals))

    def collect_logs(self, wait: bool = False) -> None:
        """Write the logs that have arrived; wait: all of them."""
        while self.pending and (
            wait or len(self.pending) > MOST_PENDING or self.pending[0].has_arrived()
        ):
            log = self.pending.popleft()
            self.record(log.step, log.wait())
            self.clock.now_at(log.step)
            self.report("training")

    def show_step(self) -> None:
        """Report progress between two records, if that needs no waiting for a device."""
        on_cpu = all(population.device.type == "cpu" for population in self.populations)
        if on_cpu and time.perf_counter() - self.clock.latest > SECONDS_BETWEEN_REPORTS:
            self.clock.now_at(self.step)
            self.report("training")

    def record(self, step: int, rows: list[list[float]]) -> None:
        """Write loss and norms of each member or, once, that it has diverged."""
        steps = (step - 1) % self.config.log_every + 1  # number of steps in the sum of losses
        records: list[dict[str, Any]] = []
        for member, (loss_sum, gradient_norm, parameter_norm, diverged_at, scale) in enumerate(
            rows
        ):
            if diverged_at < 0:
                self.losses[member] = loss_sum / steps
                norms = {"gradient_norm": gradient_norm, "parameter_norm": parameter_norm}
                loss = {"step": step, "member": member, "loss": loss_sum / steps}
                scales = {"scale": scale} if self.config.scales_loss else {}
                records.append(without_nan(loss | norms | scales))
            elif member not in self.divergence_recorded:
                self.divergence_recorded.add(member)
                self.mark(member, int(diverged_at))
                records.append({"step": int(diverged_at), "member": member, "diverged": True})
                self.watcher.say(f"member {member} diverged at step {int(diverged_at)}: frozen")
        self.write(records)

    def mark(self, member: int, step: int) -> None:
        """Mark a member as diverged."""
        self.diverged_at[member] = step
        self.losses[member] = self.measures[member] = None

    def evaluate(self, splits: Sequence[str], instances: int) -> list[dict[str, Any]]:
        """Write and return the measures on splits for every member that has not diverged."""
        records: list[dict[str, Any]] = []
        tally = self.populations[0].tally
        for split in splits:
            # Start all devices before waiting for the first.
            found = [population.evaluate(split, instances) for population in self.populations]
            for member, sums in enumerate(row for part in found for row in part.tolist()):
                if self.diverged_at[member] is not None:
                    continue
                measures = without_nan(tally.measures(sums))
                where = {"step": self.step, "member": member, "split": split}
                records.append(where | {"instances": instances} | measures)
                if split == self.shown_split:
                    self.measures[member] = measures[self.config.task.main_measure]
        self.write(records)
        return records

    def write(self, records: list[dict[str, Any]]) -> None:
        """Append records to the folder and pass them to the watchers."""
        self.folder.append_metrics(records)
        self.watcher.metrics(records)

    def pause(self, doing: str) -> None:
        """Wait until the devices are idle, then stop the clock."""
        self.collect_logs(wait=True)
        for population in self.populations:
            if population.device.type == "cuda":
                torch.cuda.synchronize(population.device)
        self.clock.stop(self.step)
        # Evaluation must know of divergence before the next log reports it.
        steps = [step for p in self.populations for step in p.diverged_at.tolist()]
        for member, step in enumerate(steps):
            if step >= 0:
                self.mark(member, step)
        self.report(doing)

    def resume_timer(self) -> None:
        """Start the clock."""
        self.clock.start(self.step)
        self.report("training")

    def save(self) -> None:
        """Write a checkpoint of this step, unless it exists."""
        self.pause("saving")
        if self.step == self.saved_step:
            return
        states = [population.state() for population in self.populations]
        tensors = {
            name: first if first.ndim == 0 else torch.cat([state[name].cpu() for state in states])
            for name, first in states[0].items()
        }
        shown = {
            "losses": self.losses,
            "measures": self.measures,
            "told": sorted(self.divergence_recorded),
        }
        metadata = shown | {"seconds": self.clock.seconds, "steps_timed": self.clock.steps}
        self.folder.save_checkpoint(self.step, tensors, metadata)
        self.saved_step = self.step
        rate = {"instances_per_second": self.instances_per_second}
        self.folder.log({"event": "saved", "step": self.step} | rate)

    def load(self, checkpoint: Checkpoint) -> None:
        """Restore the state of a checkpoint."""
        self.step = self.saved_step = checkpoint.step
        start = 0
        for population in self.populations:
            rows = slice(start, start + len(population.active))
            population.load(
                {name: x[rows] if x.ndim else x for name, x in checkpoint.tensors.items()}
            )
            start = rows.stop
        self.losses, self.measures = checkpoint.metadata["losses"], checkpoint.metadata["measures"]
        self.clock.restore(checkpoint.metadata["seconds"], checkpoint.metadata["steps_timed"])
        self.divergence_recorded = set(checkpoint.metadata["told"])

    def end(self, number: int | None) -> None:
        """Raise what the signal would have raised without `deferred_signals`, or `TimeUp`."""
        self.folder.log({"event": "interrupted", "step": self.step})
        self.watcher.say(
            f"saved at step {self.step} of {self.config.steps}: the same command resumes from there"
        )
        if number is None:
            raise TimeUp(f"time is up at step {self.step} of {self.config.steps}")
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def finish(self) -> dict[str, Any]:
        """Evaluate and write the summary.

        These records follow the last checkpoint, so that resuming from it discards them.
        """
        self.report("evaluating")
        count = f"{self.config.evaluation_instances:,} instances of each split"
        self.watcher.say(f"trained; evaluating on {count} (evaluation-instances)")
        self.complete_losses()
        records = self.evaluate(self.config.splits, self.config.evaluation_instances)
        for record in records:
            if record["loss"] is None:  # the member diverged in its last update
                self.mark(record["member"], self.step)
        state = "finished" if self.step == self.config.steps else "stopped"
        recorded = len(self.divergence_recorded) == len(
            self.losses
        )  # else the resumed run must record it
        if None not in self.diverged_at and (recorded or state == "finished"):
            state = "diverged"
        members = []
        for number, member in enumerate(self.config.members):
            evaluation = {
                record["split"]: {k: v for k, v in record.items() if k not in PLACE}
                for record in records
                if record["member"] == number
            }
            end = {"diverged_at": self.diverged_at[number], "loss": self.losses[number]}
            measured = {"evaluation": evaluation if end["diverged_at"] is None else None}
            members.append({"member": number} | member.to_dict() | end | measured)
        summary: dict[str, Any] = {
            "schema": SCHEMA,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "state": state,
            "step": self.step,
            "steps": self.config.steps,
            "seconds": self.clock.seconds,
            "instances_per_second": self.clock.average * self.instances_per_step,
            "members": members,
        }
        self.folder.write_summary(summary)
        self.folder.log({"event": summary["state"], "step": self.step})
        return summary

    def complete_losses(self) -> None:
        """Set losses to their mean since the last record, if the run stops between two records."""
        steps = self.step % self.config.log_every
        if steps and self.step < self.config.steps:
            sums = [loss_sum for p in self.populations for loss_sum in p.loss_sum.tolist()]
            for member, loss_sum in enumerate(sums):
                if self.diverged_at[member] is None:
                    self.losses[member] = loss_sum / steps

    @property
    def instances_per_second(self) -> float:
        """Training speed of this process, over all members and without evaluation."""
        return self.clock.steps_per_second * self.instances_per_step

    @property
    def instances_per_step(self) -> int:
        """Training instances of one step, over all members."""
        return self.config.batch * len(self.config.members)

    def report(self, doing: str) -> None:
        """Send the current progress to the watchers."""
        step, rate = (
            self.clock.step if doing == "training" else self.step,
            self.clock.steps_per_second,
        )
        self.watcher.progress(
            Progress(
                step=step,
                stop_at=self.stop_at,
                steps=self.config.steps,
                instances_per_second=self.instances_per_second,
                seconds_left=(self.stop_at - step) / rate if rate else None,
                losses=tuple(self.losses),
                measures=tuple(self.measures),
                measure=f"{self.shown_split} {self.config.task.main_measure}",
                doing=doing,
            )
        )
