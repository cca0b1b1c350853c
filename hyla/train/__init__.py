"""Training: a population of members as one program, into a run folder."""

from hyla.train.config import Member, RunConfig, fuzzy_logic_run, grid, sraven_run
from hyla.train.loop import train
from hyla.train.run import TimeUp
from hyla.train.trained import load_run

__all__ = [
    "Member",
    "RunConfig",
    "TimeUp",
    "fuzzy_logic_run",
    "grid",
    "load_run",
    "sraven_run",
    "train",
]
