"""What a run is: a task, a model, the members of the population and how they are trained."""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any, ClassVar, Self

from hyla.config import Config
from hyla.errors import bad_value, unknown_name
from hyla.model import ModelConfig
from hyla.tasks.base import AS_DESCRIBED, Recipe, TaskConfig, task_class

SCHEDULES = ("cosine", "early_cosine")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp64")


@dataclass(frozen=True)
class Member(Config):
    """What may differ between the members of a population.

    seed: of the initialisation, the data and, unless the task has a `split_seed`, the splits.
    """

    seed: int = 0
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    warmup: int = 1000

    def __post_init__(self) -> None:
        self._check_types()
        self._check_at_least(0, "warmup")
        if not 0 <= self.seed < 2**63:
            raise bad_value("seed", self.seed, "a whole number from 0 to 2^63 - 1")
        for name in ("learning_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise bad_value(name, getattr(self, name), "a finite number of at least 0")


def grid(
    seeds: Iterable[int],
    learning_rates: Iterable[float],
    weight_decays: Iterable[float],
    warmups: Iterable[int],
) -> tuple[Member, ...]:
    """All combinations, the seeds of a combination side by side.

    >>> len(grid(range(3), [3e-4, 1e-3], [0.1, 0.3], [1000]))
    12
    """
    settings = product(learning_rates, weight_decays, warmups, seeds)
    return tuple(
        Member(seed, float(rate), float(decay), warmup) for rate, decay, warmup, seed in settings
    )


@dataclass(frozen=True)
class RunConfig(Config):
    """A run: everything that decides its numbers, on a given device.

    steps: length of the schedule; to see the beginning of a long one, stop early instead.
    batch: sequences of each member in a step.
    precision: of matrix products (`tf32`, `fp16`, `bf16`), or of everything (`fp32`, `fp64`).
    decay_head_biases: apply weight decay to the biases of queries, keys and values too, as in the
        published code; the paper exempts all biases and LayerNorms.
    schedule: `cosine` falls to a tenth of the peak at the last step; `early_cosine`, as in the
        published code, reaches it as many steps earlier as the warm-up has.
    log_every: steps between two records of training loss and norms.
    evaluate_every: steps between two interim evaluations; 0 for none.
    interim_instances: instances of each split in an interim evaluation.
    evaluation_instances: instances of each split in the evaluation at the end.
    splits: what to evaluate on.
    """

    task: TaskConfig
    model: ModelConfig
    members: tuple[Member, ...]
    steps: int
    batch: int = 128
    precision: str = "fp32"
    decay_head_biases: bool = False
    schedule: str = "cosine"
    log_every: int = 100
    evaluate_every: int = 0
    interim_instances: int = 5120
    evaluation_instances: int = 51_200
    splits: tuple[str, ...] = ("train", "held_out")

    choices: ClassVar[dict[str, Collection[str]]] = {
        "precision": PRECISIONS,
        "schedule": SCHEDULES,
    }

    def __post_init__(self) -> None:
        self._check_types()
        self._check_parts()
        self._check_at_least(1, "steps", "batch", "log_every", "interim_instances")
        self._check_at_least(1, "evaluation_instances")
        self._check_at_least(0, "evaluate_every")
        self._check_choices()
        for member in self.members:
            if member.warmup >= self.steps:
                raise bad_value("warmup", member.warmup, f"less than the {self.steps} steps")
            if self.schedule == "early_cosine" and 2 * member.warmup >= self.steps:
                expected = f"less than half of the {self.steps} steps, for an early cosine"
                raise bad_value("warmup", member.warmup, expected)
        if not self.splits:
            raise bad_value("splits", "none", "at least one split")
        if len(set(self.splits)) < len(self.splits):
            raise bad_value("splits", ", ".join(self.splits), "each split once")
        if "train" not in self.task.splits:
            given = f"only {', '.join(self.task.splits)} with these settings"
            raise bad_value("task", given, "a task with a split 'train'")
        for split in self.splits:
            if split not in self.task.splits:
                raise unknown_name("splits", split, self.task.splits)
        self._check_model()

    def _check_parts(self) -> None:
        if not isinstance(self.task, TaskConfig) or not self.task.task_name:
            raise bad_value("task", repr(self.task), "the configuration of a registered task")
        for name, kind in (("members", Member), ("splits", str)):
            parts = getattr(self, name)
            if not isinstance(parts, tuple) or not all(isinstance(part, kind) for part in parts):
                raise bad_value(name, repr(parts), f"a tuple of {kind.__name__}")
        if not self.members:
            raise bad_value("members", "none", "at least one member")

    def _check_model(self) -> None:
        for name, size in self.task.model_sizes.items():
            if getattr(self.model, name) != size:
                given = getattr(self.model, name)
                raise bad_value(f"model.{name}", given, f"{size} for this {self.task_name} task")

    @property
    def task_name(self) -> str:
        """The registered name of the task."""
        return self.task.task_name

    @property
    def scales_loss(self) -> bool:
        """Whether the loss has a scale, so that gradients of 16 bits are neither infinite nor 0."""
        return self.precision == "fp16"

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain JSON values, defaults written out."""
        values = asdict(self)
        values["task"] = {"name": self.task_name} | values["task"]
        return values | {"members": list(values["members"]), "splits": list(self.splits)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; a field that is not given takes its default."""
        values = dict(values)
        if isinstance(values.get("task"), dict):
            task = dict(values["task"])
            values["task"] = task_class(task.pop("name", "")).from_dict(task)
        if isinstance(values.get("model"), dict):
            values["model"] = ModelConfig.from_dict(values["model"])
        if isinstance(values.get("members"), list):
            values["members"] = tuple(
                Member.from_dict(member) if isinstance(member, dict) else member
                for member in values["members"]
            )
        if isinstance(values.get("splits"), list):
            values["splits"] = tuple(values["splits"])
        return super().from_dict(values)


def task_run(
    task: TaskConfig | str,
    members: tuple[Member, ...] = (),
    *,
    preset: str = AS_DESCRIBED,
    **changes: Any,
) -> RunConfig:
    """Return the usual training of a task, with the fields of `RunConfig` that are to differ.

    task: its settings, or its name. members: one with the recipe's hyperparameters by default.

    >>> task_run("sraven").steps, task_run("sraven", steps=1200, batch=32).batch
    (156250, 32)
    """
    task = task_class(task)() if isinstance(task, str) else task
    if preset not in task.presets:
        raise unknown_name("preset", preset, task.presets)
    recipe = task.recipe()
    if not members:
        members = (Member(0, recipe.learning_rate, recipe.weight_decay, recipe.warmup),)
    shared = {field.name for field in fields(Recipe)} & {field.name for field in fields(RunConfig)}
    values: dict[str, Any] = {name: getattr(recipe, name) for name in shared}
    values["steps"] = recipe.steps_of(changes.get("batch", recipe.batch))
    run = RunConfig(**(values | {"task": task, "members": members} | changes))
    prepared: RunConfig = task.presets[preset](run)
    return prepared
