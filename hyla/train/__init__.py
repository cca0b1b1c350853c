"""Training: a population of members as one program, into a run folder."""

from hyla.train.config import Member, RunConfig, grid, task_run
from hyla.train.loop import train
from hyla.train.run import TimeUp
from hyla.train.trained import load_run

__all__ = [
    "Member",
    "RunConfig",
    "TimeUp",
    "grid",
    "load_run",
    "task_run",
    "train",
]
