"""Synthetic trainings of declared points, for tests that process results."""

from dataclasses import replace
from typing import Any

from hyla.experiments.spec import Point
from hyla.train import Member, grid
from hyla.train.store import Origin, Search, Store, Trained
from hyla.train.training import Training

SETTINGS = grid([0], [1e-3, 3e-3], [0.1], [2, 5])


def made(
    point: Point,
    setting: Member,
    seed: int,
    *,
    validation: float = 1.0,
    held_out: float = 0.5,
    precision: str = "tf32",
    run: str = "a",
    member: int = 0,
    diverged_at: int | None = None,
    date: str = "2026-01-01",
    chosen: Search | None = None,
    pinned: bool = False,
    **more: Any,
) -> Trained:
    """A training with these results."""
    assert point.config is not None
    training = Training.of(point.config, replace(setting, seed=seed), precision)
    task = point.config.task
    name = task.main_measure
    evaluation: dict[str, dict[str, Any]] = {
        "validation": {"loss": validation},
        task.headline: {name: held_out, "feature_accuracy": held_out},
        "train": {name: 0.9},
    }
    return Trained(
        training.key, run, member, training.description, 0.1, diverged_at,
        {} if diverged_at is not None else evaluation, {}, Origin(date), chosen, pinned, **more,
    )  # fmt: skip


def store(*published: Trained, local: tuple[Trained, ...] = ()) -> Store:
    """A store of these trainings."""
    return Store(published, local, ())
