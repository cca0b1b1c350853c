"""Associative recall: can the nonlinear value network of HYLA make up for linear attention?

The paper says that linear attention, and so perhaps HYLA, is worse at language because it recalls
associations badly. Small models on two CPU cores; not an experiment of the paper.
"""

from dataclasses import replace

from hyla.experiments.spec import Claim, Experiment, Figure, Point, above
from hyla.tasks.recall import RecallConfig
from hyla.train.config import RunConfig, grid, task_run

KINDS = ("softmax", "linear", "hyla", "linear+rms_head")
WIDTHS, PAIRS = (32, 64), (4, 8, 16)
MEASURE = RecallConfig().splits[RecallConfig.headline].title


def run(kind: str, width: int, pairs: int) -> RunConfig:
    """Return the training of one model, on instances that all have as many pairs."""
    task = RecallConfig(vocabulary=64, pairs=pairs, least_pairs=pairs, length=64)
    config = task_run(task, grid([0], [3e-3], [0.1], [100]), steps=2000)
    model = replace(
        config.model, kind=kind, width=width, head_size=width // 8, hidden_size=2 * width,
        positions="t5", buckets=task.length,
    )  # fmt: skip
    return replace(config, model=model, evaluation_instances=1024, interim_instances=256)


RECALL = Experiment(
    name="recall",
    title="Associative recall",
    where="nothing; beside figure 6",
    question="Does the nonlinear value network help where linear attention cannot recall?",
    points=lambda: [
        Point({"kind": kind, "width": width, "pairs": pairs}, run(kind, width, pairs))
        for pairs in PAIRS
        for width in WIDTHS
        for kind in KINDS
    ],
    axes=("kind", "width", "pairs"),
    figures=(Figure("lines", "Accuracy on queries", "pairs", MEASURE, "kind", "width"),),
    claims=(
        Claim(
            "HYLA recalls more than linear attention",
            tuple(
                above(
                    {"kind": "hyla", "width": width, "pairs": PAIRS[-1]},
                    {"kind": "linear", "width": width, "pairs": PAIRS[-1]},
                    MEASURE,
                )
                for width in WIDTHS
            ),
        ),
    ),
    tiny={"width": WIDTHS[:1], "pairs": PAIRS[:1]},
    is_demo=True,
    note="Two layers, 8 heads, vocabulary 64, length 64, 2000 steps of 64 sequences. Every key is "
    "queried once; distances follow a power law.",
)
