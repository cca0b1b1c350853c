"""The settings of SRAVEN: rules, and which of their combinations belong to a split."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from hyla import random
from hyla.errors import bad_value, unknown_name
from hyla.model import sraven_model
from hyla.tasks.address import MAX_COMBINATIONS, SPLIT_STREAM, part_of, published_split
from hyla.tasks.base import (
    FIRST_VALIDATION_INSTANCE,
    NAMED_VALUES,
    VALIDATION,
    Measure,
    Preset,
    Recipe,
    Split,
    TaskConfig,
    register_task,
)
from hyla.tasks.published import PRESETS

if TYPE_CHECKING:
    from hyla.tasks.sraven.task import Sraven

RULES = (
    "constant",
    "progression +1",
    "progression +2",
    "progression -1",
    "progression -2",
    "addition",
    "subtraction",
    "distribute three",
)
NAMED_VALUES.update({rule: number for number, rule in enumerate(RULES)})
STEPS = (0, 1, 2, -1, -2)  # of the first five rules from one column to the next
ADDITION, SUBTRACTION, DISTRIBUTE_THREE = 5, 6, 7
ROW_ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
MAX_VALUES = 1024  # so that three symbols can be drawn with one word of 32 bits
PUBLISHED_SPLITS = Path(__file__).with_name("published-splits.json")
STREAMS = {"train": 0, "held_out": 1, "all": 2}
ATTEMPTS_STREAM = 256  # attempt t at an unambiguous instance uses the split's stream + t * this


@register_task("sraven")
@dataclass(frozen=True)
class SravenConfig(TaskConfig):
    """The settings of SRAVEN.

    features: K, the symbols of a panel, each governed by a rule.
    values: F, the number of different symbols.
    held_out: fraction of the rule combinations that is kept from training.
    permute: show the features of each column in an order of its own, not in that of their rules.
    split_seed: draws the held-out combinations; with -1 the seed of the data does.
    published_splits: hold out what the published code held out. Known for seeds 0, 1 and 2 with 4
        features and a quarter held out; other splits are drawn as without it.
    """

    features: int = 4
    values: int = 8
    held_out: float = 0.25
    permute: bool = True
    split_seed: int = -1
    published_splits: bool = False

    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("accuracy"),
        Measure("feature_accuracy", "per feature"),
    )
    introduced: ClassVar[Mapping[str, Any]] = {
        "features": 4,
        "values": 8,
        "held_out": 0.25,
        "permute": True,
        "split_seed": -1,
        "published_splits": False,
    }
    presets: ClassVar[Mapping[str, Preset]] = PRESETS

    def __post_init__(self) -> None:
        self._check_types()
        self._check_at_least(1, "features")
        self._check_split_seed()
        if not 3 <= self.values <= MAX_VALUES:
            expected = f"from 3 (`distribute three` needs three different symbols) to {MAX_VALUES}"
            raise bad_value("values", self.values, expected)
        combinations = number_of_combinations(self.features)
        if combinations > MAX_COMBINATIONS:
            expected = f"a number with at most {MAX_COMBINATIONS} combinations of rules"
            raise bad_value("features", self.features, expected)
        in_range = 0 < self.held_out < 1
        if not in_range or not 0 < part_of(combinations, self.held_out) < combinations:
            expected = f"a fraction that leaves some of the {combinations} combinations of"
            expected += f" {self.features} features (`features`) to each of the two splits"
            raise bad_value("held_out", self.held_out, expected)

    @property
    def tokens(self) -> int:
        """How many tokens an instance has: 9 panels of K features."""
        return 9 * self.features

    @property
    def model_sizes(self) -> dict[str, Any]:
        """One-hot symbols in, logits of symbols out."""
        return {"inputs": "continuous", "input_size": self.values, "output_size": self.values}

    @property
    def splits(self) -> Mapping[str, Split]:
        """With one feature only "all": a held-out combination would be an unseen rule."""
        everything = {"all": Split("all", "all combinations")}
        if self.features == 1:
            return everything
        return {
            "train": Split("train", "in distribution"),
            "held_out": Split("held_out", "held out"),
            **everything,
            VALIDATION: Split("train", VALIDATION, FIRST_VALIDATION_INSTANCE, selects=True),
        }

    def recipe(self) -> Recipe:
        """Return the paper's training: 20 million instances."""
        model = sraven_model(features=self.features, values=self.values)
        return Recipe(model, instances=20_000_000, evaluate_every=5000)

    def bind(self, seed: int | Sequence[int], device: torch.device | str | None = None) -> "Sraven":
        """Make the task under a seed, or under the seed of each member of a population."""
        from hyla.tasks.sraven.task import Sraven

        return Sraven(self, seed, device=device)


def number_of_combinations(features: int) -> int:
    """How many multisets of rules there are.

    >>> number_of_combinations(4)
    330
    """
    return math.comb(len(RULES) + features - 1, features)


def split_combinations(config: SravenConfig, split: str, seed: int) -> list[tuple[int, ...]]:
    """The rule combinations of a split, each a sorted tuple of rule numbers, in sorted order.

    Refuses to hold out a rule from training altogether, as one always does with a single feature.

    >>> len(split_combinations(SravenConfig(), "held_out", seed=0))
    82
    """
    if split not in STREAMS:
        raise unknown_name("split", split, STREAMS)
    combinations = list(combinations_with_replacement(range(len(RULES)), config.features))
    if split == "all":
        return combinations
    split_seed = seed if config.split_seed < 0 else config.split_seed
    if config.published_splits and (config.features, config.held_out) == (4, 0.25):
        known = published_split(PUBLISHED_SPLITS, str(split_seed))
        if known is not None:
            return known if split == "held_out" else sorted(set(combinations).difference(known))
    order = random.shuffled(len(combinations), split_seed, SPLIT_STREAM)
    held_out = part_of(len(combinations), config.held_out)
    seen = {rule for index in order[held_out:] for rule in combinations[index]}
    unseen = [name for rule, name in enumerate(RULES) if rule not in seen]
    if unseen:
        expected = f"a fraction that leaves {unseen[0]!r} in training (or more `features`)"
        raise bad_value("held_out", config.held_out, expected)
    chosen = order[:held_out] if split == "held_out" else order[held_out:]
    return [combinations[index] for index in sorted(chosen)]
