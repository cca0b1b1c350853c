"""Table 1: 13 models, both tasks."""

from dataclasses import replace

from hyla.attention.variants import KINDS
from hyla.experiments.paper import baselines
from hyla.experiments.paper.runs import FUZZY_GRID, SRAVEN_GRID, fuzzy_logic_run, sraven_run
from hyla.experiments.spec import Analysis, Claim, Contrast, Experiment, Figure, Point, above

SOLVER = Analysis("solver", "data", {"instances": 16_384}, baselines.solver)
FUZZY, SRAVEN = "fuzzy logic", "SRAVEN"

# Kind, feed-forward layer; the paper's mean and standard error for fuzzy logic and SRAVEN.
ROWS = {
    ("softmax", "mlp"): ((63.28, 2.31), (56.56, 1.05)),
    ("linear", "mlp"): ((59.89, 5.22), (56.30, 1.11)),
    ("hyla", "mlp"): ((81.13, 7.77), (69.13, 1.90)),
    ("linear+rms_head", "mlp"): ((68.93, 5.10), (59.01, 2.50)),
    ("linear+rms_head+nonlinear_value", "mlp"): ((56.91, 4.25), (55.38, 0.32)),
    ("hyla-rms_head", "mlp"): ((81.27, 7.88), (62.53, 5.73)),
    ("hyla-nonlinearity", "mlp"): ((84.54, 5.32), (56.54, 0.21)),
    ("hyla-nonlinearity-rms_head", "mlp"): ((79.42, 7.43), (56.33, 1.41)),
    ("hyla-rms_head+softmax", "mlp"): ((70.98, 7.08), (38.21, 2.98)),
    ("hyla+deep", "mlp"): ((87.65, 4.54), (66.59, 0.08)),
    ("softmax", "moe"): ((63.83, 6.07), (57.68, 1.31)),
    ("linear", "moe"): ((60.09, 6.16), (64.34, 4.30)),
    ("hyla", "moe"): ((82.37, 6.55), (66.94, 3.94)),
}


def title(kind: str, feed_forward: str = "mlp") -> str:
    """The name of a row, as in the paper.

    >>> title("hyla", "moe")
    'HYLA + MoE'
    """
    return KINDS[kind].title + (" + MoE" if feed_forward == "moe" else "")


SOFTMAX, LINEAR, HYLA = (title(kind) for kind in ("softmax", "linear", "hyla"))


def points() -> list[Point]:
    """Fuzzy logic first: it is the faster column."""
    found = []
    for task in (FUZZY, SRAVEN):
        for (kind, feed_forward), papers in ROWS.items():
            fuzzy = task == FUZZY
            run = (
                fuzzy_logic_run(FUZZY_GRID, kind=kind)
                if fuzzy
                else sraven_run(SRAVEN_GRID, kind=kind)
            )
            config = replace(run, model=replace(run.model, feed_forward=feed_forward))
            axes = {"row": title(kind, feed_forward), "task": task}
            found.append(Point(axes, config, () if fuzzy else (SOLVER,), papers[not fuzzy]))
    return found


def better(*pairs: tuple[str, str]) -> tuple[Contrast, ...]:
    """The first row of each pair above the second, on both tasks."""
    return tuple(
        above({"row": a, "task": task}, {"row": b, "task": task})
        for task in (FUZZY, SRAVEN)
        for a, b in pairs
    )


ABLATION = Experiment(
    name="ablation",
    title="Ablations",
    where="table 1",
    question="Which parts of HYLA matter, on both tasks?",
    points=points,
    axes=("row", "task"),
    figures=(
        Figure("table", "Held-out R2 (fuzzy logic) and accuracy (SRAVEN), percent", "row", "task"),
        Figure(
            "rules",
            "SRAVEN: held-out accuracy over the instances that contain a rule",
            y="accuracy_by_rule",
            colour="row",
            where={"task": SRAVEN},
            ceiling=True,
        ),
    ),
    claims=(
        Claim(
            "HYLA generalises better than softmax and linear attention to held-out compositions, "
            "on both tasks",
            better((HYLA, SOFTMAX), (HYLA, LINEAR)),
        ),
        Claim(
            "RMSHead and the nonlinearity are needed in combination",
            better((HYLA, title("hyla-rms_head")), (HYLA, title("hyla-nonlinearity"))),
        ),
        Claim(
            "The full HYLA model generally performs best (against the ablations said to help)",
            better((HYLA, title("linear+rms_head")), (HYLA, title("hyla-nonlinearity"))),
        ),
        Claim(
            "RMSHead, alone or with weighted output projections, helps linear attention",
            better((title("linear+rms_head"), LINEAR), (title("hyla-nonlinearity"), LINEAR)),
        ),
        Claim(
            "A deeper value network generalises strongly too (above softmax and linear attention)",
            better((title("hyla+deep"), SOFTMAX), (title("hyla+deep"), LINEAR)),
        ),
        Claim(
            "With softmax in the place of RMSHead HYLA does poorly",
            better((HYLA, title("hyla-rms_head+softmax"))),
        ),
        Claim(
            "A mixture of experts gives moderate general improvements",
            better(*((title(kind, "moe"), title(kind)) for kind in ("softmax", "linear", "hyla"))),
        ),
    ),
    tiny={"row": (SOFTMAX, HYLA, title("hyla", "moe"))},
    note="The paper does not give the number of experts of its MoE rows; here 4, of which a token "
    "takes 2.",
)
