"""Score any model on a task: a module, or a function from inputs to outputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hyla.errors import bad_value, unknown_name
from hyla.model import Transformer
from hyla.tasks.base import Metric, Tally, TaskConfig, predict, predict_with, task_class

REFERENCES = "references"  # in the result of a split: ceilings and baselines


@torch.no_grad()
def evaluate(
    model: Callable[[Tensor], Tensor],
    task: TaskConfig | str,
    *,
    seed: int = 0,
    splits: Sequence[str] | None = None,
    instances: int = 5120,
    batch: int = 512,
    device: torch.device | str | None = None,
    metrics: Mapping[str, Metric] | None = None,
    references: bool = True,
) -> dict[str, dict[str, Any]]:
    """Measure a model on the splits of a task, on instances that no training reaches.

    model: takes `batch(...).inputs` or tokens, `[batch, tokens, ...]`, and returns the outputs of
        all tokens, `[batch, tokens, size]`. A module is set to eval mode meanwhile.
    task: its settings, or its name. seed: of the data, as in training.
    metrics: more functions of outputs and batch to one number an instance, by name.
    references: measure ceilings and baselines too, under the key "references".

    >>> import hyla
    >>> found = hyla.evaluate(hyla.load("sraven-hyla"), "sraven", splits=["held_out"], instances=64)
    >>> sorted(found["held_out"]["references"])
    ['exact', 'no sign', 'slot by slot']
    """
    config = task_class(task)() if isinstance(task, str) else task
    for name, value in (("instances", instances), ("batch", batch)):
        if value < 1:
            raise bad_value(name, value, "a whole number of at least 1")
    chosen = list(config.splits) if splits is None else list(splits)
    for split in chosen:
        if split not in config.splits:
            raise unknown_name("splits", split, config.splits)
    bound = config.bind(seed, device)
    tally = Tally(bound, dict(metrics or {}))
    training = isinstance(model, nn.Module) and model.training
    if isinstance(model, nn.Module):
        model.eval()
    seen = predict(model) if isinstance(model, Transformer) else predict_with(model)
    found: dict[str, dict[str, Any]] = {}
    try:
        for split in chosen:
            first, source = config.splits[split].first, config.splits[split].source
            index = torch.arange(first, first + instances, device=bound.seed.device)
            sums = torch.zeros(len(tally.names), dtype=torch.float64, device=index.device)
            for part in index.split(batch):
                instance = bound.batch(source, part)
                sums += tally(bound.outputs(seen, instance), instance).sum(dim=0)
            found[split] = tally.measures(sums.tolist())
            if references and (others := bound.references(source, index)):
                found[split][REFERENCES] = others
    finally:
        if isinstance(model, nn.Module):
            model.train(training)
    return found
