"""What a run has learned: the models of a run folder."""

from pathlib import Path

from hyla.errors import bad_value
from hyla.layers import replace_parameter
from hyla.model import Transformer, build
from hyla.train.checkpoint import load, paths, step_of
from hyla.train.config import RunConfig
from hyla.train.runs import CHECKPOINTS, CONFIG, read_config


def load_run(path: Path | str, step: int | None = None) -> tuple[RunConfig, Transformer]:
    """The configuration of a run and its members, stacked, as they are in its newest checkpoint.

    step: of an older checkpoint that is still there. A damaged one is refused.
    `hyla.member(population, m)` is member m by itself, an ordinary model.
    """
    path = Path(path)
    if not (path / CONFIG).is_file():
        raise bad_value(str(path), f"one without {CONFIG}", "the folder of a run")
    config = RunConfig.from_dict(read_config(path)[0])
    there = {step_of(file): file for file in paths(path / CHECKPOINTS)}
    chosen = max(there, default=None) if step is None else step
    if chosen is None or chosen not in there:
        steps = ", ".join(map(str, there)) or "none"
        expected = "a run with a checkpoint" if step is None else f"one with that of step {step}"
        raise bad_value(str(path), f"checkpoints of these steps: {steps}", expected)
    found = load(there[chosen])
    population = build(config.model, seed=0)
    for name, _ in list(population.named_parameters()):
        replace_parameter(population, name, found.tensors[f"parameters.{name}"], True)
    return config, population
