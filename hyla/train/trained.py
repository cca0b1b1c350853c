"""What a run has learned: the models of a run folder."""

from pathlib import Path

from hyla.errors import bad_value
from hyla.layers import replace_parameter
from hyla.model import Transformer, build
from hyla.train.checkpoint import latest
from hyla.train.config import RunConfig
from hyla.train.runs import CHECKPOINTS, read_config


def load_run(path: Path | str) -> tuple[RunConfig, Transformer]:
    """The configuration of a run and its members, stacked, as in its newest whole checkpoint.

    `hyla.member(population, m)` is member m by itself, an ordinary model.
    """
    path = Path(path)
    config = RunConfig.from_dict(read_config(path)[0])
    found, problems = latest(path / CHECKPOINTS)
    if found is None:
        raise bad_value(str(path), " ".join(problems) or "none", "a run with a whole checkpoint")
    population = build(config.model, seed=0)
    for name, _ in list(population.named_parameters()):
        replace_parameter(population, name, found.tensors[f"parameters.{name}"], True)
    return config, population
