"""The seam for tasks: everything that training, analysis, report and commands know about a task.

A `TaskConfig` holds the settings and says what is measured on which splits; `bind` makes the `Task`
that draws instances by address under the seeds of a population. To add a task, write these two
classes and register the first: docs/tasks.md.

Shapes: M members (no axis for a single seed), B instances of a batch, S sums.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from hyla.config import Config
from hyla.errors import bad_value, unknown_name
from hyla.model import ModelConfig, Transformer

# Evaluation takes instances that no training reaches, the same for every length of training.
FIRST_EVALUATION_INSTANCE, FIRST_VALIDATION_INSTANCE = 2**40, 2**41
VALIDATION = "validation"
COUNT = "instances"  # the sum that counts instances; every task has it
AS_DESCRIBED = "as_described"

Preset = Callable[[Any], Any]  # from a `RunConfig` to the one that a preset trains
Metric = Callable[[Tensor, Any], Tensor]  # outputs and batch to one number an instance, `[M, B]`


@dataclass(frozen=True)
class Split:
    """Instances to evaluate on: those of a source of `Task.batch` from a number on.

    title: the name in tables and figures. selects: hyperparameters are chosen by its loss.
    """

    source: str
    title: str = ""
    first: int = FIRST_EVALUATION_INSTANCE
    selects: bool = False


@dataclass(frozen=True)
class Measure:
    """A number that rows and figures show. title: appended to the title of the split."""

    name: str
    title: str = ""
    higher_is_better: bool = True
    percent: bool = True


@dataclass(frozen=True)
class Recipe:
    """How a task is trained by default; the fields are those of a run.

    instances: decides the number of steps, whatever the batch, instead of `steps`.
    """

    model: ModelConfig
    steps: int = 0
    instances: int = 0
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    warmup: int = 1000
    evaluate_every: int = 0
    interim_instances: int = 5120
    evaluation_instances: int = 51_200
    splits: tuple[str, ...] = ("train", "held_out")

    def steps_of(self, batch: int) -> int:
        """Return the number of steps with batches of this size."""
        return -(-self.instances // batch) if self.instances else self.steps


@dataclass(frozen=True)
class Label:
    """What is known about the instances of latent codes: numbers, their names, and their uses.

    values: the first axis is that of the instances. names: of the values 0, 1, 2 ...
    uses: "decode" it from the codes, "explain" their variance by it, "colour" a map with it.
    """

    values: Any
    names: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Probe:
    """A batch and the pairs of tokens whose codes are collected.

    query: the token that attends. keys: tokens, the same for all instances, or `[B, N]`; the codes
    of several keys are put side by side.
    """

    batch: Any
    query: int = -1
    keys: Sequence[int] | Tensor = (-1,)


class Predict(Protocol):
    """A model as a task sees it."""

    def __call__(
        self, inputs: Tensor, *, last: int | None = None, at: Tensor | None = None
    ) -> Tensor:
        """Return the outputs of all tokens, of the last ones, or of those at positions `[N]`."""


def predict(model: Transformer, factors: Tensor | None = None) -> Predict:
    """Return the model as a task sees it: inputs in its precision, outputs of at least float32."""

    def outputs(inputs: Tensor, *, last: int | None = None, at: Tensor | None = None) -> Tensor:
        if inputs.is_floating_point():
            inputs = inputs.to(model.norm.weight.dtype)
        found = model(inputs, last=last, at=at, factors=factors)
        return found.to(torch.promote_types(found.dtype, torch.float32))

    return outputs


def predict_with(function: Callable[[Tensor], Tensor]) -> Predict:
    """Return any function from inputs to the outputs of all tokens as a task sees it."""

    def outputs(inputs: Tensor, *, last: int | None = None, at: Tensor | None = None) -> Tensor:
        found = function(inputs)
        if at is not None:
            found = found.gather(-2, at.unsqueeze(-1).expand(*at.shape, found.shape[-1]))
        return found if last is None else found[..., -last:, :]

    return outputs


@dataclass(frozen=True)
class TaskConfig(Config):
    """The settings of a task; subclasses are frozen dataclasses of plain values.

    task_name: given by `register_task`. measures: what rows show, the first is the main one.
    headline: the split that comparisons are about. introduced: for each setting, the value that all
    stored trainings had before it existed; a setting that is not named here is part of every key.
    presets: ways to train, as functions of a run. map_probe: options of `Task.probe` for the codes
    that are drawn as a map. on_device: whether batches are made by tensor
    operations alone, as `Population` needs them.
    """

    task_name: ClassVar[str] = ""
    measures: ClassVar[tuple[Measure, ...]] = (Measure("loss", higher_is_better=False),)
    metrics: ClassVar[dict[str, Metric]] = {}
    headline: ClassVar[str] = "held_out"
    introduced: ClassVar[Mapping[str, Any]] = {}
    presets: ClassVar[Mapping[str, Preset]] = {AS_DESCRIBED: lambda run: run}
    map_probe: ClassVar[Mapping[str, Any]] = {}
    on_device: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.metrics = {}

    @property
    def tokens(self) -> int:
        """How many tokens an instance has."""
        raise NotImplementedError

    @property
    def model_sizes(self) -> dict[str, Any]:
        """The fields of a `ModelConfig` that the data decides, such as `input_size`."""
        raise NotImplementedError

    @property
    def splits(self) -> Mapping[str, Split]:
        """All splits by name; training takes the source "train"."""
        raise NotImplementedError

    def recipe(self) -> Recipe:
        """Return the usual training of this task."""
        raise NotImplementedError

    def bind(self, seed: int | Sequence[int], device: torch.device | str | None = None) -> "Task":
        """Make the task under a seed, or under the seed of each member of a population."""
        raise NotImplementedError

    @property
    def main_measure(self) -> str:
        """The name of the measure that comparisons are about."""
        return self.measures[0].name

    @property
    def selecting_split(self) -> str:
        """The split by whose loss hyperparameters are chosen."""
        return next(name for name, split in self.splits.items() if split.selects)


class Task(ABC):
    """A task under a seed, or under each seed of a population, on a device.

    `batch`, `outputs`, `loss` and `tally` are captured in one graph: tables are made beforehand,
    nothing waits for the device, shapes do not depend on values.
    """

    config: TaskConfig
    seed: Tensor  # a scalar, or `[M, 1]`
    sum_names: tuple[str, ...]  # of what `tally` returns

    @abstractmethod
    def batch(self, split: str, index: Tensor) -> Any:
        """Return the instances with these numbers `[B]`: a dataclass of tensors `[M, B, ...]`."""

    @abstractmethod
    def outputs(self, model: Predict, batch: Any) -> Tensor:
        """Return what the model says about a batch, `[M, B, ...]`."""

    @abstractmethod
    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return the training loss, `[M]`."""

    @abstractmethod
    def tally(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return what is to be summed over instances, `[M, B, S]` in float64."""

    @abstractmethod
    def measure(self, sums: Mapping[str, float]) -> dict[str, Any]:
        """Turn sums by name into measures, "loss" among them; the sum `COUNT` counts instances."""

    def probe(self, split: str, index: Tensor) -> Probe:
        """Return the instances and tokens whose latent codes are worth looking at.

        Further keyword arguments of a task are its ways to probe, with their defaults.
        """
        return Probe(self.batch(split, index))

    def labels(self, outputs: Tensor, batch: Any) -> dict[str, Label]:
        """Return what is known about the instances of a probe, by name."""
        return {}

    def references(self, split: str, index: Tensor) -> dict[str, dict[str, float]]:
        """Return the measures of ceilings and baselines on instances, by name."""
        return {}


@dataclass(frozen=True)
class Tally:
    """The sums of a task, of its registered metrics and of `more`, as one tensor with names."""

    task: Task
    more: Mapping[str, Metric] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(init=False)
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        metrics = {**self.task.config.metrics, **self.more}
        object.__setattr__(self, "metrics", metrics)
        names = (COUNT, *self.task.sum_names, *metrics)
        if len(set(names)) < len(names):
            raise bad_value("sum_names", ", ".join(names), "every name once")
        object.__setattr__(self, "names", names)

    def __call__(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return all sums of each instance, `[M, B, S]`."""
        tallied = self.task.tally(outputs, batch)
        columns = [torch.ones_like(tallied[..., :1]), tallied]
        columns += [
            metric(outputs, batch).double().unsqueeze(-1) for metric in self.metrics.values()
        ]
        return torch.cat(columns, dim=-1)

    def measures(self, sums: Sequence[float]) -> dict[str, Any]:
        """Turn the sums of one member into its measures."""
        by_name = dict(zip(self.names, sums, strict=True))
        found = self.task.measure(by_name)
        return found | {name: by_name[name] / by_name[COUNT] for name in self.metrics}


# Names of a label's values that keep their order and colour in all figures.
NAMED_VALUES: dict[str, int] = {}

ConfigClass = TypeVar("ConfigClass", bound=type[TaskConfig])
# Tasks of the package are imported when they are needed.
_TASKS: dict[str, type[TaskConfig] | str] = {
    "fuzzy_logic": "hyla.tasks.fuzzy_logic",
    "sraven": "hyla.tasks.sraven",
    "recall": "hyla.tasks.recall",
}


# Commands of tasks, `hyla NAME ...`: the module whose `app` has them, and a help text.
COMMANDS: dict[str, tuple[str, str]] = {
    "sraven": (
        "hyla.tasks.sraven.commands",
        "Symbolic Raven's matrices: show, solve, measure, export.",
    ),
    "fuzzy": ("hyla.tasks.fuzzy_logic.commands", "Fuzzy logic functions to be learned in context."),
}
_SHORT = {"fuzzy_logic": "fuzzy"}  # names that commands have for tasks


def command_names() -> dict[str, str]:
    """Return the registered tasks by the name that commands have for them."""
    return {_SHORT.get(name, name): name for name in _TASKS}


def register_task(name: str) -> Callable[[ConfigClass], ConfigClass]:
    """Make a task known by a name, in configurations, commands and results."""

    def register(config: ConfigClass) -> ConfigClass:
        known = _TASKS.get(name, "")
        ours = isinstance(known, str) and config.__module__.startswith(known)
        again = not isinstance(known, str) and known.__qualname__ == config.__qualname__
        if not ours and not again:
            raise bad_value("name", repr(name), "one that no other task has")
        config.task_name = name
        _TASKS[name] = config
        return config

    return register


def task_names() -> tuple[str, ...]:
    """Return the names of all registered tasks."""
    return tuple(_TASKS)


def task_class(name: str) -> type[TaskConfig]:
    """Return the configuration class of a registered task."""
    if not isinstance(name, str) or name not in _TASKS:
        hint = f"To use a task of your own, import the module with @register_task({name!r}) first."
        raise ValueError(f"{unknown_name('task.name', name, _TASKS)} {hint}")
    found = _TASKS[name]
    if isinstance(found, str):
        import_module(found)
        found = _TASKS[name]
    assert not isinstance(found, str)
    return found


def register_metric(task: str) -> Callable[[Metric], Metric]:
    """Add a metric to a task: a function of outputs and batch, averaged over instances.

    Its name is that of the function. It is measured on every split of every later evaluation.
    """

    def register(metric: Metric) -> Metric:
        task_class(task).metrics[metric.__name__] = metric
        return metric

    return register
