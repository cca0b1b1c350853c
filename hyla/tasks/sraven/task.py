"""SRAVEN: symbolic Raven's matrices, by address.

Shapes: B leading axes (population, batch), K features of a panel, F values of a feature, R rules.
The rows and columns of the 3 x 3 matrix of panels are written 3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
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
from hyla.tasks.sraven.config import (
    ADDITION,
    ATTEMPTS_STREAM,
    DISTRIBUTE_THREE,
    ROW_ORDERS,
    RULES,
    STEPS,
    STREAMS,
    SUBTRACTION,
    SravenConfig,
    split_combinations,
)

KEYS = ("self", "panels")  # that the last token attends to, in a probe


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
    def last_slots(self) -> Tensor:
        """The slots of the three columns that show the feature of the last slot, `[B, 3]`."""
        return (self.orders == self.orders[..., 2:, -1:]).int().argmax(dim=-1)

    @property
    def inputs(self) -> Tensor:
        """One-hot tokens in reading order, those of the last panel all zero: `[B, 9 K, F]`."""
        symbols = self.panels.flatten(-3).to(torch.int16, copy=True)
        symbols[..., -self.panels.shape[-1] :] = -1  # no symbol: a token of zeros
        values = torch.arange(self.values, dtype=torch.int16, device=symbols.device)
        return (symbols.unsqueeze(-1) == values).to(torch.float32)


class Sraven(Task):
    """SRAVEN instances under a seed, or under each seed of a population.

    >>> task = Sraven(SravenConfig(), seed=0)
    >>> batch = task.batch("train", range(100, 228))
    >>> batch.inputs.shape, batch.targets.shape
    (torch.Size([128, 36, 8]), torch.Size([128, 4]))
    """

    config: SravenConfig
    sum_names = (
        "loss",
        "accuracy",
        "feature_accuracy",
        *(f"{what} {rule}" for what in ("solved", "instances with") for rule in RULES),
        *(f"{what} {rule}" for what in ("right under", "features under") for rule in RULES),
        "right sign",
        "other sign",
        "signs",
    )

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

    def outputs(self, model: Predict, batch: SravenBatch) -> Tensor:
        """Logits of the K symbols of the last panel, `[M, B, K, F]`."""
        return model(batch.inputs, last=batch.targets.shape[-1])

    def loss(self, outputs: Tensor, batch: SravenBatch) -> Tensor:
        """Cross-entropy, the mean over instances and features."""
        return _cross_entropy(outputs, batch).mean(dim=(-1, -2))

    def tally(self, outputs: Tensor, batch: SravenBatch) -> Tensor:
        """Loss, right as a whole, by feature and by rule, and which sign was answered."""
        right_BK = feature_accuracy(outputs, batch.targets)
        rules = torch.arange(len(RULES), device=right_BK.device)
        governs_BKR = batch.target_rules.unsqueeze(-1) == rules
        has_BR, right_B1 = governs_BKR.any(dim=-2), right_BK.all(dim=-1, keepdim=True)
        numbers = (
            _cross_entropy(outputs, batch).mean(dim=-1, keepdim=True),
            right_B1,
            right_BK.double().mean(dim=-1, keepdim=True),
            has_BR & right_B1,
            has_BR,
            (governs_BKR & right_BK.unsqueeze(-1)).sum(dim=-2),
            governs_BKR.sum(dim=-2),
            _signs(outputs, batch),
        )
        return torch.cat([number.double() for number in numbers], dim=-1)

    def measure(self, sums: Mapping[str, float]) -> dict[str, Any]:
        """Turn sums into measures; None for a rule that did not occur.

        accuracy_by_rule: of the instances that have the rule. feature_accuracy_by_rule: of the
        features that the rule governs. signs: of the features for which addition and subtraction
        give different symbols, the fraction answered with the right sign and with the other one.
        """

        def by_rule(right: str, count: str) -> dict[str, float | None]:
            return {
                rule: _ratio(sums[f"{right} {rule}"], sums[f"{count} {rule}"]) for rule in RULES
            }

        names = ("loss", "accuracy", "feature_accuracy")
        right, other = (_ratio(sums[f"{name} sign"], sums["signs"]) for name in ("right", "other"))
        return {name: sums[name] / sums[COUNT] for name in names} | {
            "accuracy_by_rule": by_rule("solved", "instances with"),
            "feature_accuracy_by_rule": by_rule("right under", "features under"),
            "signs": None if right is None else {"right": right, "other": other},
        }

    def probe(
        self, split: str, index: Tensor, *, keys: str = "self", permute: bool = False
    ) -> Probe:
        """Return instances and the last token, which shows the last slot of the answer.

        keys: "self", the token itself, as in the paper's text; or "panels", the same feature in the
        two panels before, as in the authors' code. permute: show the features as in training, if
        the task permutes them; by default, as in the paper, in the order of their rules, so that
        the last slot has the highest of the K rules.
        """
        if keys not in KEYS:
            raise unknown_name("keys", keys, KEYS)
        batch = (self if permute else self.in_order).batch(split, index)
        if keys == "self":
            return Probe(batch)
        panels = torch.arange(6, 8, device=self.seed.device)  # before the answer, which is 8
        return Probe(batch, keys=batch.last_slots[..., :2] + self.config.features * panels)

    def labels(self, outputs: Tensor, batch: SravenBatch) -> dict[str, Label]:
        """Return what is known about the last slot of the answer.

        `inputs`: the two symbols of its feature before it in the row.
        """
        prediction, target = outputs[..., -1, :].argmax(dim=-1), batch.targets[..., -1]
        before = batch.panels[..., 2, :2, :].gather(-1, batch.last_slots[..., :2, None])[..., 0]
        rule = Label(batch.target_rules[..., -1], RULES, ("decode", "explain", "colour"))
        return {
            "rule": rule,
            "target": Label(target, uses=("explain",)),
            "prediction": Label(prediction, uses=("colour",)),
            "right": Label(prediction == target),
            "inputs": Label(before),
        }

    def references(self, split: str, index: Tensor) -> dict[str, dict[str, float]]:
        """Measure the exact solver, for which all combinations are possible, and two baselines."""
        from hyla.tasks.sraven.baselines import EXACT, SHOWN_BASELINES, read

        batch, found = self.batch(split, index), {}
        for name in (EXACT, *SHOWN_BASELINES):
            answers = read(name, batch.panels, self.config)
            right_BK = answers.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
            found[name] = {
                "accuracy": float(right_BK.prod(dim=-1).mean()),
                "feature_accuracy": float(right_BK.mean()),
            }
        return found

    @cached_property
    def in_order(self) -> "Sraven":
        """The same without permutation: features in the order of their rules."""
        if not self.config.permute:
            return self
        seeds = self.seed.flatten().tolist()
        config = replace(self.config, permute=False)
        return Sraven(config, seeds if self.seed.ndim else seeds[0], device=self.seed.device)

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


def _cross_entropy(logits_BKF: Tensor, batch: SravenBatch) -> Tensor:
    values = torch.arange(batch.values, device=logits_BKF.device)
    # Not a gather, whose gradient is scattered additions.
    chosen = batch.targets.unsqueeze(-1) == values
    return -(logits_BKF.log_softmax(dim=-1) * chosen).sum(dim=-1)


def _signs(logits_BKF: Tensor, batch: SravenBatch) -> Tensor:
    """Count answers that are right, right with the other sign, and all these features."""
    answers_BK, other_BK = logits_BKF.argmax(dim=-1), batch.other_sign
    differs_BK = other_BK != batch.targets
    right_BK = (answers_BK == batch.targets) & differs_BK
    wrong_BK = (answers_BK == other_BK) & differs_BK
    return torch.stack([x.sum(dim=-1) for x in (right_BK, wrong_BK, differs_BK)], dim=-1)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
