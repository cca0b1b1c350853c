"""How fast a run trains."""

import pytest

from hyla.train.clock import Clock


def test_the_rate_is_that_of_the_process_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("hyla.train.clock.time.perf_counter", lambda: now[0])
    clock = Clock()
    clock.restore(seconds=2.0, steps=1000)  # on a GPU
    clock.start(1000)
    assert clock.steps_per_second == 0.0
    now[0] += 4.0
    clock.now_at(1002)  # on a CPU
    assert clock.steps_per_second == 0.5
    clock.stop(1002)
    assert clock.steps_per_second == 0.5
    assert (clock.seconds, clock.average) == (6.0, 167.0)
