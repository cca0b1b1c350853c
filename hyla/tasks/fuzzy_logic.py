"""Fuzzy logic functions to be learned in context, by address.

Shapes: B leading axes (population, batch), N examples of a sequence, L variables, K terms of a
function, C the term combinations of a split.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import comb

import torch
import torch.nn.functional as functional
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

STREAMS = {"train": 0, "held_out": 1, "unknown": 2}
FIXED_STREAM = 3  # of the inputs that all instances of a seed share
FIXED = ("context", "query")
MAX_VARIABLES = 16


@dataclass(frozen=True)
class FuzzyLogicConfig(Config):
    """The settings of the fuzzy logic task.

    variables: L; there are 2^L terms, each a conjunction of all variables, some negated.
    terms: K different terms of a function. examples: N of a sequence, the masked one included.
    held_out: the fraction of the combinations of known terms that is kept from training.
    unknown: the fraction of the terms, the last ones, that is kept for the split "unknown".
    split_seed: draws the held-out combinations; -1 draws them with the seed of the data.
    published_splits: take the combinations that the published code trains on, which are known for
        seeds 0, 1 and 2 and the fractions 0.3, 0.5 and 0.7; others are drawn as it does, so that
        a held-out term may be in no training combination.
    """

    variables: int = 4
    terms: int = 2
    examples: int = 32
    held_out: float = 0.7
    unknown: float = 0.25
    split_seed: int = -1
    published_splits: bool = False

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
    _check_split(config, split)
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
        drawn = published_split("fuzzy", name) if paper else None
        train = set(drawn or shuffled[:size])
    else:
        train = _covering(shuffled, size, known)
    return sorted(train if split == "train" else set(shuffled) - train)


def _check_split(config: FuzzyLogicConfig, split: str) -> None:
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


def evaluate(inputs: Tensor, terms: Tensor) -> Tensor:
    """The values of fuzzy logic functions: inputs `[B, N, L]` and terms `[B, K]` to `[B, N]`.

    The maximum over the terms of the minimum over their literals: x_j where bit j of the number
    of the term is set, 1 - x_j where it is not (Zadeh's operators).

    >>> x = torch.tensor([[0.25, 0.875]])
    >>> evaluate(x, torch.tensor([0b11])), evaluate(x, torch.tensor([0b10, 0b11]))
    (tensor([0.2500]), tensor([0.7500]))
    """
    bits = torch.arange(inputs.shape[-1], device=terms.device)
    plain_BKL = (terms.unsqueeze(-1) >> bits) & 1 == 1
    x_BN1L = inputs.unsqueeze(-2)
    literals_BNKL = torch.where(plain_BKL.unsqueeze(-3), x_BN1L, 1 - x_BN1L)
    return literals_BNKL.amin(dim=-1).amax(dim=-1)


def describe(terms: Iterable[int], variables: int) -> str:
    """A function as a formula, for people.

    >>> describe([0b1101, 0b1010], variables=4)
    '(x1 ∧ ¬x2 ∧ x3 ∧ x4) ∨ (¬x1 ∧ x2 ∧ ¬x3 ∧ x4)'
    """

    def conjunction(term: int) -> str:
        signs = ["" if term >> j & 1 else "¬" for j in range(variables)]
        return "(" + " ∧ ".join(f"{sign}x{j}" for j, sign in enumerate(signs, start=1)) + ")"

    return " \N{LOGICAL OR} ".join(conjunction(int(term)) for term in terms)


@dataclass(frozen=True)
class FuzzyLogicBatch:
    """Instances with their ground truth.

    inputs: tokens, L inputs and their target, the last target 0, `[B, N, L + 1]`.
    targets: of all examples, the masked one included, `[B, N]`.
    terms: the numbers of the terms of the function, sorted, `[B, K]`.
    """

    inputs: Tensor
    targets: Tensor
    terms: Tensor

    @property
    def query_target(self) -> Tensor:
        """The masked target of the last example, `[B]`."""
        return self.targets[..., -1]


class FuzzyLogic:
    """Fuzzy logic instances under a seed, or under each seed of a population.

    >>> task = FuzzyLogic(FuzzyLogicConfig(), seed=0)
    >>> batch = task.batch("train", range(100, 228))
    >>> batch.inputs.shape, batch.query_target.shape
    (torch.Size([128, 32, 5]), torch.Size([128]))
    """

    def __init__(
        self,
        config: FuzzyLogicConfig,
        seed: int | Sequence[int] = 0,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        self.config = config
        self.seed = seed_tensor(seed, device)
        self.combinations = {
            split: split_tables(partial(split_combinations, config, split), seed, device)
            for split in STREAMS
            if split != "unknown" or config.unknown
        }

    def batch(
        self, split: str, index: Tensor | range | int, *, fixed: str | None = None
    ) -> FuzzyLogicBatch:
        """The instances with these numbers (an int n: the first n) of a split, by seed.

        A population has its members in front: `[member, batch, ...]`. `fixed` gives all instances
        of a seed, in every split, the same inputs of the "context" (all examples but the last) or
        of the "query" (the last one); the functions and the other inputs stay as they are.

        >>> task = FuzzyLogic(FuzzyLogicConfig(examples=8), seed=0)
        >>> x = task.batch("train", 2, fixed="context").inputs[..., :4]
        >>> x[0, :-1].equal(x[1, :-1]), x[0, -1].equal(x[1, -1])
        (True, False)
        """
        _check_split(self.config, split)
        if fixed is not None and fixed not in FIXED:
            raise unknown_name("fixed", fixed, FIXED)
        index_B = instance_index(index, self.seed.device)
        terms_BK = self._terms(split, index_B)
        x_BNL = self._inputs(index_B, STREAMS[split])
        if fixed is not None:
            shared_BNL = self._inputs(torch.zeros_like(index_B), FIXED_STREAM)
            example_N1 = torch.arange(self.config.examples, device=index_B.device).unsqueeze(-1)
            is_query_N1 = example_N1 == self.config.examples - 1
            is_shared_N1 = is_query_N1 if fixed == "query" else ~is_query_N1
            x_BNL = torch.where(is_shared_N1, shared_BNL, x_BNL)
        targets_BN = evaluate(x_BNL, terms_BK)
        shown_BN = functional.pad(targets_BN[..., :-1], (0, 1))
        inputs = torch.cat((x_BNL, shown_BN.unsqueeze(-1)), dim=-1)
        return FuzzyLogicBatch(inputs, targets_BN, terms_BK)

    def dataset(self, split: str, length: int) -> TaskDataset:
        """The first `length` instances of a split as a map-style dataset.

        >>> item = FuzzyLogic(FuzzyLogicConfig()).dataset("train", 1000)[7]
        >>> sorted(item), item["inputs"].shape
        (['inputs', 'query_target', 'targets', 'terms'], torch.Size([32, 5]))
        """
        _check_split(self.config, split)
        if self.seed.ndim:
            raise bad_value("seed", "a population", "one seed for a dataset")
        return TaskDataset(partial(self._tensors, split), length)

    def _tensors(self, split: str, index: Tensor) -> dict[str, Tensor]:
        batch = self.batch(split, index)
        return as_dict(batch) | {"query_target": batch.query_target}

    def _terms(self, split: str, index_B: Tensor) -> Tensor:
        """A uniformly drawn combination of the split, `[B, K]`."""
        # Block 0 chooses the combination, the other blocks are inputs.
        word_B = random.words(self.seed, index_B, 0, STREAMS[split])[..., 0]
        return draw_combination(self.combinations[split], word_B)

    def _inputs(self, index_B: Tensor, stream: int) -> Tensor:
        """Uniform inputs, `[B, N, L]`."""
        examples, variables = self.config.examples, self.config.variables
        blocks = 1 + torch.arange(-(-examples * variables // 4), device=index_B.device)
        words = random.words(self.seed.unsqueeze(-1), index_B.unsqueeze(-1), blocks, stream)
        word_BNL = words.flatten(-2)[..., : examples * variables]
        return random.uniform(word_BNL.unflatten(-1, (examples, variables)))


def r2(predictions: Tensor, batch: FuzzyLogicBatch) -> Tensor:
    """The explained variance of each sequence, `[B]`, from predicted query targets `[B]`.

    1 - squared error of the query / variance of the N targets of that sequence, the variance with
    N in the denominator. The measure of the paper is the mean over sequences.

    >>> batch = FuzzyLogicBatch(torch.zeros(1, 2, 5), torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2))
    >>> r2(torch.tensor([0.75]), batch)  # 1 - 0.25^2 / 0.25
    tensor([0.7500])
    """
    error_B = _squared_error(predictions, batch)
    return 1 - error_B / batch.targets.var(dim=-1, correction=0)


def pooled_r2(predictions: Tensor, batch: FuzzyLogicBatch) -> Tensor:
    """The explained variance over the last axis of the query targets, one for each member.

    1 - mean squared error / variance of the query targets over the batch, the variance with the
    number of sequences in the denominator. Not the mean of `r2`.

    >>> targets = torch.tensor([[0.5, 0.0], [0.5, 1.0]])
    >>> batch = FuzzyLogicBatch(torch.zeros(2, 2, 5), targets, torch.zeros(2, 2))
    >>> pooled_r2(torch.tensor([0.25, 0.75]), batch)  # 1 - 0.25^2 / 0.25
    tensor(0.7500)
    """
    error = _squared_error(predictions, batch).mean(dim=-1)
    return 1 - error / batch.query_target.var(dim=-1, correction=0)


def _squared_error(predictions: Tensor, batch: FuzzyLogicBatch) -> Tensor:
    if predictions.shape != batch.query_target.shape:  # [B, 1] would broadcast to [B, B]
        expected = f"a tensor of shape {list(batch.query_target.shape)}, one for each sequence"
        raise bad_value("predictions", f"{list(predictions.shape)}", expected)
    return (predictions - batch.query_target).square()
