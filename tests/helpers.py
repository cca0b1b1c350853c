"""Inputs of prime sizes, so that no two axes can be confused."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hyla import KINDS, ModelConfig
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.sraven import SravenConfig
from hyla.train import Member, RunConfig, train
from hyla.train.watch import Progress, Watcher

BATCH, QUERIES, KEYS, HEADS, SIZE, VALUE_SIZE = 2, 5, 7, 3, 11, 13
ALL_KINDS = list(KINDS)


def inputs(
    queries: int = QUERIES,
    keys: int = KEYS,
    *,
    value_size: int = VALUE_SIZE,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(BATCH, queries, HEADS, SIZE, dtype=dtype)
    k = torch.randn(BATCH, keys, HEADS, SIZE, dtype=dtype)
    v = torch.randn(BATCH, keys, HEADS, value_size, dtype=dtype)
    return q, k, v


def deep_weight(
    kind: str, value_size: int = VALUE_SIZE, dtype: torch.dtype = torch.float64
) -> Tensor | None:
    if KINDS[kind].value_network != "deep":
        return None
    return torch.randn(HEADS, value_size, value_size, dtype=dtype) / value_size**0.5


def relative_error(given: Tensor, exact: Tensor) -> float:
    given, exact = given.detach().double(), exact.detach().double()
    return float((given - exact).norm() / exact.norm())


TINY_MEMBERS = (
    Member(seed=3, learning_rate=1e-3, weight_decay=0.1, warmup=2),
    Member(seed=5, learning_rate=3e-3, weight_decay=0.0, warmup=0),
    Member(seed=0, learning_rate=1e-2, weight_decay=0.3, warmup=5),
)


def tiny_run(task: str, kind: str = "hyla", **options: Any) -> RunConfig:
    """A run of three members that differ in everything they may differ in, with prime sizes."""
    config: SravenConfig | FuzzyLogicConfig
    if task == "sraven":
        config, sizes = SravenConfig(features=2, values=5), {"input_size": 5, "output_size": 5}
    else:
        config = FuzzyLogicConfig(variables=3, examples=7, held_out=0.3)
        sizes = {"input_size": 4, "output_size": 1}
    model = ModelConfig(
        layers=2, width=12, heads=3, head_size=4, hidden_size=17, kind=kind,
        buckets=11, **sizes,
    )  # fmt: skip
    settings: dict[str, Any] = {"steps": 29, "batch": 13, "log_every": 5, "splits": ("held_out",)}
    settings |= {"evaluation_instances": 23, "interim_instances": 17}
    return RunConfig(config, model, **({"members": TINY_MEMBERS} | settings | options))


def evaluated_run(**options: Any) -> RunConfig:
    """One that is evaluated on the way, too."""
    return tiny_run("sraven", evaluate_every=9, splits=("train", "held_out"), **options)


def run(config: RunConfig, path: Path, **options: Any) -> dict[str, Any]:
    """Trains it on the CPU, as it is written."""
    return train(config, path, device="cpu", compiled=False, **options)


def timeless(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without what differs from one run to the next."""
    differing = ("date", "seconds", "instances_per_second")
    return {k: v for k, v in summary.items() if k not in differing}


def assert_uniform(counts: list[int]) -> None:
    """Pearson's statistic has mean df and variance 2 df: refused beyond five deviations."""
    expected, df = sum(counts) / len(counts), len(counts) - 1
    statistic = sum((count - expected) ** 2 / expected for count in counts)
    assert statistic < df + 5 * math.sqrt(2 * df)


class Recorder(Watcher):
    """Keeps all that a run tells."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.seen: list[Progress] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def metrics(self, records: Any) -> None:
        self.records += records

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)
