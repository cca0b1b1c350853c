"""The paper's trainings on its two tasks; `dataclasses.replace` changes the rest."""

from dataclasses import replace

from hyla.model import sraven_model
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.sraven import SravenConfig
from hyla.train.config import Member, RunConfig, grid, task_run

FUZZY_GRID = grid([0], [1e-3, 3e-3], [0.03, 0.1], [100])
SRAVEN_GRID = grid([0], [1e-3, 3e-4], [0.1, 0.3], [1000])


def sraven_run(
    members: tuple[Member, ...] = SRAVEN_GRID,
    *,
    kind: str = "hyla",
    layers: int = 4,
    width_factor: int = 1,
    more_heads: bool = True,
    instances: int = 20_000_000,
    batch: int = 128,
    task: SravenConfig | None = None,
) -> RunConfig:
    """Return the paper's training on SRAVEN.

    >>> sraven_run().steps
    156250
    """
    task = task or SravenConfig()
    model = sraven_model(
        kind, layers=layers, width_factor=width_factor, more_heads=more_heads,
        features=task.features, values=task.values,
    )  # fmt: skip
    return task_run(task, members, model=model, steps=-(-instances // batch), batch=batch)


def fuzzy_logic_run(
    members: tuple[Member, ...] = FUZZY_GRID,
    *,
    kind: str = "hyla",
    steps: int = 50_000,
    task: FuzzyLogicConfig | None = None,
) -> RunConfig:
    """Return the paper's training on fuzzy logic.

    >>> fuzzy_logic_run().model.layers
    2
    """
    run = task_run(task or FuzzyLogicConfig(), members, steps=steps)
    return replace(run, model=replace(run.model, kind=kind))
