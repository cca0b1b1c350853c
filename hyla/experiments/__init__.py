"""The paper's tables and figures, each declared once: `hyla reproduce NAME` runs one."""

from hyla.experiments.ablation import ABLATION
from hyla.experiments.ambiguity import AMBIGUITY
from hyla.experiments.codes import CODES_DEPTH, CODES_FUZZY, CODES_SRAVEN
from hyla.experiments.declare import Claim, Experiment, Figure, Point, Row, Verdict
from hyla.experiments.demo import DEMO, DEMO_CODES
from hyla.experiments.fuzzy import FUZZY_LOGIC
from hyla.experiments.readers import READERS_EXPERIMENT, READERS_SRAVEN
from hyla.experiments.signs import SIGNS
from hyla.experiments.sraven import DEPTH, FEATURES, HEADS_EXPERIMENT, HELD_OUT_FRACTION, WIDTH

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        ABLATION,
        FUZZY_LOGIC,
        READERS_EXPERIMENT,
        WIDTH,
        DEPTH,
        HEADS_EXPERIMENT,
        FEATURES,
        HELD_OUT_FRACTION,
        READERS_SRAVEN,
        AMBIGUITY,
        CODES_FUZZY,
        SIGNS,
        CODES_SRAVEN,
        CODES_DEPTH,
        DEMO,
        DEMO_CODES,
    )
}

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Figure", "Point", "Row", "Verdict"]
