"""The exact SRAVEN solver: every hypothesis that fits a context, and the posterior over answers.

A hypothesis says, for each slot of the last column, which slots of the first two columns it belongs
to, and by which rule. Whether a triple of slots and a rule fit the context does not depend on the
other triples, so all that is left is to assign slots without using one twice: the rows of a table
that grows by one slot at a time and loses those that no longer fit.

Shapes: B instances, K features, R rules, N hypotheses, M answers (of all instances, one after the
other); slots of the three columns are written S1, S2 and S3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate

import torch
from torch import Tensor

from hyla.errors import bad_value
from hyla.tasks.address import instance_index
from hyla.tasks.sraven import (
    ADDITION,
    DISTRIBUTE_THREE,
    RULES,
    STEPS,
    SUBTRACTION,
    Sraven,
    SravenBatch,
    SravenConfig,
    split_combinations,
)

MAX_BYTES = 2**31  # of the largest table that is made
MAX_ATTEMPTS = 1000  # at an unambiguous instance
NEARLY = 1 - 1e-9  # sums that differ by less are equal but for the order in which they are rounded


@dataclass(frozen=True)
class Hypotheses:
    """All hypotheses that fit the contexts of a batch, ordered by instance.

    instance: which instance, `[N]`. rules: of the slots of the last column, `[N, K]`.
    first, second: the slots of the first two columns that go with them, `[N, K]`.
    answers: the panel that the hypothesis prescribes, `[N, K]`.
    log_weight: log of prior times likelihood, `[N]`; -inf for rules outside the split.
    """

    instance: Tensor
    rules: Tensor
    first: Tensor
    second: Tensor
    answers: Tensor
    log_weight: Tensor


@dataclass(frozen=True)
class Solution:
    """The solved batch: its hypotheses, and the posterior over the answers they prescribe.

    answer_instance, answers, probability: each different answer of each instance with its posterior
        probability, `[M]`, `[M, K]`, `[M]`, ordered by instance.
    best, best_probability: the most probable answer of each instance, `[B, K]`, `[B]`; -1 and 0
        where no hypothesis (of the split) fits.
    answer_count: how many different answers fit, whatever their probability, `[B]`.
    """

    hypotheses: Hypotheses
    answer_instance: Tensor
    answers: Tensor
    probability: Tensor
    best: Tensor
    best_probability: Tensor
    answer_count: Tensor

    @property
    def ambiguous(self) -> Tensor:
        """Whether hypotheses that fit the context prescribe different panels, `[B]`."""
        return self.answer_count > 1

    def ambiguous_every_feature(self, targets: Tensor) -> Tensor:
        """Whether some hypothesis prescribes a panel that differs in every feature, `[B]`."""
        differs = (self.answers != targets[self.answer_instance]).all(dim=-1)
        return torch.zeros_like(self.ambiguous).index_put((self.answer_instance,), differs, True)

    def feature_probability(self, values: int) -> Tensor:
        """The posterior of each feature's symbol, whatever the other features, `[B, K, F]`."""
        chosen_MKF = self.answers.unsqueeze(-1) == torch.arange(values, device=self.answers.device)
        found_BKF = self.probability.new_zeros(len(self.best), *chosen_MKF.shape[1:])
        weighted_MKF = chosen_MKF * self.probability[:, None, None]
        return found_BKF.index_add(0, self.answer_instance, weighted_MKF)


def default_chunk(device: torch.device) -> int:
    """How many instances are worked on at a time."""
    return 8192 if device.type == "cpu" else 131_072


def solve(
    panels: Tensor,
    config: SravenConfig,
    combinations: Tensor | None = None,
    *,
    chunk: int | None = None,
    rows: int = 2,
    distinct: bool = True,
) -> Solution:
    """Solves instances `[B, 3, 3, K]` exactly; the last panel is not looked at.

    combinations: the rule combinations `[C, K]` that the prior is uniform over, such as
        `Sraven(...).combinations["train"]`; all of them by default.
    chunk: how many instances are worked on at a time, which limits the memory; 8192 by default,
        131072 on a GPU.
    rows: how many of the complete rows are looked at; with 1, only the first.
    distinct: whether distribute three takes three different symbols, as the generator's does. If
        not, the complete rows need only hold the same symbols, and the last row some of them; the
        answer is then the smallest symbol that the last row lacks, or the smallest of all. So the
        authors' code does it.

    >>> task = Sraven(SravenConfig(), seed=0)
    >>> batch = task.batch("all", 100)
    >>> solution = solve(batch.panels, task.config)
    >>> bool((solution.best == batch.targets).all(dim=-1).float().mean() > 0.9)
    True
    """
    check_panels(panels, config)
    if combinations is None:
        combinations = torch.tensor(split_combinations(config, "all", 0), device=panels.device)
    if combinations.shape[1:] != (config.features,) or not len(combinations):
        expected = f"[combinations, {config.features}], those of one seed, at least one"
        raise bad_value("combinations", list(combinations.shape), expected)
    if rows not in (1, 2):
        raise bad_value("rows", repr(rows), "1 or 2")
    if chunk is None:
        chunk = default_chunk(panels.device)
    parts = [
        part
        for some in panels.split(chunk)
        for part in _solve_in_parts(some, config, combinations, rows, distinct)
    ]
    return _joined(parts) if len(parts) > 1 else parts[0]


def check_panels(panels: Tensor, config: SravenConfig) -> None:
    """Refuses instances of the wrong shape, or with a symbol that is not one of the F values."""
    shape = (3, 3, config.features)
    if not isinstance(panels, Tensor):
        raise bad_value("panels", type(panels).__name__, "a tensor")
    if panels.ndim != 4 or tuple(panels.shape[1:]) != shape:
        expected = f"[instances, 3, 3, {config.features}] for `features` = {config.features}"
        raise bad_value("panels", list(panels.shape), expected)
    if panels.dtype != torch.int64:
        raise bad_value("panels", panels.dtype, "symbols as int64")
    context = panels.flatten(1)[:, : -config.features]
    wrong = (context < 0) | (context >= config.values)
    if bool(wrong.any()):
        instance, place = wrong.nonzero()[0].tolist()
        panel, feature = divmod(place, config.features)
        where = f"panels[{instance}], row {panel // 3}, column {panel % 3}, feature {feature}"
        given = int(context[instance, place])
        raise bad_value(where, given, f"a symbol from 0 to {config.values - 1}")


class _TooManyHypothesesError(Exception):
    """The table of hypotheses would not fit into the memory."""


def _solve_in_parts(
    panels: Tensor, config: SravenConfig, combinations: Tensor, rows: int, distinct: bool
) -> list[Solution]:
    """Solves a chunk whole or, where it has too many hypotheses for that, in halves."""
    try:
        return [_solve(panels, config, combinations, rows, distinct)]
    except _TooManyHypothesesError:
        if len(panels) == 1:
            expected = f"a context that fewer than {MAX_BYTES / 8 / config.features**2:.0e}"
            given = "one with more"
            raise bad_value("panels", given, f"{expected} partial hypotheses fit") from None
    return [
        part
        for half in panels.chunk(2)
        for part in _solve_in_parts(half, config, combinations, rows, distinct)
    ]


def _solve(
    panels: Tensor, config: SravenConfig, combinations: Tensor, rows: int, distinct: bool
) -> Solution:
    if len(panels) * config.values**config.features >= 2**63:  # answers are counted in one number
        if len(panels) > 1:
            raise _TooManyHypothesesError
        given = f"{config.features} features of {config.values} values"
        raise bad_value("features, values", given, "values ** features below 2^63")
    fits = fitting_triples(panels, config, rows, distinct=distinct)
    instance, first, second, rules = _assignments(fits, config)
    answers = _prescribed(panels, instance, first, second, rules, config.values)
    log_weight = _log_weight(rules, config, combinations, rows)
    found = Hypotheses(instance, rules, first, second, answers, log_weight)
    return _posterior(found, len(panels), config)


def fitting_triples(
    panels: Tensor, config: SravenConfig, rows: int, *, distinct: bool = True
) -> Tensor:
    """Which rules fit each triple of slots, `[B, S3, S1, S2, R]`.

    rows: how many complete rows are looked at, beside the first two columns of the last row.
    distinct: as in `solve`.
    """
    values, x = config.values, panels.to(torch.int16)
    # Symbols of the first two columns by row, and of the last by complete row.
    a, b = x[:, :, 0, None, :, None].unbind(dim=1), x[:, :, 1, None, None, :].unbind(dim=1)
    c = x[:, :2, 2, :, None, None].unbind(dim=1)
    complete = [(a[row], b[row], c[row]) for row in range(rows)]
    step = (b[2] - a[2]) % values
    progresses = adds = subtracts = torch.ones_like(step, dtype=torch.bool)
    distributes = _distributes_three(complete, (a[2], b[2]), distinct)
    for one, two, three in complete:
        progresses = progresses & ((two - one) % values == step) & ((three - two) % values == step)
        adds = adds & (three == (one + two) % values)
        subtracts = subtracts & (three == (one - two) % values)
    rules = [progresses & (step == by % values) for by in STEPS]
    rules += [adds, subtracts, distributes]
    fits = torch.stack(torch.broadcast_tensors(*rules), dim=-1)
    if not config.permute:
        slots = torch.arange(config.features, device=x.device)
        aligned = (slots[:, None] == slots).unsqueeze(-1) & (slots[:, None, None] == slots)
        fits = fits & aligned.unsqueeze(-1)
    return fits


def _distributes_three(
    rows: Sequence[tuple[Tensor, ...]], last: tuple[Tensor, Tensor], distinct: bool
) -> Tensor:
    """Whether complete rows, and the first two symbols of the last, take the same three."""
    first, *others = (_in_order(row) for row in rows)
    fits = torch.stack([(symbol == first).any(dim=0) for symbol in last]).all(dim=0)
    for row in others:
        fits = fits & (row == first).all(dim=0)
    if distinct:
        fits = fits & (last[0] != last[1]) & (first[0] < first[1]) & (first[1] < first[2])
    return fits


def _in_order(row: tuple[Tensor, ...]) -> Tensor:
    """The three symbols of a row, the smallest first, `[3, ...]`."""
    one, two, three = row
    low, high = torch.minimum(one, two), torch.maximum(one, two)
    bottom, top = torch.minimum(low, three), torch.maximum(high, three)
    return torch.stack((bottom, one + two + three - bottom - top, top))


def _assignments(fits: Tensor, config: SravenConfig) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Every way to use each slot once: the instance, and `[N, K]` slots and rules."""
    batch, features = fits.shape[:2]
    instance = torch.arange(batch, device=fits.device)
    free1 = torch.ones(batch, features, dtype=torch.bool, device=fits.device)
    free2 = free1
    chosen = torch.empty(batch, 0, 3, dtype=torch.int64, device=fits.device)
    for slot in range(features):
        free = (free1.unsqueeze(-1) & free2.unsqueeze(-2)).unsqueeze(-1)
        if len(instance) * features**2 * len(RULES) > MAX_BYTES:
            raise _TooManyHypothesesError
        row, first, second, rule = (fits[instance, slot] & free).nonzero(as_tuple=True)
        instance = instance[row]
        free1 = free1[row].scatter(1, first.unsqueeze(-1), False)
        free2 = free2[row].scatter(1, second.unsqueeze(-1), False)
        step = torch.stack((first, second, rule), dim=-1).unsqueeze(1)
        chosen = torch.cat((chosen[row], step), dim=1)
    first, second, rules = chosen.unbind(dim=-1)
    if not config.permute:  # then the rules lie on the features in sorted order
        ordered = (rules[:, 1:] >= rules[:, :-1]).all(dim=-1)
        instance, first, second, rules = (
            part[ordered] for part in (instance, first, second, rules)
        )
    return instance, first, second, rules


def _prescribed(
    panels: Tensor, instance: Tensor, first: Tensor, second: Tensor, rules: Tensor, values: int
) -> Tensor:
    """The symbols that each rule prescribes for its slot of the last panel, `[N, K]`."""
    mine = panels[instance]
    a0, a2 = mine[:, 0, 0].gather(1, first), mine[:, 2, 0].gather(1, first)
    b0, b2 = mine[:, 0, 1].gather(1, second), mine[:, 2, 1].gather(1, second)
    c0 = mine[:, 0, 2]
    steps = rules.new_tensor((*STEPS, 0, 0, 0))[rules]
    answer = torch.where(rules == ADDITION, a2 + b2, b2 + steps)
    answer = torch.where(rules == SUBTRACTION, a2 - b2, answer) % values
    return torch.where(rules == DISTRIBUTE_THREE, _left_over((a0, b0, c0), (a2, b2)), answer)


def _left_over(row: tuple[Tensor, ...], taken: tuple[Tensor, Tensor]) -> Tensor:
    """Return the smallest symbol of a row that is not taken, or its smallest if all are."""
    ordered = _in_order(row)
    left = ((ordered != taken[0]) & (ordered != taken[1])).byte()
    return ordered.gather(0, left.argmax(dim=0, keepdim=True)).squeeze(0)


def rule_log_likelihood(values: int, rows: int) -> Tensor:
    """Log probability of the symbols of a feature in so many rows under each rule that fits them.

    One free symbol a row for constant and progressions, two for addition and subtraction; for
    distribute three a set of three symbols and an order for each row.
    """
    one, two = -rows * math.log(values), -2 * rows * math.log(values)
    three = -math.log(math.comb(values, 3)) - rows * math.log(6)
    return torch.tensor([one] * len(STEPS) + [two, two, three], dtype=torch.float64)


def _log_weight(
    rules: Tensor, config: SravenConfig, combinations: Tensor, complete_rows: int
) -> Tensor:
    """Log of prior times likelihood of the hypotheses, `[N]`."""
    each = rule_log_likelihood(config.values, complete_rows + 1).to(rules.device)
    likelihood = each[rules].sum(dim=-1)
    base = len(RULES) ** torch.arange(config.features - 1, -1, -1, device=rules.device)
    known = (combinations.sort(dim=-1).values * base).sum(dim=-1).sort().values
    code = (rules.sort(dim=-1).values * base).sum(dim=-1)
    place = torch.searchsorted(known, code).clamp(max=len(known) - 1)
    log_prior = torch.where(known[place] == code, -math.log(len(known)), -torch.inf)
    if config.permute:
        # Features with the same rule can be named in any order: that many permutations agree.
        counts = (rules.unsqueeze(-1) == torch.arange(len(RULES), device=rules.device)).sum(dim=-2)
        log_prior = log_prior + torch.lgamma(counts.double() + 1).sum(dim=-1)
        log_prior = log_prior - 3 * math.lgamma(config.features + 1)
    return likelihood + log_prior


def _posterior(found: Hypotheses, batch: int, config: SravenConfig) -> Solution:
    """Adds up the hypotheses that prescribe the same panel."""
    device, features = found.instance.device, config.features
    place = config.values ** torch.arange(features - 1, -1, -1, device=device)
    codes = config.values**features
    key = found.instance * codes + (found.answers * place).sum(dim=-1)
    keys, answer_of = torch.unique(key, return_inverse=True)
    answer_instance = keys // codes
    answers = (keys % codes).unsqueeze(-1) // place % config.values
    largest = torch.full((batch,), -torch.inf, dtype=torch.float64, device=device)
    largest = largest.scatter_reduce(0, found.instance, found.log_weight, "amax")
    reference = largest.masked_fill(largest == -torch.inf, 0.0)
    weight = (found.log_weight - reference[found.instance]).exp()
    zeros = torch.zeros(batch, dtype=torch.float64, device=device)
    total = zeros.index_add(0, found.instance, weight)
    mass = weight.new_zeros(len(keys)).index_add(0, answer_of, weight)
    probability = mass / total.clamp(min=torch.finfo(torch.float64).tiny)[answer_instance]
    best_probability = zeros.scatter_reduce(0, answer_instance, probability, "amax")
    # Of equally probable answers the first.
    is_best = (probability >= NEARLY * best_probability[answer_instance]) & (probability > 0)
    # (Writing to one place several times would leave any of them, by the order of threads.)
    number = torch.arange(len(keys), device=device)[is_best]
    first = torch.full((batch,), len(keys), dtype=torch.int64, device=device)
    first = first.scatter_reduce(0, answer_instance[is_best], number, "amin")
    best = torch.cat((answers, answers.new_full((1, features), -1)))[first]
    count = torch.zeros(batch, dtype=torch.int64, device=device)
    count = count.index_add(0, answer_instance, torch.ones_like(answer_instance))
    return Solution(found, answer_instance, answers, probability, best, best_probability, count)


def _joined(parts: Sequence[Solution]) -> Solution:
    """The solutions of successive chunks as one."""
    starts = [0, *accumulate(len(part.best) for part in parts)]
    shifted = [
        replace(
            part,
            answer_instance=part.answer_instance + start,
            hypotheses=replace(part.hypotheses, instance=part.hypotheses.instance + start),
        )
        for start, part in zip(starts, parts, strict=False)
    ]
    hypotheses = Hypotheses(
        **{
            field.name: torch.cat([getattr(part.hypotheses, field.name) for part in shifted])
            for field in fields(Hypotheses)
        }
    )
    tensors = {
        field.name: torch.cat([getattr(part, field.name) for part in shifted])
        for field in fields(Solution)
        if field.name != "hypotheses"
    }
    return Solution(hypotheses, **tensors)


def unambiguous_batch(task: Sraven, split: str, index: Tensor | range | int) -> SravenBatch:
    """Instances whose context fits one answer only, by address as `Sraven.batch`.

    Instance i is the first attempt at address i that is unambiguous; rules that are ambiguous more
    often are thereby rarer than in `Sraven.batch`.

    >>> task = Sraven(SravenConfig(values=4), seed=0)
    >>> batch = unambiguous_batch(task, "train", 50)
    >>> bool(solve(batch.panels, task.config).ambiguous.any())
    False
    """
    if task.seed.ndim:
        raise bad_value("seed", "a population", "one seed for unambiguous instances")
    index_B = instance_index(index, task.seed.device)
    batch, attempt = task.batch(split, index_B), 0
    panels, rules, orders = batch.panels, batch.rules, batch.orders
    wrong = solve(panels, task.config).ambiguous.nonzero().flatten()
    while len(wrong):
        attempt += 1
        if attempt == MAX_ATTEMPTS:
            settings = f"{task.config.features} features of {task.config.values} values"
            expected = f"settings with an unambiguous instance in {MAX_ATTEMPTS} attempts"
            raise bad_value("features, values", settings, expected)
        again = task.batch(split, index_B[wrong], attempt=attempt)
        panels = panels.index_copy(0, wrong, again.panels)
        rules = rules.index_copy(0, wrong, again.rules)
        orders = orders.index_copy(0, wrong, again.orders)
        wrong = wrong[solve(again.panels, task.config).ambiguous]
    return SravenBatch(panels, rules, orders, batch.values)
