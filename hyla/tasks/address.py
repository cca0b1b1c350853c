"""What the tasks share: splits, seeds with or without a population axis, and the map-style view."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hyla import random
from hyla.errors import bad_value

MAX_COMBINATIONS = 1_000_000  # the table of a split is made in full
SPLIT_STREAM = 255  # of the random numbers that draw the splits; the splits' own are below it


def published_split(path: Path, name: str) -> list[tuple[int, ...]] | None:
    """Combinations that the published code drew, from a file; None if it holds none such."""
    content = json.loads(path.read_text())
    found = (content.get("held_out") or content["train"]).get(name)
    return None if found is None else sorted(tuple(sorted(one)) for one in found)


def seed_tensor(seed: int | Sequence[int], device: torch.device | str | None) -> Tensor:
    """A seed as a tensor without axes, or the seeds of a population as one of shape `[member, 1]`.

    >>> seed_tensor([3, 4], None).shape
    torch.Size([2, 1])
    """
    seeds = list(seed) if isinstance(seed, Sequence) else [seed]
    for one in seeds:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < 2**63:
            given = f"{one!r} of type {type(one).__name__}"
            raise bad_value("seed", given, "an int from 0 to 2^63 - 1, or several of them")
    if not seeds:
        raise bad_value("seed", "none", "at least one seed")
    tensor = torch.tensor(seed, dtype=torch.int64, device=device)
    return tensor if tensor.ndim == 0 else tensor.unsqueeze(-1)


def instance_index(index: Tensor | range | int, device: torch.device) -> Tensor:
    """The numbers of the instances: those of a tensor or range, or 0 .. index - 1."""
    if isinstance(index, Tensor):
        if index.dtype not in (torch.int32, torch.int64):
            raise bad_value("index", index.dtype, "whole numbers, int64")
        return index.to(device=device, dtype=torch.int64)
    if not isinstance(index, int | range) or isinstance(index, bool):
        expected = "a tensor of instance numbers, a range, or how many instances from 0 on"
        raise bad_value("index", type(index).__name__, expected)
    numbers = range(index) if isinstance(index, int) else index
    if (isinstance(index, int) and index < 0) or (numbers and min(numbers[0], numbers[-1]) < 0):
        raise bad_value("index", index, "numbers of at least 0")
    return torch.arange(numbers.start, numbers.stop, numbers.step, device=device)


def part_of(count: int, fraction: float) -> int:
    """A fraction of a number, rounded down but for the rounding of the product itself.

    >>> part_of(330, 0.25), part_of(330, 0.7)
    (82, 231)
    """
    return int(count * fraction + 1e-9)


def split_tables(
    combinations: Callable[[int], Sequence[tuple[int, ...]]],
    seed: int | Sequence[int],
    device: torch.device | str | None,
) -> Tensor:
    """The combinations of a split under a seed, `[C, K]`, or under each seed of a population."""
    if isinstance(seed, int):
        return torch.tensor(combinations(seed), device=device)
    return torch.tensor([combinations(one) for one in seed], device=device)


def draw_combination(tables: Tensor, word_B: Tensor) -> Tensor:
    """A combination `[B, K]` of `split_tables` for each random word, uniformly."""
    row_B = random.below(word_B, tables.shape[-2])
    if tables.ndim == 2:
        return tables[row_B]
    member = torch.arange(tables.shape[0], device=tables.device).unsqueeze(-1)
    return tables[member, row_B]


class TaskDataset(Dataset[dict[str, Tensor]]):
    """Instances 0 .. length - 1 of a split as a map-style dataset, for a `DataLoader`.

    `make` turns instance numbers into tensors by name, with the instances along the first axis.
    """

    def __init__(self, make: Callable[[Tensor], dict[str, Tensor]], length: int) -> None:
        if length < 1:
            raise bad_value("length", length, "a whole number of at least 1")
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Tensor]]:
        """Several instances at once: a `DataLoader` asks for whole batches through this."""
        for index in indices:
            if not -self.length <= index < self.length:
                raise IndexError(f"index {index} of a dataset of {self.length} instances")
        batch = self.make(torch.tensor([index % self.length for index in indices]))
        return [{name: value[i] for name, value in batch.items()} for i in range(len(indices))]


def as_dict(batch: Any) -> dict[str, Tensor]:
    """The tensors of a batch, by the names of its fields."""
    return {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Estimate:
    """A mean over instances with its standard error."""

    value: float
    standard_error: float

    @classmethod
    def of(cls, samples: Tensor) -> "Estimate":
        """The mean of a tensor of samples."""
        samples = samples.double()
        error = float(samples.std(correction=0)) / math.sqrt(len(samples))
        return cls(float(samples.mean()), error)


def check_index(name: str, index: int, count: int = 1) -> None:
    """Refuse instance numbers that are not addresses."""
    if not 0 <= index <= 2**63 - 1 - count:
        raise bad_value(name, index, f"a whole number from 0 to 2^63 - {1 + count}")
