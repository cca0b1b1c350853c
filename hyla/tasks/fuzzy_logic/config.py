"""The settings of fuzzy logic: terms, and which of their combinations belong to a split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from hyla import random
from hyla.errors import bad_value, unknown_name
from hyla.model import fuzzy_logic_model
from hyla.tasks.address import MAX_COMBINATIONS, SPLIT_STREAM, part_of, published_split
from hyla.tasks.base import (
    FIRST_VALIDATION_INSTANCE,
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
    from hyla.tasks.fuzzy_logic.task import FuzzyLogic

PUBLISHED_SPLITS = Path(__file__).with_name("published-splits.json")
STREAMS = {"train": 0, "held_out": 1, "unknown": 2}
FIXED_STREAM = 3  # of the inputs that all instances of a seed share
FIXED = ("context", "query")
MAX_VARIABLES = 16


@register_task("fuzzy_logic")
@dataclass(frozen=True)
class FuzzyLogicConfig(TaskConfig):
    """The settings of the fuzzy logic task.

    variables: L; there are 2^L terms, each a conjunction of all variables, some negated.
    terms: K, the number of different terms of a function.
    examples: N, the examples of a sequence, the query included.
    held_out: fraction of the combinations of known terms that is kept from training.
    unknown: fraction of the terms, the last ones, that is kept for the split "unknown".
    split_seed: draws the held-out combinations; with -1 the seed of the data does.
    published_splits: train on what the published code trains on. Known for seeds 0, 1 and 2 with
        0.3, 0.5 or 0.7 held out; other splits are drawn as that code does, which may leave a
        held-out term out of training.
    """

    variables: int = 4
    terms: int = 2
    examples: int = 32
    held_out: float = 0.7
    unknown: float = 0.25
    split_seed: int = -1
    published_splits: bool = False

    measures: ClassVar[tuple[Measure, ...]] = (Measure("r2"),)
    introduced: ClassVar[Mapping[str, Any]] = {
        "variables": 4,
        "terms": 2,
        "examples": 32,
        "held_out": 0.7,
        "unknown": 0.25,
        "split_seed": -1,
        "published_splits": False,
    }
    presets: ClassVar[Mapping[str, Preset]] = PRESETS
    # As in the paper: the query varies, the context does not.
    map_probe: ClassVar[Mapping[str, Any]] = {"fixed": "context"}

    def __post_init__(self) -> None:
        self._check_types()
        self._check_at_least(2, "examples")
        self._check_split_seed()
        if not 2 <= self.variables <= MAX_VARIABLES:
            expected = f"a whole number from 2 to {MAX_VARIABLES}"
            raise bad_value("variables", self.variables, expected)
        if self.terms < 2:
            expected = "at least 2: with a single term, a new combination is an unseen term"
            raise bad_value("terms", self.terms, expected)
        if not 0 <= self.unknown < 1:
            raise bad_value("unknown", self.unknown, "a fraction of at least 0 and below 1")
        self._check_number_of_terms()
        self._check_held_out()

    @property
    def tokens(self) -> int:
        """How many tokens an instance has."""
        return self.examples

    @property
    def model_sizes(self) -> dict[str, Any]:
        """The variables and the target in, the target of the query out."""
        return {"inputs": "continuous", "input_size": self.variables + 1, "output_size": 1}

    @property
    def splits(self) -> Mapping[str, Split]:
        """New combinations of known terms, and of unknown ones if there are any."""
        unknown = {"unknown": Split("unknown", "unknown terms")} if self.unknown else {}
        return {
            "train": Split("train", "in distribution"),
            "held_out": Split("held_out", "held out"),
            **unknown,
            VALIDATION: Split("train", VALIDATION, FIRST_VALIDATION_INSTANCE, selects=True),
        }

    def recipe(self) -> Recipe:
        """Return the paper's training: 50,000 steps."""
        model = fuzzy_logic_model(examples=self.examples)
        splits = tuple(name for name, split in self.splits.items() if not split.selects)
        return Recipe(
            replace(model, input_size=self.variables + 1), steps=50_000, weight_decay=0.03,
            warmup=100, evaluate_every=2500, interim_instances=2048,
            evaluation_instances=16_000, splits=splits,
        )  # fmt: skip

    def bind(
        self, seed: int | Sequence[int], device: torch.device | str | None = None
    ) -> "FuzzyLogic":
        """Make the task under a seed, or under the seed of each member of a population."""
        from hyla.tasks.fuzzy_logic.task import FuzzyLogic

        return FuzzyLogic(self, seed, device=device)

    def _check_number_of_terms(self) -> None:
        known, reserved = self.known_terms, self.reserved_terms
        if self.unknown > 0 and reserved < self.terms:
            expected = f"0, or a fraction that reserves at least {self.terms} (`terms`) of the"
            expected += f" {known + reserved} conjunctions of {self.variables} `variables`"
            raise bad_value("unknown", self.unknown, expected)
        if self.terms >= known:
            expected = f"fewer than the {known} known conjunctions (raise `variables` or lower"
            expected += " `unknown` for more of them)"
            raise bad_value("terms", self.terms, expected)
        largest = comb(max(known, reserved), self.terms)
        if largest > MAX_COMBINATIONS:
            expected = f"a number that gives at most {MAX_COMBINATIONS} combinations and not"
            expected += f" {largest} (or lower `variables`)"
            raise bad_value("terms", self.terms, expected)

    def _check_held_out(self) -> None:
        count, known = comb(self.known_terms, self.terms), self.known_terms
        needed = -(-known // self.terms)
        in_range = 0 < self.held_out < 1
        if not in_range or not 0 < part_of(count, self.held_out) <= count - needed:
            expected = f"a fraction that holds out from 1 to {count - needed} of the {count}"
            expected += f" combinations (training needs {needed} to contain all {known} terms)"
            raise bad_value("held_out", self.held_out, expected)

    @property
    def reserved_terms(self) -> int:
        """How many terms, the last ones, occur in the split "unknown" only."""
        return part_of(2**self.variables, self.unknown)

    @property
    def known_terms(self) -> int:
        """How many terms, the first ones, training and held-out functions are made of."""
        return 2**self.variables - self.reserved_terms


def split_combinations(config: FuzzyLogicConfig, split: str, seed: int) -> list[tuple[int, ...]]:
    """The term combinations of a split, each a sorted tuple of term numbers, in sorted order.

    Every term of "held_out" occurs in "train"; "unknown" has all combinations of reserved terms.

    >>> config = FuzzyLogicConfig()
    >>> [len(split_combinations(config, split, seed=0)) for split in STREAMS]
    [20, 46, 6]
    """
    check_split(config, split)
    known = config.known_terms
    if split == "unknown":
        return list(combinations(range(known, 2**config.variables), config.terms))
    known_combinations = list(combinations(range(known), config.terms))
    split_seed = seed if config.split_seed < 0 else config.split_seed
    order = random.shuffled(len(known_combinations), split_seed, SPLIT_STREAM)
    shuffled = [known_combinations[index] for index in order]
    size = len(shuffled) - part_of(len(shuffled), config.held_out)
    if config.published_splits:
        paper = (config.variables, config.terms, config.reserved_terms) == (4, 2, 4)
        name = f"{config.held_out:g}/{split_seed}"
        drawn = published_split(PUBLISHED_SPLITS, name) if paper else None
        train = set(drawn or shuffled[:size])
    else:
        train = _covering(shuffled, size, known)
    return sorted(train if split == "train" else set(shuffled) - train)


def check_split(config: FuzzyLogicConfig, split: str) -> None:
    """Refuse an unknown split, and "unknown" where no terms are reserved for it."""
    if split not in STREAMS:
        raise unknown_name("split", split, STREAMS)
    if split == "unknown" and not config.unknown:
        expected = "a fraction above 0 in the configuration for the split 'unknown'"
        raise bad_value("unknown", config.unknown, expected)


def _covering(shuffled: list[tuple[int, ...]], size: int, known: int) -> set[tuple[int, ...]]:
    """The first `size` combinations, passing over those that would leave a term out.

    A combination is passed over only if the terms that are still missing would then be more than
    the remaining places can hold, so an order whose beginning has every term is taken as it is.
    One walk is enough: a combination that does not fit once does not fit later.
    """
    taken: set[tuple[int, ...]] = set()
    missing = set(range(known))
    for combination in shuffled:
        places = size - len(taken) - 1
        if places >= 0 and len(missing.difference(combination)) <= places * len(combination):
            taken.add(combination)
            missing.difference_update(combination)
    return taken
