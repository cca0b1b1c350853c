"""SRAVEN: symbolic Raven's matrices, by address.

Shapes: B leading axes (population, batch), K features of a panel, F values of a feature, C the rule
combinations of a split. The rows and columns of the 3 x 3 matrix of panels are written 3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from hyla import random
from hyla.config import Config
from hyla.errors import bad_value, unknown_name
from hyla.tasks.address import (
    MAX_COMBINATIONS,
    SPLIT_STREAM,
    TaskDataset,
    as_dict,
    draw_combination,
    instance_index,
    part_of,
    published_split,
    seed_tensor,
    split_tables,
)

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
STEPS = (0, 1, 2, -1, -2)  # of the first five rules from one column to the next
ADDITION, SUBTRACTION, DISTRIBUTE_THREE = 5, 6, 7
ROW_ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
MAX_VALUES = 1024  # so that three symbols can be drawn with one word of 32 bits
STREAMS = {"train": 0, "held_out": 1, "all": 2}
ATTEMPTS_STREAM = 256  # attempt t at an unambiguous instance uses the split's stream + t * this


@dataclass(frozen=True)
class SravenConfig(Config):
    """The settings of SRAVEN.

    features: K symbols of a panel, each governed by a rule. values: F, the number of symbols.
    held_out: the fraction of all rule combinations that is kept from training.
    permute: whether each column shows its features in an order of its own; if not, they lie in
        the order of their rules in all columns.
    split_seed: draws the held-out combinations; -1 draws them with the seed of the data.
    published_splits: take the combinations that the published code held out, which is known for
        seeds 0, 1 and 2, 4 features and a quarter held out; others are drawn as without it.
    """

    features: int = 4
    values: int = 8
    held_out: float = 0.25
    permute: bool = True
    split_seed: int = -1
    published_splits: bool = False

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
        known = published_split("sraven", str(split_seed))
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


@dataclass(frozen=True)
class SravenBatch:
    """Instances with their ground truth.

    panels: symbols as shown, `[B, 3, 3, K]`; the last panel is the answer.
    rules: of the features, sorted, `[B, K]`.
    orders: which feature each slot of a column shows, `[B, 3, K]`.
    """

    panels: Tensor
    rules: Tensor
    orders: Tensor
    values: int

    @property
    def targets(self) -> Tensor:
        """The symbols of the last panel, `[B, K]`."""
        return self.panels[..., 2, 2, :]

    @property
    def target_rules(self) -> Tensor:
        """The rule that governs each slot of the last panel, `[B, K]`."""
        return self.rules.gather(-1, self.orders[..., 2, :])

    @property
    def other_sign(self) -> Tensor:
        """The last panel if addition were subtraction and subtraction were addition, `[B, K]`."""
        same_B2KK = self.orders[..., :2, None, :] == self.orders[..., 2:, :, None]
        operands_B2K = (self.panels[..., 2, :2, None, :] * same_B2KK).sum(dim=-1)
        first, second = operands_B2K.unbind(dim=-2)
        rules = self.target_rules
        found = torch.where(rules == ADDITION, first - second, self.targets)
        return torch.where(rules == SUBTRACTION, first + second, found) % self.values

    @property
    def inputs(self) -> Tensor:
        """One-hot tokens in reading order, those of the last panel all zero: `[B, 9 K, F]`."""
        symbols = self.panels.flatten(-3).to(torch.int16, copy=True)
        symbols[..., -self.panels.shape[-1] :] = -1  # no symbol: a token of zeros
        values = torch.arange(self.values, dtype=torch.int16, device=symbols.device)
        return (symbols.unsqueeze(-1) == values).to(torch.float32)


class Sraven:
    """SRAVEN instances under a seed, or under each seed of a population.

    >>> task = Sraven(SravenConfig(), seed=0)
    >>> batch = task.batch("train", range(100, 228))
    >>> batch.inputs.shape, batch.targets.shape
    (torch.Size([128, 36, 8]), torch.Size([128, 4]))
    """

    def __init__(
        self,
        config: SravenConfig,
        seed: int | Sequence[int] = 0,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        self.config = config
        self.seed = seed_tensor(seed, device)
        self.combinations = {
            split: split_tables(partial(split_combinations, config, split), seed, device)
            for split in (STREAMS if config.features > 1 else ["all"])
        }
        # Tables live on the device: a CUDA graph can capture a batch, which copies nothing to it.
        self._steps = torch.tensor((*STEPS, 0, 0, 0), device=device)
        self._row_orders = torch.tensor(ROW_ORDERS, device=device)

    def batch(self, split: str, index: Tensor | range | int, *, attempt: int = 0) -> SravenBatch:
        """The instances with these numbers (an int n: the first n) of a split, by seed.

        A population has its members in front: `[member, batch, ...]`. Instances of another
        `attempt` share the address but nothing else.
        """
        self.check_split(split)
        if attempt < 0:
            raise bad_value("attempt", attempt, "a whole number of at least 0")
        index_B = instance_index(index, self.seed.device)
        stream = STREAMS[split] + attempt * ATTEMPTS_STREAM
        features = self.config.features
        # Block 0 chooses the combination, blocks 1 .. K the symbols, the rest the orders.
        blocks = torch.arange(1 + features - (-3 * features // 4), device=index_B.device)
        words_BN4 = random.words(self.seed.unsqueeze(-1), index_B.unsqueeze(-1), blocks, stream)
        rules_BK = draw_combination(self.combinations[split], words_BN4[..., 0, 0])
        rows_B3K3 = self._rows(rules_BK, words_BN4[..., 1 : features + 1, :])
        orders_B3K = self._orders(words_BN4[..., features + 1 :, :].flatten(-2))
        columns_B33K = rows_B3K3.transpose(-1, -2)
        order_B33K = orders_B3K.unsqueeze(-3).expand(columns_B33K.shape)
        return SravenBatch(
            columns_B33K.gather(-1, order_B33K), rules_BK, orders_B3K, self.config.values
        )

    def dataset(self, split: str, length: int) -> TaskDataset:
        """The first `length` instances of a split as a map-style dataset.

        >>> item = Sraven(SravenConfig()).dataset("train", 1000)[7]
        >>> sorted(item), item["inputs"].shape
        (['inputs', 'orders', 'panels', 'rules', 'targets'], torch.Size([36, 8]))
        """
        self.check_split(split)
        if self.seed.ndim:
            raise bad_value("seed", "a population", "one seed for a dataset")
        return TaskDataset(partial(self._tensors, split), length)

    def check_split(self, split: str) -> None:
        """Refuses a split that there is not."""
        if split not in STREAMS:
            raise unknown_name("split", split, STREAMS)
        if split not in self.combinations:
            expected = "'all': with one feature, a held-out combination is an unseen rule"
            raise bad_value("split", repr(split), expected)

    def _tensors(self, split: str, index: Tensor) -> dict[str, Tensor]:
        batch = self.batch(split, index)
        return as_dict(batch) | {"inputs": batch.inputs, "targets": batch.targets}

    def _rows(self, rules_BK: Tensor, words_BK4: Tensor) -> Tensor:
        """Three rows of three symbols for each feature, `[B, row, K, column]`."""
        values = self.config.values
        steps_BK = self._steps[rules_BK].unsqueeze(-1)
        pair_BK3 = random.below(words_BK4[..., :3], values * values)
        first, second = pair_BK3 // values, pair_BK3 % values
        rule = rules_BK.unsqueeze(-1)
        free = rule >= ADDITION  # whose second column does not follow from the first
        second = torch.where(free, second, (first + steps_BK) % values)
        third = torch.where(
            rule == ADDITION,
            first + second,
            torch.where(rule == SUBTRACTION, first - second, first + 2 * steps_BK),
        )
        arithmetic = torch.stack((first, second, third % values), dim=-1)
        symbols_BK3 = self._three_symbols(words_BK4[..., 3])
        order_BK3 = random.below(words_BK4[..., :3], len(ROW_ORDERS))
        order_BK33 = self._row_orders[order_BK3]
        distributed = symbols_BK3.unsqueeze(-2).expand(order_BK33.shape).gather(-1, order_BK33)
        is_distributed = (rule == DISTRIBUTE_THREE).unsqueeze(-1)
        return torch.where(is_distributed, distributed, arithmetic).transpose(-2, -3)

    def _three_symbols(self, word_BK: Tensor) -> Tensor:
        """Three different symbols, uniformly and in order, `[B, K, 3]`."""
        values = self.config.values
        number = random.below(word_BK, values * (values - 1) * (values - 2))
        first = number // ((values - 1) * (values - 2))
        second = number // (values - 2) % (values - 1)
        second = second + (second >= first).to(second.dtype)
        third = number % (values - 2)
        third = third + (third >= torch.minimum(first, second)).to(third.dtype)
        third = third + (third >= torch.maximum(first, second)).to(third.dtype)
        return torch.stack((first, second, third), dim=-1)

    def _orders(self, words_BN: Tensor) -> Tensor:
        """A uniform permutation of the features for each column, `[B, 3, K]`."""
        features = self.config.features
        slots = torch.arange(features, device=words_BN.device)
        if not self.config.permute:
            return slots.expand(*words_BN.shape[:-1], 3, features)
        # The rank of a random word among those of its column: ties go to the earlier slot.
        word_B3K = words_BN[..., : 3 * features].unflatten(-1, (3, features))
        key = word_B3K * features + slots
        return (key.unsqueeze(-1) > key.unsqueeze(-2)).sum(dim=-1)


def accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """Whether all K symbols of each answer are right: logits `[B, K, F]`, targets `[B, K]`.

    >>> logits = torch.eye(3)[None]
    >>> accuracy(logits, torch.tensor([[0, 1, 2]])), accuracy(logits, torch.tensor([[0, 1, 1]]))
    (tensor([True]), tensor([False]))
    """
    return feature_accuracy(logits, targets).all(dim=-1)


def feature_accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """Whether each symbol of an answer is right, `[B, K]`."""
    return logits.argmax(dim=-1) == targets
