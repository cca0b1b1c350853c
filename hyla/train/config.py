"""What a run is: a task, a model, the members of the population and how they are trained."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Self

from hyla.attention.variants import Kind
from hyla.config import Config
from hyla.errors import bad_value, unknown_name
from hyla.model import ModelConfig, fuzzy_logic_model, sraven_model
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.sraven import SravenConfig

TASKS: dict[str, type[FuzzyLogicConfig] | type[SravenConfig]] = {
    "fuzzy_logic": FuzzyLogicConfig,
    "sraven": SravenConfig,
}
SPLITS: dict[str, tuple[str, ...]] = {
    "fuzzy_logic": ("train", "held_out", "unknown", "validation"),
    "sraven": ("train", "held_out", "all", "validation"),
}
# Tasks of training, with instances that no other evaluation has: to choose hyperparameters by.
VALIDATION = "validation"
MAIN_MEASURES = {"fuzzy_logic": "r2", "sraven": "accuracy"}
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

    steps: of the whole schedule; to look at the beginning of a long one, stop it early instead.
    batch: sequences a step for each member.
    precision: of matrix products (`tf32`; with what is between them `fp16`, `bf16`), or of
        everything (`fp32`, `fp64`). fp16 has the digits of tf32 and about the speed of bf16.
    decay_head_biases: whether weight decay also acts on the biases of queries, keys and values, as
        in the published code; the paper exempts all biases and LayerNorms.
    schedule: `cosine` falls to a tenth of the peak at the last step; `early_cosine`, as in the
        published code, already by as many steps before it as the warm-up has.
    log_every: steps between two records of training loss and norms.
    evaluate_every: steps between two evaluations, on `interim_instances` of each split but
        "validation"; 0: none.
    evaluation_instances: of each split in `splits`, when training ends.
    """

    task: FuzzyLogicConfig | SravenConfig
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

    def __post_init__(self) -> None:
        self._check_types()
        self._check_parts()
        self._check_at_least(1, "steps", "batch", "log_every", "interim_instances")
        self._check_at_least(1, "evaluation_instances")
        self._check_at_least(0, "evaluate_every")
        self._check_choice("precision", PRECISIONS)
        self._check_choice("schedule", SCHEDULES)
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
        allowed = SPLITS[self.task_name]
        if isinstance(self.task, FuzzyLogicConfig) and not self.task.unknown:
            allowed = tuple(split for split in allowed if split != "unknown")
        for split in self.splits:
            if split not in allowed:
                raise unknown_name("splits", split, allowed)
        self._check_model()

    def _check_parts(self) -> None:
        if not isinstance(self.task, tuple(TASKS.values())):
            raise bad_value("task", repr(self.task), f"the configuration of {' or '.join(TASKS)}")
        for name, kind in (("members", Member), ("splits", str)):
            parts = getattr(self, name)
            if not isinstance(parts, tuple) or not all(isinstance(part, kind) for part in parts):
                raise bad_value(name, repr(parts), f"a tuple of {kind.__name__}")
        if not self.members:
            raise bad_value("members", "none", "at least one member")

    def _check_model(self) -> None:
        if isinstance(self.task, SravenConfig):
            if self.task.features < 2:
                expected = "at least 2: with one, a held-out combination is an unseen rule"
                raise bad_value("task.features", self.task.features, expected)
            sizes = {"input_size": self.task.values, "output_size": self.task.values}
        else:
            sizes = {"input_size": self.task.variables + 1, "output_size": 1}
        for name, size in sizes.items():
            if getattr(self.model, name) != size:
                given = getattr(self.model, name)
                raise bad_value(f"model.{name}", given, f"{size} for this {self.task_name} task")
        if self.model.inputs != "continuous":
            raise bad_value("model.inputs", repr(self.model.inputs), "'continuous' for this task")

    @property
    def task_name(self) -> str:
        """The name of the task in `TASKS`."""
        return next(name for name, kind in TASKS.items() if isinstance(self.task, kind))

    @property
    def scales_loss(self) -> bool:
        """Whether the loss has a scale, so that gradients of 16 bits are neither infinite nor 0."""
        return self.precision == "fp16"

    @property
    def tokens(self) -> int:
        """How many tokens a sequence has."""
        return self.task.tokens if isinstance(self.task, SravenConfig) else self.task.examples

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
            name = task.pop("name", None)
            if not isinstance(name, str) or name not in TASKS:
                raise unknown_name("task.name", name, TASKS)
            values["task"] = TASKS[name].from_dict(task)
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


def as_published(run: RunConfig) -> RunConfig:
    """Return a run as the published code trains it, where the paper's text says less or otherwise.

    >>> as_published(sraven_run((Member(),))).model.attention_dropout
    0.1
    """
    return replace(
        run,
        task=replace(run.task, published_splits=True),
        model=replace(run.model, attention_dropout=0.1),
        decay_head_biases=True,
        schedule="early_cosine",
    )


PRESETS: dict[str, Callable[[RunConfig], RunConfig]] = {
    "as_described": lambda run: run,
    "as_published": as_published,
}


def sraven_run(
    members: tuple[Member, ...],
    *,
    kind: str | Kind = "hyla",
    layers: int = 4,
    width_factor: int = 1,
    more_heads: bool = True,
    instances: int = 20_000_000,
    batch: int = 128,
    task: SravenConfig | None = None,
) -> RunConfig:
    """The paper's training on SRAVEN; `dataclasses.replace` changes the rest.

    >>> sraven_run((Member(),)).steps
    156250
    """
    task = SravenConfig() if task is None else task
    model = sraven_model(
        kind,
        layers=layers,
        width_factor=width_factor,
        more_heads=more_heads,
        features=task.features,
        values=task.values,
    )
    steps = -(-instances // batch)
    return RunConfig(task, model, members, steps, batch=batch, evaluate_every=5000)


def fuzzy_logic_run(
    members: tuple[Member, ...],
    *,
    kind: str | Kind = "hyla",
    steps: int = 50_000,
    task: FuzzyLogicConfig | None = None,
) -> RunConfig:
    """The paper's training on fuzzy logic.

    >>> fuzzy_logic_run((Member(warmup=100),)).model.layers
    2
    """
    task = FuzzyLogicConfig() if task is None else task
    model = fuzzy_logic_model(kind, examples=task.examples)
    model = replace(model, input_size=task.variables + 1)
    splits = ("train", "held_out", *(["unknown"] if task.unknown else []))
    return RunConfig(
        task, model, members, steps, evaluate_every=2500, interim_instances=2048,
        evaluation_instances=16_000, splits=splits,
    )  # fmt: skip
