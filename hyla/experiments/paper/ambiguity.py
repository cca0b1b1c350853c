"""Table 2 and figure 15: ambiguity, ceilings and numbers of tasks, from the exact solver."""

from hyla.experiments.paper.baselines import AMBIGUOUS, POSSIBLE, TASKS, ambiguity
from hyla.experiments.spec import Analysis, Claim, Experiment, Figure, Point, at_most
from hyla.tasks.sraven import SravenConfig

# Percent of ambiguous instances in the paper, by (features, values).
PAPER = {(4, 4): (6.42, 0.38), (4, 8): (0.32, 0.09), (4, 16): (0.05, 0.03)}
SETTINGS = ((2, 8), (3, 8), (4, 4), (4, 8), (4, 16), (5, 8))
INSTANCES = {(4, 8): 2**20}  # the paper's setting, in which ambiguity is rare; else 2^18
PAPER_LIMIT = 0.5  # percent: "less than half a percent of the problem instances"


def settings_of(features: int, values: int) -> dict[str, int]:
    """How many instances are solved."""
    return {"instances": INSTANCES.get((features, values), 2**18)}


AMBIGUITY_EXPERIMENT = Experiment(
    name="ambiguity",
    title="SRAVEN: ambiguity and ceilings, from the exact solver",
    where="table 2 and figure 15",
    question="How many instances have several answers, and how many can be solved at most?",
    points=lambda: [
        Point(
            {"features": features, "values": values},
            analyses=(Analysis("ambiguity", "task", settings_of(features, values), ambiguity),),
            paper=PAPER.get((features, values)),
            task=SravenConfig(features=features, values=values),
        )
        for features, values in SETTINGS
    ],
    axes=("features", "values"),
    figures=(
        Figure(
            "measures",
            "Ambiguous instances and ceilings in percent (held-out: for whom all combinations are "
            "possible); numbers of tasks and instances",
            x="features",
            y="values",
        ),
        Figure("lines", "Number of tasks", "features", TASKS, "values", percent=False),
        Figure("lines", "Number of instances", "features", POSSIBLE, "values", percent=False),
    ),
    claims=(
        Claim(
            "Less than half a percent of the instances is ambiguous",
            (at_most(PAPER_LIMIT, {"features": 4, "values": 8}, AMBIGUOUS),),
        ),
    ),
)
