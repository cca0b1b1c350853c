"""Fuzzy logic functions to be learned in context, by address.

Shapes: B leading axes (population, batch), N examples of a sequence, L variables, K terms of a
function.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import comb
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from hyla import random
from hyla.errors import bad_value, unknown_name
from hyla.tasks.address import (
    TaskDataset,
    as_dict,
    draw_combination,
    instance_index,
    seed_tensor,
    split_tables,
)
from hyla.tasks.base import COUNT, Label, Predict, Probe, Task
from hyla.tasks.fuzzy_logic.config import (
    FIXED,
    FIXED_STREAM,
    STREAMS,
    FuzzyLogicConfig,
    check_split,
    split_combinations,
)


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


class FuzzyLogic(Task):
    """Fuzzy logic instances under a seed, or under each seed of a population.

    >>> task = FuzzyLogic(FuzzyLogicConfig(), seed=0)
    >>> batch = task.batch("train", range(100, 228))
    >>> batch.inputs.shape, batch.query_target.shape
    (torch.Size([128, 32, 5]), torch.Size([128]))
    """

    config: FuzzyLogicConfig
    sum_names = ("error", "r2", "target", "squared target")

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
        check_split(self.config, split)
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

    def outputs(self, model: Predict, batch: FuzzyLogicBatch) -> Tensor:
        """The predicted targets of the queries, `[M, B]`."""
        return model(batch.inputs, last=1)[..., 0, 0]

    def loss(self, outputs: Tensor, batch: FuzzyLogicBatch) -> Tensor:
        """The mean squared error."""
        return (outputs - batch.query_target).square().mean(dim=-1)

    def tally(self, outputs: Tensor, batch: FuzzyLogicBatch) -> Tensor:
        """Squared error, explained variance, and what the pooled variance needs."""
        target = batch.query_target.double()
        numbers = ((outputs - target).square(), r2(outputs, batch), target, target.square())
        return torch.stack([number.double() for number in numbers], dim=-1)

    def measure(self, sums: Mapping[str, float]) -> dict[str, Any]:
        """Turn sums into measures; `r2` is the paper's, a mean over sequences."""
        error, r2_, target, square = (sums[name] / sums[COUNT] for name in self.sum_names)
        variance = square - target**2
        pooled = 1 - error / variance if variance > 0 else None
        return {"loss": error, "r2": r2_, "pooled_r2": pooled}

    def probe(self, split: str, index: Tensor, *, fixed: str | None = None) -> Probe:
        """Return instances and the query attending to itself. fixed: as in `batch`."""
        return Probe(self.batch(split, index, fixed=fixed))

    def labels(self, outputs: Tensor, batch: FuzzyLogicBatch) -> dict[str, Label]:
        """Return what is known about instances.

        `terms`, sorted, and each as `term 1`, `term 2` ...; `function`: the rank of the terms among
        all sets of as many, those with the lowest largest term first; `formula`.
        """
        rows = [tuple(row) for row in batch.terms.tolist()]
        formulas = {row: describe(row, self.config.variables) for row in set(rows)}
        found = {
            "target": Label(batch.query_target, uses=("explain", "colour")),
            "prediction": Label(outputs),
            "terms": Label(batch.terms, uses=("decode",)),
            "function": Label(
                torch.tensor([_rank(row) for row in rows]), (), ("explain", "colour")
            ),
            "formula": Label([formulas[row] for row in rows]),
        }
        columns = enumerate(batch.terms.unbind(dim=-1), start=1)
        return found | {f"term {k}": Label(terms, uses=("colour",)) for k, terms in columns}

    def references(self, split: str, index: Tensor) -> dict[str, dict[str, float]]:
        """Measure the baselines, which are not trained."""
        from hyla.tasks.fuzzy_logic.baselines import BASELINES, predict

        batch, seed = self.batch(split, index), int(self.seed)
        predicted = {name: predict(name, batch.inputs, self.config, seed) for name in BASELINES}
        return {name: {"r2": float(r2(x, batch).mean())} for name, x in predicted.items()}

    def dataset(self, split: str, length: int) -> TaskDataset:
        """The first `length` instances of a split as a map-style dataset.

        >>> item = FuzzyLogic(FuzzyLogicConfig()).dataset("train", 1000)[7]
        >>> sorted(item), item["inputs"].shape
        (['inputs', 'query_target', 'targets', 'terms'], torch.Size([32, 5]))
        """
        check_split(self.config, split)
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


def _rank(terms: Sequence[int]) -> int:
    """The number of a set of terms among all sets of that size, ordered by their largest terms.

    >>> from itertools import combinations
    >>> sorted(_rank(terms) for terms in combinations(range(5), 2)) == list(range(10))
    True
    """
    return sum(comb(term, place) for place, term in enumerate(sorted(terms), start=1))
