"""Latent codes of models on tasks, of members of a run, of any tokens.

Shapes: B instances of a batch, Q queries, N keys, H heads.
"""

import copy
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hyla.analysis.codes import Codes, attention_codes, to_numpy
from hyla.errors import bad_value, unknown_name
from hyla.model import Transformer, check_single
from hyla.tasks.base import FIRST_EVALUATION_INSTANCE, Probe, Task, TaskConfig, predict
from hyla.train.trained import load_member


def collect(
    model: Transformer,
    task: TaskConfig,
    split: str,
    instances: int | Tensor,
    *,
    seed: int,
    first_instance: int = FIRST_EVALUATION_INSTANCE,
    device: torch.device | str | None = None,
    batch: int = 512,
    **probe: Any,
) -> Codes:
    """Collect the codes that a task probes, for instances of a split under a seed.

    instances: how many, or a tensor of their numbers.
    first_instance: the number of the first one; by default one that no training reaches.
    device: where to compute, on a copy of the model; by default where the model is.
    probe: options of the task's `probe`. Fuzzy logic: `fixed`. SRAVEN: `keys`, `permute`.

    The labels are those of the task, see its `labels`.
    """
    _check(model, instances, batch)
    check_probe(task, probe)
    place = next(model.parameters()).device if device is None else torch.device(device)
    if next(model.parameters()).device != place:
        model = copy.deepcopy(model).to(place)
    bound = task.bind(seed, place)
    if isinstance(instances, int):
        instances = torch.arange(first_instance, first_instance + instances)
    with torch.no_grad():
        parts = [
            _collected(model, bound, bound.probe(split, index.to(place), **probe))
            for index in instances.split(batch)
        ]
    labels = {
        name: np.concatenate([part.labels[name] for part in parts]) for name in parts[0].labels
    }
    codes = np.concatenate([part.codes for part in parts], axis=1)
    return Codes(codes, parts[0].layers, labels, parts[0].names, parts[0].uses)


def check_probe(task: TaskConfig, probe: dict[str, Any]) -> None:
    """Refuse options that the task's `probe` does not have."""
    known = list(signature(type(task.bind(0)).probe).parameters)[3:]  # after self, split, index
    for name in probe:
        if name not in known:
            raise unknown_name(f"probe of {task.task_name}", name, known or ["no options"])


def _collected(model: Transformer, task: Task, probe: Probe) -> Codes:
    """The codes and labels of one batch."""
    seen: list[Tensor] = []

    def watched(inputs: Tensor, *, last: int | None = None, at: Tensor | None = None) -> Tensor:
        seen.append(inputs)
        return predict(model)(inputs, last=last, at=at)

    outputs = task.outputs(watched, probe.batch)
    labels = task.labels(outputs, probe.batch)
    (tokens,) = seen
    tokens = tokens.to(model.norm.weight.dtype) if tokens.is_floating_point() else tokens
    if isinstance(probe.keys, Tensor):
        by_layer = model.latent_codes(tokens, queries=[probe.query])
        index_BN1 = probe.keys.unsqueeze(-1)
        codes = [
            code[:, 0].gather(1, index_BN1.expand(-1, -1, code.shape[-1])).flatten(1)
            for code in by_layer.values()
        ]
    else:
        by_layer = model.latent_codes(tokens, queries=[probe.query], keys=probe.keys)
        codes = [code[:, 0].flatten(1) for code in by_layer.values()]
    return Codes(
        np.stack([to_numpy(code) for code in codes]),
        tuple(by_layer),
        {name: to_numpy(label.values) for name, label in labels.items()},
        {name: label.names for name, label in labels.items() if label.names},
        {name: label.uses for name, label in labels.items()},
    )


def collect_run(
    name_or_path: Path | str,
    member: int,
    split: str,
    instances: int | Tensor,
    *,
    step: int | None = None,
    first_instance: int = FIRST_EVALUATION_INSTANCE,
    device: torch.device | str | None = None,
    batch: int = 512,
    **probe: Any,
) -> Codes:
    """Call `collect` for one member of a run, with the task and the data seed of that member.

    name_or_path: a run folder, or the name of a packaged model.
    step: load the checkpoint of this step instead of the newest one.
    The other arguments are those of `collect`.

    >>> held_out = collect_run("sraven-hyla", 0, "held_out", 100)
    >>> held_out.codes.shape  # layers, instances, heads
    (4, 100, 16)
    """
    config, model = load_member(name_or_path, member, step)
    return collect(
        model, config.task, split, instances, seed=config.members[member].seed,
        first_instance=first_instance, device=device, batch=batch, **probe,
    )  # fmt: skip


def collect_inputs(
    model: Transformer,
    tokens: Tensor,
    queries: Sequence[int] | Tensor = (-1,),
    keys: Sequence[int] | Tensor = (-1,),
) -> Codes:
    """The codes of all pairs of these queries and keys, on any tokens that the model takes.

    Labels: `sequence`, `query` and `key`; the pairs of a sequence follow each other.
    """
    _check(model, len(tokens), 1)
    queries, keys = (x.tolist() if isinstance(x, Tensor) else x for x in (queries, keys))
    with torch.no_grad():
        by_layer = model.latent_codes(tokens, queries=queries, keys=keys)
    positions = [(at % tokens.shape[1], to % tokens.shape[1]) for at in queries for to in keys]
    pairs = [(q, k) for q in range(len(queries)) for k in range(len(keys))]
    found = attention_codes([codes.permute(0, 3, 1, 2) for codes in by_layer.values()], pairs)
    query, key = np.tile(np.array(positions).T, len(tokens))
    labels = {"sequence": found.labels["sequence"], "query": query, "key": key}
    return Codes(found.codes, tuple(by_layer), labels)


def _check(model: Transformer, instances: int | Tensor, batch: int) -> None:
    check_single(model)
    count = instances if isinstance(instances, int) else len(instances)
    for name, value in (("instances", count), ("batch", batch)):
        if value < 1:
            raise bad_value(name, value, "a whole number of at least 1")
