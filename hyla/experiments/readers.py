"""What instances give away without a trained model: yardsticks for those that are."""

from collections.abc import Sequence

from torch import Tensor

from hyla.experiments.declare import (
    HELD_OUT,
    IN_DISTRIBUTION,
    SEEDS,
    UNKNOWN,
    Experiment,
    Figure,
    Point,
    Row,
)
from hyla.experiments.fuzzy import EXAMPLES, HELD_OUT_FRACTIONS, r2_over_examples
from hyla.experiments.rows import BY_RULE, SPLIT_OF, FinishedRun, paper_values, spread
from hyla.experiments.sraven import FEATURE_NUMBERS
from hyla.tasks import sraven_readers
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.fuzzy_readers import READERS, explained
from hyla.tasks.sraven import RULES, Sraven, SravenConfig
from hyla.train.population import FIRST_EVALUATION_INSTANCE

# Of each seed and split; at the paper's scale those on which models are evaluated.
INSTANCES = {"paper": 16_000, "small": 512, "smoke": 64}
SRAVEN_INSTANCES = {"paper": 51_200, "small": 2048, "smoke": 64}


def points() -> list[Point]:
    """Every reader at the places of the paper's figure."""
    return [
        Point({"reader": reader, "examples": examples, "held_out": fraction}, None)
        for fraction in HELD_OUT_FRACTIONS
        for examples in EXAMPLES
        for reader in READERS
    ]


def read(point: Point, runs: Sequence[FinishedRun], scale: str) -> list[Row]:
    """One row, with the measures and seeds that trained models have."""
    axes, number = point.axes, INSTANCES[scale]
    config = FuzzyLogicConfig(examples=axes["examples"], held_out=axes["held_out"])
    instances = range(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + number)

    def percent(split: str, seed: int) -> float:
        return 100 * float(
            explained(axes["reader"], config, split, instances, seed).double().mean()
        )

    measures = {
        name: spread([percent(SPLIT_OF[name], seed) for seed in SEEDS])
        for name in (HELD_OUT, IN_DISTRIBUTION, UNKNOWN)
    }
    row = {**axes, **measures[HELD_OUT], **paper_values(point), "measures": measures}
    return [row | {"instances": number}]


READERS_EXPERIMENT = Experiment(
    name="readers",
    title="Fuzzy logic: what the context gives away without a trained model",
    where="nothing; beside figures 2C and 9",
    points=points,
    make=read,
    axes=("reader", "examples", "held_out"),
    figures=r2_over_examples("reader"),
    smoke={"examples": (16,), "held_out": (0.3, 0.7)},
    note="Regression knows nothing of terms; the other readers answer with the function that fits "
    "the context best, among those of training, of all combinations of known terms, or of all "
    "terms.",
)


def sraven_points() -> list[Point]:
    """Every reader at the places of figure 5D."""
    return [
        Point({"reader": reader, "features": features}, None)
        for features in FEATURE_NUMBERS
        for reader in sraven_readers.READERS
    ]


def read_sraven(point: Point, runs: Sequence[FinishedRun], scale: str) -> list[Row]:
    """One row, with the measures and seeds that trained models have."""
    axes, number = point.axes, SRAVEN_INSTANCES[scale]
    config = SravenConfig(features=axes["features"])
    instances = range(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + number)
    whole: dict[str, list[float]] = {HELD_OUT: [], IN_DISTRIBUTION: []}
    by_rule: list[dict[str, float | None]] = []
    for seed in SEEDS:
        for name, values in whole.items():
            batch = Sraven(config, seed).batch(SPLIT_OF[name], instances)
            answers = sraven_readers.read(axes["reader"], batch.panels, config)
            right_BK = answers.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
            values.append(100 * float(right_BK.prod(dim=-1).mean()))
            if name == HELD_OUT:
                by_rule.append(_percent_by_rule(right_BK, batch.target_rules))
    measures = {name: spread(values) for name, values in whole.items()}
    features = {rule: spread([one[rule] for one in by_rule]) for rule in RULES}
    row = {**axes, **measures[HELD_OUT], **paper_values(point), "measures": measures}
    return [row | {BY_RULE[1]: features, "instances": number}]


def _percent_by_rule(right_BK: Tensor, rules_BK: Tensor) -> dict[str, float | None]:
    """Of the features that each rule governs; None if there are none."""
    found = {}
    for rule, name in enumerate(RULES):
        there = right_BK[rules_BK == rule]
        found[name] = 100 * float(there.mean()) if len(there) else None
    return found


READERS_SRAVEN = Experiment(
    name="readers-sraven",
    title="SRAVEN: what is solved by who sees less than the exact solver",
    where="nothing; beside table 1 and figure 5D",
    points=sraven_points,
    make=read_sraven,
    axes=("reader", "features"),
    figures=tuple(
        Figure("lines", title, "features", measure, "reader")
        for measure, title in (
            (HELD_OUT, "Held-out accuracy"),
            (IN_DISTRIBUTION, "Accuracy on combinations of training"),
        )
    ),
    smoke={"features": (2, 3)},
    note="; ".join(f"{name}: {what}" for name, what in sraven_readers.READERS.items())
    + ". All but the exact ones find each answer by itself, so that a slot of another column may "
    "serve several.",
)
