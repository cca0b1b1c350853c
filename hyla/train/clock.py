"""The training speed of a run."""

import time


class Clock:
    """Measures training time and steps over intervals, excluding evaluation and saving."""

    def __init__(self) -> None:
        self.seconds, self.steps = 0.0, 0  # of completed intervals
        self.step = self.first_step = 0
        self.since = self.latest = 0.0
        self.earlier_seconds, self.earlier_steps = 0.0, 0

    def restore(self, seconds: float, steps: int) -> None:
        """Add time and steps of earlier processes, possibly on another device."""
        self.seconds = self.earlier_seconds = seconds
        self.steps = self.earlier_steps = steps

    def start(self, step: int) -> None:
        """Begin an interval."""
        self.step = self.first_step = step
        self.since = self.latest = time.perf_counter()

    def now_at(self, step: int) -> None:
        """Record that a step is done."""
        self.step, self.latest = step, time.perf_counter()

    def stop(self, step: int) -> None:
        """End the interval."""
        self.now_at(step)
        self.seconds += self.latest - self.since
        self.steps += step - self.first_step
        self.first_step, self.since = step, self.latest

    @property
    def steps_per_second(self) -> float:
        """The average of this process; 0 before its first step."""
        seconds = self.seconds - self.earlier_seconds + self.latest - self.since
        steps = self.steps - self.earlier_steps + self.step - self.first_step
        return steps / seconds if seconds else 0.0

    @property
    def average(self) -> float:
        """Steps per second over all completed intervals, including earlier processes."""
        return self.steps / self.seconds if self.seconds else 0.0
