"""What each task asks of a population: its training loss, and what is measured on a split.

Shapes: M members, B instances, K features of a panel, F values, R rules, S sums.
Measures are made from sums over instances, so that they can be accumulated over batches.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hyla.model import Transformer
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicBatch, FuzzyLogicConfig, r2
from hyla.tasks.sraven import RULES, Sraven, SravenBatch, SravenConfig, feature_accuracy

Measures = dict[str, Any]


class SravenObjective:
    """Cross-entropy of the K answers; right or wrong as a whole, by feature and by rule."""

    sums = 3 + 4 * len(RULES) + 3

    def __init__(self, config: SravenConfig, seeds: Sequence[int], device: torch.device) -> None:
        self.task = Sraven(config, seeds, device=device)

    def loss(
        self, population: Transformer, batch: SravenBatch, factors: Tensor | None = None
    ) -> Tensor:
        """The training loss of each member on a batch, `[M]`."""
        logits_MBKF = self._logits(population, batch, factors)
        return self._cross_entropy(logits_MBKF, batch).mean(dim=(-1, -2))

    def numbers(self, population: Transformer, batch: SravenBatch) -> Tensor:
        """For each instance what is to be summed, `[M, B, S]`."""
        logits_MBKF = self._logits(population, batch)
        right_MBK = feature_accuracy(logits_MBKF, batch.targets)
        rules = torch.arange(len(RULES), device=right_MBK.device)
        governs_MBKR = batch.target_rules.unsqueeze(-1) == rules
        has_MBR, right_MB1 = governs_MBKR.any(dim=-2), right_MBK.all(dim=-1, keepdim=True)
        numbers = (
            self._cross_entropy(logits_MBKF, batch).mean(dim=-1, keepdim=True),
            right_MB1,
            right_MBK.double().mean(dim=-1, keepdim=True),
            has_MBR & right_MB1,
            has_MBR,
            (governs_MBKR & right_MBK.unsqueeze(-1)).sum(dim=-2),
            governs_MBKR.sum(dim=-2),
            self._signs(logits_MBKF, batch),
        )
        return torch.cat([number.double() for number in numbers], dim=-1)

    @staticmethod
    def measures(sums: Sequence[float], instances: int) -> Measures:
        """The measures of a member from its sums; None for a rule that did not occur.

        accuracy_by_rule: of the instances that have the rule; feature_accuracy_by_rule: of the
        features that the rule governs. signs: of the features under addition and subtraction for
        which the two give different symbols, the part that is right, and the part that would be
        with the other sign.
        """
        loss, accuracy, by_feature = (number / instances for number in sums[:3])
        measures: Measures = {"loss": loss, "accuracy": accuracy, "feature_accuracy": by_feature}
        start = 3
        for name in ("accuracy_by_rule", "feature_accuracy_by_rule"):
            middle, end = start + len(RULES), start + 2 * len(RULES)
            pairs = zip(RULES, sums[start:middle], sums[middle:end], strict=True)
            measures[name] = {rule: right / all_ if all_ else None for rule, right, all_ in pairs}
            start = end
        right, other, all_ = sums[start:]
        measures["signs"] = {"right": right / all_, "other": other / all_} if all_ else None
        return measures

    @staticmethod
    def _signs(logits_MBKF: Tensor, batch: SravenBatch) -> Tensor:
        """How many answers are right, or right with the other sign, of how many: `[M, B, 3]`."""
        answers_MBK, other_MBK = logits_MBKF.argmax(dim=-1), batch.other_sign
        differs_MBK = other_MBK != batch.targets
        right_MBK = (answers_MBK == batch.targets) & differs_MBK
        wrong_MBK = (answers_MBK == other_MBK) & differs_MBK
        return torch.stack([x.sum(dim=-1) for x in (right_MBK, wrong_MBK, differs_MBK)], dim=-1)

    @staticmethod
    def _logits(
        population: Transformer, batch: SravenBatch, factors: Tensor | None = None
    ) -> Tensor:
        inputs, last = batch.inputs.to(population.norm.weight.dtype), batch.targets.shape[-1]
        return _at_least_float32(population(inputs, last=last, factors=factors))

    @staticmethod
    def _cross_entropy(logits_MBKF: Tensor, batch: SravenBatch) -> Tensor:
        values = torch.arange(batch.values, device=logits_MBKF.device)
        # Not a gather, whose gradient is scattered additions.
        chosen = batch.targets.unsqueeze(-1) == values
        return -(logits_MBKF.log_softmax(dim=-1) * chosen).sum(dim=-1)


class FuzzyLogicObjective:
    """Squared error of the query's target; explained variance by sequence, and pooled."""

    sums = 4

    def __init__(
        self, config: FuzzyLogicConfig, seeds: Sequence[int], device: torch.device
    ) -> None:
        self.task = FuzzyLogic(config, seeds, device=device)

    def loss(
        self, population: Transformer, batch: FuzzyLogicBatch, factors: Tensor | None = None
    ) -> Tensor:
        """The training loss of each member on a batch, `[M]`."""
        predictions = self._predictions(population, batch, factors)
        return (predictions - batch.query_target).square().mean(dim=-1)

    def numbers(self, population: Transformer, batch: FuzzyLogicBatch) -> Tensor:
        """For each instance what is to be summed, `[M, B, S]`."""
        predictions, target = self._predictions(population, batch), batch.query_target.double()
        error = (predictions - target).square()
        numbers = (error, r2(predictions, batch), target, target.square())
        return torch.stack([number.double() for number in numbers], dim=-1)

    @staticmethod
    def measures(sums: Sequence[float], instances: int) -> Measures:
        """The measures of a member from its sums; `r2` is the paper's, a mean over sequences."""
        error, explained, target, square = (number / instances for number in sums)
        variance = square - target**2
        pooled = 1 - error / variance if variance > 0 else None
        return {"loss": error, "r2": explained, "pooled_r2": pooled}

    @staticmethod
    def _predictions(
        population: Transformer, batch: FuzzyLogicBatch, factors: Tensor | None = None
    ) -> Tensor:
        inputs = batch.inputs.to(population.norm.weight.dtype)
        return _at_least_float32(population(inputs, last=1, factors=factors))[..., 0, 0]


class Objective(Protocol):
    """What a population needs of a task."""

    task: Any
    sums: int

    def loss(self, population: Transformer, batch: Any, factors: Tensor | None = None) -> Tensor:
        """The training loss of each member on a batch, `[M]`, with factors of the latent codes."""

    def numbers(self, population: Transformer, batch: Any) -> Tensor:
        """For each instance what is to be summed, `[M, B, S]`."""

    @staticmethod
    def measures(sums: Sequence[float], instances: int) -> Measures:
        """The measures of a member from its sums."""


def make_objective(
    config: SravenConfig | FuzzyLogicConfig, seeds: Sequence[int], device: torch.device
) -> Objective:
    """The objective of a task under the seed of each member."""
    if isinstance(config, SravenConfig):
        return SravenObjective(config, seeds, device)
    return FuzzyLogicObjective(config, seeds, device)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
