"""Baselines that are no models: what instances give away without training."""

from hyla.experiments.paper import baselines
from hyla.experiments.paper.fuzzy import EXAMPLES, HELD_OUT_FRACTIONS, r2_over_examples
from hyla.experiments.paper.sraven import FEATURE_NUMBERS
from hyla.experiments.spec import HELD_OUT, IN_DISTRIBUTION, Analysis, Experiment, Figure, Point
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.fuzzy_logic import baselines as fuzzy_baselines
from hyla.tasks.sraven import SravenConfig
from hyla.tasks.sraven import baselines as sraven_baselines


def fuzzy_reader(reader: str) -> Analysis:
    """A baseline, on as many instances as models are evaluated on."""
    settings = {"reader": reader, "instances": 16_000}
    return Analysis("fuzzy reader", "data", settings, baselines.fuzzy_reader)


def sraven_reader(reader: str) -> Analysis:
    """The same for SRAVEN."""
    settings = {"reader": reader, "instances": 51_200}
    return Analysis("sraven reader", "data", settings, baselines.sraven_reader)


READERS_FUZZY = Experiment(
    name="readers",
    title="Fuzzy logic: what the context gives away without a trained model",
    where="nothing; beside figures 2C and 9",
    question="How much of fuzzy logic can be solved without training?",
    points=lambda: [
        Point(
            {"reader": reader, "examples": examples, "held_out": fraction},
            analyses=(fuzzy_reader(reader),),
            task=FuzzyLogicConfig(examples=examples, held_out=fraction),
        )
        for fraction in HELD_OUT_FRACTIONS
        for examples in EXAMPLES
        for reader in fuzzy_baselines.BASELINES
    ],
    axes=("reader", "examples", "held_out"),
    figures=r2_over_examples("reader"),
    tiny={"examples": (16,), "held_out": (0.3, 0.7)},
    note="Regression knows nothing of terms; the other baselines answer with the function that "
    "fits the context best, among those of training, of all combinations of known terms, or of all "
    "terms.",
)
READERS_SRAVEN = Experiment(
    name="readers-sraven",
    title="SRAVEN: baselines that see less than the exact solver",
    where="nothing; beside table 1 and figure 5D",
    question="How much of SRAVEN can be solved without training?",
    points=lambda: [
        Point(
            {"reader": reader, "features": features},
            analyses=(sraven_reader(reader),),
            task=SravenConfig(features=features),
        )
        for features in FEATURE_NUMBERS
        for reader in sraven_baselines.BASELINES
    ],
    axes=("reader", "features"),
    figures=tuple(
        Figure("lines", title, "features", measure, "reader")
        for measure, title in (
            (HELD_OUT, "Held-out accuracy"),
            (IN_DISTRIBUTION, "Accuracy on combinations of training"),
        )
    ),
    tiny={"features": (2, 3)},
    note="; ".join(f"{name}: {what}" for name, what in sraven_baselines.BASELINES.items())
    + ". All but the exact ones find each answer by itself, so that a slot of another column may "
    "serve several.",
)
