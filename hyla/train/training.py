"""One training and its key, by which its result is found.

A key is a hash of the fields that differ from the table `INTRODUCED`. The table holds the value of
each field when it was introduced, and its lines never change. So neither a new default nor a new
field with its introduction value changes a stored key.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Self

from hyla.attention.variants import BUILT_IN_KINDS, find_kind
from hyla.model import ModelConfig
from hyla.tasks.base import TaskConfig
from hyla.train.config import Member, RunConfig

ALWAYS = object()  # part of every key
# To add a field, add the value that earlier trainings had. Never change an existing line.
# The settings of a task are in its `introduced`.
INTRODUCED: dict[str, Any] = {
    "model.input_size": ALWAYS,
    "model.output_size": ALWAYS,
    "model.inputs": "continuous",
    "model.layers": 4,
    "model.width": 128,
    "model.heads": 16,
    "model.head_size": 4,
    "model.kind": "hyla",
    "model.activation": "relu",
    "model.causal": False,
    "model.positions": "t5",
    "model.buckets": 36,
    "model.feed_forward": "mlp",
    "model.hidden_size": 256,
    "model.experts": 4,
    "model.top_k": 2,
    "model.tied": False,
    "model.attention_dropout": 0.0,
    "steps": ALWAYS,
    "batch": 128,
    "precision": ALWAYS,
    "decay_head_biases": False,
    "schedule": "cosine",
    "splits": ALWAYS,
    "evaluation_instances": 51_200,
    "seed": ALWAYS,
    "learning_rate": ALWAYS,
    "weight_decay": ALWAYS,
    "warmup": ALWAYS,
}


def digest(description: Mapping[str, Any]) -> str:
    """Hash a description to 16 hexadecimal digits."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(
    values: Mapping[str, Any], introduced: Mapping[str, Any] = INTRODUCED
) -> dict[str, Any]:
    """Keep the fields that differ from their introduction values."""
    for name in values:
        if name not in introduced:
            raise LookupError(
                f"{name}: unknown field. Add it to INTRODUCED in hyla/train/training.py with the "
                "value that earlier trainings had."
            )
    found = {
        name: float(value) if isinstance(introduced[name], float) else value
        for name, value in values.items()
    }
    return {name: value for name, value in found.items() if value != introduced[name]}


@dataclass(frozen=True)
class Training:
    """Everything that decides the result of one training, except for rounding.

    Logging and evaluation intervals, device and kernels are not part of it.

    >>> from hyla.train.config import task_run
    >>> run = task_run("sraven", (Member(seed=0), Member(seed=1)))
    >>> one, other = (Training.of(run, member) for member in run.members)
    >>> one.key == other.key
    False
    """

    task: TaskConfig
    model: ModelConfig
    member: Member
    steps: int
    batch: int
    precision: str
    decay_head_biases: bool
    schedule: str
    splits: tuple[str, ...]
    evaluation_instances: int

    @classmethod
    def of(cls, config: RunConfig, member: Member, precision: str | None = None) -> Self:
        """Make the training of one member of a run, perhaps with another precision."""
        names = [field.name for field in fields(cls) if field.name != "member"]
        shared = {name: getattr(config, name) for name in names}
        shared |= {"precision": precision} if precision else {}
        return cls(member=member, **shared)

    @cached_property
    def description(self) -> dict[str, Any]:
        """What is hashed: a flat dictionary without the fields that have introduction values."""
        model = asdict(self.model) | {"kind": _identity(self.model.kind)}
        member = asdict(self.member)
        member |= {name: float(member[name]) for name in ("learning_rate", "weight_decay")}
        rest = ("steps", "batch", "precision", "decay_head_biases", "schedule")
        return describe_task(self.task) | describe(
            {f"model.{name}": value for name, value in model.items()}
            | {name: getattr(self, name) for name in rest}
            | {"splits": sorted(self.splits), "evaluation_instances": self.evaluation_instances}
            | member
        )

    @cached_property
    def key(self) -> str:
        """The hash, the same on every machine."""
        return digest(self.description)


def describe_task(task: TaskConfig) -> dict[str, Any]:
    """Describe a task, as part of a description."""
    introduced = {name: task.introduced.get(name, ALWAYS) for name in asdict(task)}
    values = describe(asdict(task), introduced)
    return {"task": task.task_name} | {
        f"{task.task_name}.{name}": value for name, value in values.items()
    }


def _identity(kind: str) -> Any:
    """Identify a built-in kind by its name, any other by its parts."""
    if kind in BUILT_IN_KINDS:
        return kind
    parts = asdict(find_kind(kind))
    del parts["title"]
    return parts
