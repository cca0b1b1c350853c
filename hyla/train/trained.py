"""What a run has learned: the models of a run folder."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hyla.errors import bad_value
from hyla.files import new_file, read_object, to_json
from hyla.layers import replace_parameter
from hyla.model import Transformer, build
from hyla.train.checkpoint import Checkpoint, load, paths, save, step_of
from hyla.train.config import RunConfig
from hyla.train.runs import CHECKPOINTS, CONFIG, METRICS, METRICS_BYTES, SUMMARY, read_config

PARAMETERS = "parameters."  # before their names in a checkpoint
ORIGIN = "origin"  # in the summary of a folder that keeps some members: where they come from


def load_run(path: Path | str, step: int | None = None) -> tuple[RunConfig, Transformer]:
    """The configuration of a run and its members, stacked, as they are in its newest checkpoint.

    step: of an older checkpoint that is still there. A damaged one is refused.
    `hyla.member(population, m)` is member m by itself, an ordinary model.
    """
    config, found = _read(Path(path), step)
    population = build(config.model, seed=0)
    for name, _ in list(population.named_parameters()):
        replace_parameter(population, name, found.tensors[PARAMETERS + name], True)
    return config, population


def keep_members(path: Path, members: Sequence[int], target: Path, origin: dict[str, Any]) -> None:
    """Copies what some members of a finished run have learned into a small run folder of its own.

    All that reads run folders reads it: their configuration, summary and parameters are there, but
    neither metrics nor what would be needed to train on. A folder that is there is replaced.

    origin: what the summary shall say of where they come from.
    """
    config, found = _read(path, None)
    environment, summary = read_config(path)[1], read_object(path / SUMMARY)
    kept = replace(config, members=tuple(config.members[m] for m in members))
    parameters = {n: x[list(members)] for n, x in found.tensors.items() if n.startswith(PARAMETERS)}
    summary["members"] = [summary["members"][m] | {"member": i} for i, m in enumerate(members)]
    summary[ORIGIN] = origin
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".", dir=target.parent) as place:
        folder = Path(place, target.name)
        (folder / CHECKPOINTS).mkdir(parents=True)
        (folder / METRICS).touch()
        save(folder / CHECKPOINTS, found.step, parameters, {METRICS_BYTES: 0})
        _write(folder / SUMMARY, summary)
        _write(folder / CONFIG, {"config": kept.to_dict(), "environment": environment})
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)


def _write(path: Path, values: dict[str, Any]) -> None:
    with new_file(path, overwrite=True) as handle:
        handle.write((to_json(values, indent=2) + "\n").encode())


def _read(path: Path, step: int | None) -> tuple[RunConfig, Checkpoint]:
    if not (path / CONFIG).is_file():
        given = f"one without {CONFIG}" if path.exists() else "nothing there"
        raise bad_value(str(path), given, "the folder of a run")
    config = RunConfig.from_dict(read_config(path)[0])
    there = {step_of(file): file for file in paths(path / CHECKPOINTS)}
    chosen = max(there, default=None) if step is None else step
    if chosen is None or chosen not in there:
        steps = ", ".join(map(str, there)) or "none"
        expected = "a run with a checkpoint" if step is None else f"one with that of step {step}"
        raise bad_value(str(path), f"checkpoints of these steps: {steps}", expected)
    return config, load(there[chosen])
