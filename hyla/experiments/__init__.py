"""The paper's tables and figures, and a demonstration; `hyla reproduce NAME` runs one."""

from hyla.experiments.demo import DEMO, DEMO_CODES
from hyla.experiments.paper.ablation import ABLATION
from hyla.experiments.paper.ambiguity import AMBIGUITY_EXPERIMENT
from hyla.experiments.paper.codes import CODES_DEPTH, CODES_FUZZY, CODES_SRAVEN
from hyla.experiments.paper.fuzzy import FUZZY_LOGIC
from hyla.experiments.paper.headlines import HEADLINES
from hyla.experiments.paper.readers import READERS_FUZZY, READERS_SRAVEN
from hyla.experiments.paper.sraven import (
    DEPTH,
    FEATURES,
    HEADS_EXPERIMENT,
    HELD_OUT_FRACTION,
    WIDTH,
)
from hyla.experiments.recall import RECALL
from hyla.experiments.spec import Claim, Experiment, Figure, Plan, Point, Row

_ALL = (
    ABLATION, FUZZY_LOGIC, READERS_FUZZY, WIDTH, DEPTH, HEADS_EXPERIMENT, FEATURES,
    HELD_OUT_FRACTION, READERS_SRAVEN, AMBIGUITY_EXPERIMENT, CODES_FUZZY, CODES_SRAVEN, CODES_DEPTH,
    RECALL, DEMO, DEMO_CODES,
)  # fmt: skip
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}

__all__ = ["EXPERIMENTS", "HEADLINES", "Claim", "Experiment", "Figure", "Plan", "Point", "Row"]
