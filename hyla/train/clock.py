"""How fast a run trains."""

import time


class Clock:
    """The seconds that training takes and the steps done in them."""

    def __init__(self) -> None:
        self.seconds, self.steps = 0.0, 0  # of the intervals that have ended
        self.step = self.first_step = 0
        self.since = self.latest = 0.0

    def start(self, step: int) -> None:
        """Begins an interval."""
        self.step = self.first_step = step
        self.since = self.latest = time.perf_counter()

    def now_at(self, step: int) -> None:
        """Notes that a step is done."""
        self.step, self.latest = step, time.perf_counter()

    def stop(self, step: int) -> None:
        """Ends the interval."""
        self.now_at(step)
        self.seconds += self.latest - self.since
        self.steps += step - self.first_step
        self.first_step, self.since = step, self.latest

    @property
    def steps_per_second(self) -> float:
        """On average, 0 before the first step."""
        seconds = self.seconds + self.latest - self.since
        return (self.steps + self.step - self.first_step) / seconds if seconds else 0.0
