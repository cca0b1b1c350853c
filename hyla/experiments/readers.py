"""What fuzzy logic instances give away without a trained model: yardsticks for those that are."""

from collections.abc import Sequence

from hyla.experiments.ablation import SEEDS
from hyla.experiments.declare import HELD_OUT, IN_DISTRIBUTION, UNKNOWN, Experiment, Point, Row
from hyla.experiments.fuzzy import EXAMPLES, HELD_OUT_FRACTIONS, r2_over_examples
from hyla.experiments.rows import SPLIT_OF, FinishedRun, paper_values, spread
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.fuzzy_readers import READERS, explained
from hyla.train.population import FIRST_EVALUATION_INSTANCE

# Of each seed and split; at the paper's scale those on which models are evaluated.
INSTANCES = {"paper": 16_000, "small": 512, "smoke": 64}


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
