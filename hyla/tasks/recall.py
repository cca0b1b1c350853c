"""Multi-query associative recall, by address: key-value pairs, then some of the keys again.

The benchmark (Arora et al., 2023, "Zoology") that separates linear from softmax attention on
language: `k1 v1 k2 v2 ... . k2 . . k1 .`, and at each repeated key the model has to say its value.
The distance between the pairs and their queries follows a power law.

Shapes: B leading axes (population, batch), P pairs at most, S places for queries, V vocabulary, N
levels (how many pairs an instance has: the powers of two from `least_pairs` to `pairs`), G gaps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from hyla import random
from hyla.errors import bad_value, unknown_name
from hyla.model import ModelConfig
from hyla.tasks.address import instance_index, seed_tensor
from hyla.tasks.base import (
    FIRST_VALIDATION_INSTANCE,
    VALIDATION,
    Label,
    Measure,
    Predict,
    Probe,
    Recipe,
    Split,
    Task,
    TaskConfig,
    register_task,
)

STREAM = 0
POWER = 0.01  # the weight of place s is s^(POWER - 1), as in the original
LARGEST_WEIGHT = 2**20  # of whole numbers, which CPU and GPU add alike
MAX_PAIRS = 256


@register_task("recall")
@dataclass(frozen=True)
class RecallConfig(TaskConfig):
    """The settings of associative recall.

    vocabulary: number of words; keys come from the first half, values from the second.
    pairs: the most key-value pairs of an instance; it has this many, a half, a quarter ...
    least_pairs: the fewest pairs of an instance.
    length: tokens of an instance.
    """

    vocabulary: int = 8192
    pairs: int = 64
    least_pairs: int = 4
    length: int = 512

    measures: ClassVar[tuple[Measure, ...]] = (Measure("accuracy"),)
    headline: ClassVar[str] = "test"

    def __post_init__(self) -> None:
        self._check_types()
        self._check_at_least(1, "least_pairs")
        if not self.least_pairs <= self.pairs <= MAX_PAIRS:
            expected = f"from `least_pairs`, {self.least_pairs}, to {MAX_PAIRS}"
            raise bad_value("pairs", self.pairs, expected)
        if self.vocabulary < 4 * self.pairs or self.vocabulary % 2:
            expected = f"an even number of at least {4 * self.pairs}, four for each pair"
            raise bad_value("vocabulary", self.vocabulary, expected)
        if self.length < 4 * self.pairs:
            expected = f"at least {4 * self.pairs}: two tokens for each pair and two for each query"
            raise bad_value("length", self.length, expected)

    @property
    def tokens(self) -> int:
        """How many tokens an instance has."""
        return self.length

    @property
    def levels(self) -> tuple[int, ...]:
        """How many pairs an instance may have."""
        powers = (self.least_pairs * 2**i for i in range(MAX_PAIRS.bit_length()))
        return tuple(n for n in powers if n <= self.pairs)

    @property
    def model_sizes(self) -> dict[str, Any]:
        """Words in, the logits of words out, no look ahead."""
        size = self.vocabulary
        return {"inputs": "vocabulary", "input_size": size, "output_size": size, "causal": True}

    @property
    def splits(self) -> Mapping[str, Split]:
        """New sequences: nothing is held out but the sequences themselves."""
        return {
            "test": Split("train", "new sequences"),
            "train": Split("train", first=0),
            VALIDATION: Split("train", VALIDATION, FIRST_VALIDATION_INSTANCE, selects=True),
        }

    def recipe(self) -> Recipe:
        """Return a training of two layers with rotary positions."""
        model = ModelConfig(
            **self.model_sizes, layers=2, width=64, heads=8, head_size=8, hidden_size=128,
            positions="rotary", tied=True,
        )  # fmt: skip
        return Recipe(
            model, steps=20_000, batch=64, weight_decay=0.1, warmup=500, evaluate_every=1000,
            interim_instances=640, evaluation_instances=5120, splits=("test",),
        )  # fmt: skip

    def bind(self, seed: int | Sequence[int], device: torch.device | str | None = None) -> "Recall":
        """Make the task under a seed, or under the seed of each member of a population."""
        return Recall(self, seed, device=device)


@dataclass(frozen=True)
class RecallBatch:
    """Instances with their ground truth; pairs that an instance does not have are not counted.

    tokens: `[B, length]`. at: positions of the queries, `[B, P]`. targets: their values,
    `[B, P]`. counted: whether the instance has this pair, `[B, P]`. gaps: from the key to its
    query, in tokens, `[B, P]`. level: the number of pairs as an index of `levels`, `[B]`.
    """

    tokens: Tensor
    at: Tensor
    targets: Tensor
    counted: Tensor
    gaps: Tensor
    level: Tensor


class Recall(Task):
    """Associative recall under a seed, or under each seed of a population.

    >>> task = RecallConfig(vocabulary=64, pairs=4, length=20).bind(seed=0)
    >>> batch = task.batch("train", torch.arange(3))
    >>> batch.tokens.shape, batch.targets.shape
    (torch.Size([3, 20]), torch.Size([3, 4]))
    >>> bool((batch.tokens.gather(-1, batch.at - batch.gaps + 1) == batch.targets).all())
    True
    """

    config: RecallConfig

    def __init__(
        self,
        config: RecallConfig,
        seed: int | Sequence[int] = 0,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        self.config, self.seed = config, seed_tensor(seed, device)
        self.levels = torch.tensor(config.levels, device=device)
        places = range(1, (config.length - 2 * config.least_pairs) // 2 + 1)
        weights = [round(LARGEST_WEIGHT * place ** (POWER - 1)) for place in places]
        self.weights = torch.tensor(weights, device=device)
        self.gap_edges = torch.tensor([2**i for i in range(2, config.length.bit_length())])
        self.gap_edges = self.gap_edges.to(self.seed.device)
        edges = [0, *self.gap_edges.tolist(), config.length]
        self.gap_names = [f"{a} to {b - 1}" for a, b in pairwise(edges)]
        self.sum_names = (
            "loss",
            "right",
            "queries",
            *(f"{what} with {n} pairs" for what in ("right", "queries") for n in config.levels),
            *(f"{what} over {gap}" for what in ("right", "queries") for gap in self.gap_names),
        )

    def batch(self, split: str, index: Tensor | range | int) -> RecallBatch:
        """Return the instances with these numbers (an int n: the first n), by seed."""
        if split != "train":
            raise unknown_name("split", split, ("train",))
        index_B = instance_index(index, self.seed.device)
        pairs, length = self.config.pairs, self.config.length
        blocks = torch.arange(-(-(1 + 5 * pairs + length) // 4), device=index_B.device)
        words = random.words(self.seed.unsqueeze(-1), index_B.unsqueeze(-1), blocks, STREAM)
        words = words.flatten(-2)
        level_B = random.below(words[..., 0], len(self.levels))
        count_B1 = self.levels[level_B].unsqueeze(-1)
        parts = words[..., 1 : 1 + 5 * pairs].unflatten(-1, (5, pairs)).unbind(dim=-2)
        half = self.config.vocabulary // 2
        keys_BP, values_BP = self._different(*parts[:2]), half + self._different(*parts[2:4])
        place_BP = self._places(parts[4], count_B1)
        pair_P = torch.arange(pairs, device=index_B.device)
        counted_BP = pair_P < count_B1
        at_BP = 2 * (count_B1 + place_BP)
        tokens = random.below(words[..., 1 + 5 * pairs :][..., :length], self.config.vocabulary)
        # Pairs that an instance does not have are written behind its end, which is cut off.
        start_BP = torch.where(counted_BP, 2 * pair_P, length)
        ask_BP = torch.where(counted_BP, at_BP, length)
        tokens = torch.nn.functional.pad(tokens, (0, 2))
        for place, token in ((start_BP, keys_BP), (start_BP + 1, values_BP), (ask_BP, keys_BP)):
            tokens = tokens.scatter(-1, place, token)
        at_BP = torch.where(counted_BP, at_BP, 0)
        gaps_BP = torch.where(counted_BP, at_BP - 2 * pair_P, 0)
        targets_BP = torch.where(counted_BP, values_BP, 0)
        return RecallBatch(tokens[..., :length], at_BP, targets_BP, counted_BP, gaps_BP, level_B)

    def outputs(self, model: Predict, batch: RecallBatch) -> Tensor:
        """Logits at the queries, `[M, B, P, V]`."""
        return model(batch.tokens, at=batch.at)

    def loss(self, outputs: Tensor, batch: RecallBatch) -> Tensor:
        """Cross-entropy, the mean over the queries of all instances."""
        lost = (self._cross_entropy(outputs, batch) * batch.counted).sum(dim=(-1, -2))
        return lost / batch.counted.sum(dim=(-1, -2))

    def tally(self, outputs: Tensor, batch: RecallBatch) -> Tensor:
        """Loss and right answers of the queries: all, by number of pairs, and by gap."""
        counted_BP = batch.counted
        right_BP = (outputs.argmax(dim=-1) == batch.targets) & counted_BP
        lost_B = (self._cross_entropy(outputs, batch) * counted_BP).sum(dim=-1)
        levels = torch.arange(len(self.levels), device=right_BP.device)
        is_level_BN = batch.level.unsqueeze(-1) == levels
        bucket_BP = torch.bucketize(batch.gaps, self.gap_edges, right=True)
        gaps = torch.arange(len(self.gap_names), device=right_BP.device)
        is_gap_BPG = (bucket_BP.unsqueeze(-1) == gaps) & counted_BP.unsqueeze(-1)
        right_B1, count_B1 = (x.sum(dim=-1, keepdim=True) for x in (right_BP, counted_BP))
        numbers = (
            lost_B.unsqueeze(-1), right_B1, count_B1,
            is_level_BN * right_B1, is_level_BN * count_B1,
            (is_gap_BPG & right_BP.unsqueeze(-1)).sum(dim=-2), is_gap_BPG.sum(dim=-2),
        )  # fmt: skip
        return torch.cat([number.double() for number in numbers], dim=-1)

    def measure(self, sums: Mapping[str, float]) -> dict[str, Any]:
        """Turn sums into measures of queries; None for gaps that did not occur."""

        def each(suffixes: Mapping[str, str]) -> dict[str, float | None]:
            pairs = {
                name: (sums[f"right {suffix}"], sums[f"queries {suffix}"])
                for name, suffix in suffixes.items()
            }
            return {name: right / n if n else None for name, (right, n) in pairs.items()}

        return {
            "loss": sums["loss"] / sums["queries"],
            "accuracy": sums["right"] / sums["queries"],
            "accuracy_by_pairs": each({str(n): f"with {n} pairs" for n in self.config.levels}),
            "accuracy_by_gap": each({gap: f"over {gap}" for gap in self.gap_names}),
        }

    def probe(self, split: str, index: Tensor) -> Probe:
        """Return instances and the last token, attending to itself."""
        return Probe(self.batch(split, index))

    def labels(self, outputs: Tensor, batch: RecallBatch) -> dict[str, Label]:
        """Return how many pairs an instance has."""
        names = tuple(map(str, self.config.levels))
        return {"pairs": Label(batch.level, names, ("decode", "explain", "colour"))}

    def _different(self, order_BP: Tensor, word_BP: Tensor) -> Tensor:
        """Draw different words of half the vocabulary: one of each of P equal ranges, shuffled."""
        pairs = self.config.pairs
        pair_P = torch.arange(pairs, device=order_BP.device)
        key_BP = order_BP * pairs + pair_P  # ties go to the earlier pair
        range_BP = (key_BP.unsqueeze(-1) > key_BP.unsqueeze(-2)).sum(dim=-1)
        size = self.config.vocabulary // 2 // pairs
        return range_BP * size + random.below(word_BP, size)

    def _places(self, word_BP: Tensor, count_B1: Tensor) -> Tensor:
        """A different place for each query, drawn one after the other by the power law."""
        place_S = torch.arange(len(self.weights), device=word_BP.device)
        there_BS = place_S < (self.config.length - 2 * count_B1) // 2
        weight_BS = torch.where(there_BS, self.weights, 0)
        chosen = []
        for word_B in word_BP.unbind(dim=-1):
            upto_BS = weight_BS.cumsum(dim=-1)
            drawn_B1 = random.below(word_B, upto_BS[..., -1]).unsqueeze(-1)
            place_B1 = (upto_BS <= drawn_B1).sum(dim=-1, keepdim=True).clamp(max=len(place_S) - 1)
            weight_BS = weight_BS.scatter(-1, place_B1, 0)
            chosen.append(place_B1)
        return torch.cat(chosen, dim=-1)

    @staticmethod
    def _cross_entropy(logits_BPV: Tensor, batch: RecallBatch) -> Tensor:
        words = torch.arange(logits_BPV.shape[-1], device=logits_BPV.device)
        # Not a gather, whose gradient is scattered additions.
        chosen = batch.targets.unsqueeze(-1) == words
        return -(logits_BPV.log_softmax(dim=-1) * chosen).sum(dim=-1)
