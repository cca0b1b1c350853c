"""Does a model distinguish addition from subtraction, and which complete rows does it use?

Shapes: B instances, K features.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hyla.errors import bad_value
from hyla.model import Transformer, check_single
from hyla.tasks.sraven import ADDITION, SUBTRACTION, SravenBatch

AT_ONCE = 512  # instances, for the sake of memory
COMPLETE_ROWS = ("first row", "second row")


@dataclass(frozen=True)
class ArithmeticAnswers:
    """What the answers to features under a rule of arithmetic are, as parts of all.

    right: what the rule gives. other: what subtraction would give under addition, and the other way
    round. Features for which both give the same symbol are left out. count: how many are not.
    """

    right: float
    other: float
    count: int

    @property
    def told_apart(self) -> float:
        """Of the answers that one of the two rules gives the part that is right: 0.5 by chance."""
        given = self.right + self.other
        return self.right / given if given else float("nan")


def arithmetic_answers(model: Transformer, batch: SravenBatch) -> dict[str, ArithmeticAnswers]:
    """The answers of a model under "addition" and "subtraction".

    >>> import hyla
    >>> from hyla.tasks.sraven import Sraven, SravenConfig
    >>> batch = Sraven(SravenConfig(features=2, values=5), seed=0).batch("all", 200)
    >>> sizes = hyla.ModelConfig(5, 5, layers=2, width=8, heads=3, buckets=18)
    >>> model = hyla.build(sizes, seed=0)
    >>> found = arithmetic_answers(model, batch)["addition"]
    >>> 0 <= found.right + found.other <= 1
    True
    """
    return judge_answers(best_symbols(model, batch), batch)


def agreement_after_row_swap(model: Transformer, batch: SravenBatch) -> dict[str, float]:
    """The part of the answers that stay if the "first row" ("second row") is another instance's.

    A model that does not look at a row keeps all of them. Each instance gets the row of the one
    before it in the batch.

    >>> import hyla
    >>> from hyla.tasks.sraven import Sraven, SravenConfig
    >>> batch = Sraven(SravenConfig(features=2, values=5), seed=0).batch("all", 200)
    >>> sizes = hyla.ModelConfig(5, 5, layers=2, width=8, heads=3, buckets=18)
    >>> sorted(agreement_after_row_swap(hyla.build(sizes, seed=0), batch))
    ['first row', 'second row']
    """
    answers_BK = best_symbols(model, batch)
    if len(answers_BK) < 2:
        raise bad_value("batch", f"{len(answers_BK)} of them", "at least two instances")
    found = {}
    for row, name in enumerate(COMPLETE_ROWS):
        panels = batch.panels.clone()
        panels[:, row] = batch.panels[:, row].roll(1, dims=0)
        others_BK = best_symbols(model, replace(batch, panels=panels))
        found[name] = float((answers_BK == others_BK).double().mean())
    return found


@torch.no_grad()
def best_symbols(model: Transformer, batch: SravenBatch) -> Tensor:
    """The symbols that a model answers with, `[B, K]`."""
    check_single(model)
    if batch.targets.ndim != 2:
        raise bad_value("batch", f"{batch.targets.ndim - 1} leading axes", "instances of one seed")
    if batch.values != model.config.input_size:
        expected = f"one with {model.config.input_size} values, as the model takes"
        raise bad_value("batch", f"one with {batch.values}", expected)
    inputs = batch.inputs.to(model.norm.weight).split(AT_ONCE)
    answers = [model(some, last=batch.targets.shape[-1]).argmax(dim=-1) for some in inputs]
    return torch.cat(answers).to(batch.targets.device)


def judge_answers(answers_BK: Tensor, batch: SravenBatch) -> dict[str, ArithmeticAnswers]:
    """The same of given answers, one symbol for each slot of the last panel."""
    targets_BK, other_BK, found = batch.targets, batch.other_sign, {}
    for name, rule in (("addition", ADDITION), ("subtraction", SUBTRACTION)):
        counted_BK = (batch.target_rules == rule) & (other_BK != targets_BK)
        right, other = (
            float((answers_BK == symbols_BK)[counted_BK].double().mean())  # NaN of none
            for symbols_BK in (targets_BK, other_BK)
        )
        found[name] = ArithmeticAnswers(right, other, int(counted_BK.sum()))
    return found
