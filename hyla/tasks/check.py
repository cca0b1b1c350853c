"""Find out what a task does wrong, in words."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from hyla.layers import stack
from hyla.model import Transformer, build
from hyla.tasks.base import COUNT, Tally, Task, TaskConfig, predict

SEEDS = (3, 5)
INSTANCES = 7


class TaskError(AssertionError):
    """A task breaks a rule of the seam. problems: what it breaks, in words."""

    def __init__(self, name: str, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(f"{name}:\n- " + "\n- ".join(problems))


def check(config: TaskConfig) -> None:
    """Raise `TaskError` if a task is not what training and evaluation need.

    Instances must be functions of their address alone, a member of a population what it is alone,
    the step one graph without reading numbers back, shapes and measures as declared.

    >>> from hyla.tasks.recall import RecallConfig
    >>> check(RecallConfig(vocabulary=32, pairs=4, length=19))
    """
    problems = list(_problems(config))
    if problems:
        raise TaskError(config.task_name or type(config).__name__, problems)


def _problems(config: TaskConfig) -> Iterator[str]:
    if not config.task_name:
        yield "it has no name: decorate its configuration with @register_task(name)"
    for need in (config.headline, "train"):
        if need not in config.splits:
            yield f"splits: there is no {need!r}, only {', '.join(config.splits)}"
            return
    if not any(split.selects for split in config.splits.values()):
        yield "splits: none has selects=True, so hyperparameters cannot be chosen"
    index = torch.arange(INSTANCES)
    alone, together = config.bind(SEEDS[0]), config.bind(list(SEEDS))
    for source in dict.fromkeys(split.source for split in config.splits.values()):
        yield from _impure(alone, together, source, index)
    model = build(config.recipe().model, seed=0)
    for name, size in config.model_sizes.items():
        if getattr(model.config, name) != size:
            yield f"recipe: the model's {name} is {getattr(model.config, name)}, not {size}"
            return
    yield from _wrong_step(config, together, model, index)


def _tensors(batch: Any) -> dict[str, Tensor]:
    return {
        one.name: value
        for one in fields(batch)
        if isinstance(value := getattr(batch, one.name), Tensor)
    }


def _impure(alone: Task, together: Task, source: str, index: Tensor) -> Iterator[str]:
    whole = _tensors(alone.batch(source, index))
    again = _tensors(alone.batch(source, index))
    part = _tensors(alone.batch(source, index[2:5]))
    members = _tensors(together.batch(source, index))
    where = f"batch of source {source!r}"
    if not whole:
        yield f"{where}: it holds no tensors; it must be a dataclass of tensors"
    for name, value in whole.items():
        if len(value) != len(index):
            yield f"{where}: {name} has shape {list(value.shape)}, not instances first"
        elif not value.equal(again[name]):
            yield f"{where}: {name} differs when it is made again, so it is not pure"
        elif not value[2:5].equal(part[name]):
            yield f"{where}: {name} of an instance depends on the others of its batch"
        elif members[name].shape[:1] != (len(SEEDS),) or not members[name][0].equal(value):
            yield f"{where}: {name} of a member of a population is not what it is alone"


def _wrong_step(config: TaskConfig, task: Task, model: Transformer, index: Tensor) -> Iterator[str]:
    population, tally = stack([model, model]), Tally(task)
    shape = (len(SEEDS), len(index))

    def step(index: Tensor) -> tuple[Tensor, Tensor]:
        batch = task.batch("train", index)
        outputs = task.outputs(predict(population), batch)
        return task.loss(outputs, batch), tally(outputs, batch)

    loss, sums = step(index)
    if loss.shape != shape[:1]:
        yield f"loss: expected one for each member, {list(shape[:1])}, got {list(loss.shape)}"
        return
    if not loss.isfinite().all():
        yield "loss: it is not finite for a model that is not trained"
    if not loss.requires_grad:
        yield "loss: it has no gradient"
    if sums.shape != (*shape, len(tally.names)):
        expected = [*shape, len(task.sum_names)]
        got = [*sums.shape[:-1], sums.shape[-1] - len(tally.names) + len(task.sum_names)]
        yield f"tally: expected {expected}, by sum_names, got {got}"
        return
    if sums.dtype != torch.float64:
        yield f"tally: expected float64, got {sums.dtype}"
    values = sums.detach()[0].sum(dim=0).tolist()
    measured = tally.measures(values)
    for name in ("loss", *(one.name for one in config.measures)):
        if name not in measured:
            yield f"measure: {name!r} is missing; it gives {', '.join(measured)}"
    twice = tally.measures([2 * value for value in values])
    for name, value in measured.items():
        if isinstance(value, float) and abs(twice[name] - value) > 1e-9 * max(1, abs(value)):
            yield f"measure: {name!r} is not a mean: divide sums by the sum {COUNT!r} or another"
    yield from _not_one_graph(step, index)


def _not_one_graph(step: Callable[[Tensor], Any], index: Tensor) -> Iterator[str]:
    torch.compiler.reset()
    try:
        torch.compile(step, fullgraph=True, backend="eager")(index)
    except Exception as error:  # whatever the compiler finds
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        yield f"the step is not one graph, or reads numbers back: {lines[0] if lines else error!r}"
    finally:
        torch.compiler.reset()
