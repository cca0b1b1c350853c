"""Numbers about SRAVEN: how often it is ambiguous, how well it can be solved, how large it is."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch

from hyla.errors import bad_value, unknown_name
from hyla.tasks.address import Estimate
from hyla.tasks.sraven import (
    RULES,
    STEPS,
    STREAMS,
    Sraven,
    SravenConfig,
    number_of_combinations,
)
from hyla.tasks.sraven.solver import default_chunk, solve


@dataclass(frozen=True)
class Statistics:
    """What the exact solver says about a split.

    ambiguous: the fraction of instances whose context fits several answers (the paper's words).
    ambiguous_every_feature: of those with an answer that differs from the true one everywhere.
    ambiguous_every_feature_loose: the same where distribute three need not take three different
        symbols, as in the authors' code.
    ceiling: the accuracy of the most probable answer: under the prior of the instances' own split
        no solver does better on average.
    top_posterior: the mean probability of that answer; with that prior, the same but for chance.
    feature_accuracy_by_rule: of the features that a rule governs, those whose most probable symbol
        is the true one, for each rule that occurs. No solver has more right features in all, but
        one may have more under some rules at the cost of others.
    """

    instances: int
    ambiguous: Estimate
    ambiguous_every_feature: Estimate
    ambiguous_every_feature_loose: Estimate
    ceiling: Estimate
    top_posterior: Estimate
    feature_accuracy_by_rule: dict[str, Estimate]


def statistics(
    config: SravenConfig,
    split: str = "all",
    instances: int = 16_384,
    *,
    prior: str | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Statistics:
    """Solves the first `instances` of a split.

    prior: the split whose rule combinations the solver takes to be possible; that of the instances
        by default.
    progress: called with the number of instances solved since the last call.

    >>> statistics(SravenConfig(), "train", 500).ceiling.value > 0.8
    True
    """
    if instances < 2:
        raise bad_value("instances", instances, "a whole number of at least 2")
    for field, name in (("split", split), ("prior", prior or split)):
        if name not in STREAMS:
            raise unknown_name(field, name, STREAMS)
    task = Sraven(config, seed, device=device)
    samples, right, rules = [], [], []
    task.check_split(prior or split)
    chunk = default_chunk(task.seed.device)
    for start in range(0, instances, chunk):
        index = range(start, min(start + chunk, instances))
        batch = task.batch(split, index)
        solution = solve(batch.panels, config, task.combinations[prior or split])
        loose = solve(batch.panels, config, distinct=False)
        measured = (
            solution.ambiguous,
            solution.ambiguous_every_feature(batch.targets),
            loose.ambiguous_every_feature(batch.targets),
            (solution.best == batch.targets).all(dim=-1),
            solution.best_probability,
        )
        samples.append(torch.stack([values.double() for values in measured]))
        guess = solution.feature_probability(config.values).argmax(dim=-1)
        right.append((guess == batch.targets) & (solution.best >= 0))  # not where nothing fits
        rules.append(batch.target_rules)
        progress(len(index))
    right_BK, rules_BK = torch.cat(right), torch.cat(rules)
    governed = {rule: right_BK[rules_BK == i] for i, rule in enumerate(RULES)}
    by_rule = {rule: Estimate.of(samples) for rule, samples in governed.items() if len(samples)}
    ambiguous, every, loosely, best, top = map(Estimate.of, torch.cat(samples, dim=1))
    return Statistics(instances, ambiguous, every, loosely, best, top, by_rule)


def number_of_tasks(features: int) -> int:
    """Rule combinations times ((K!)^2 - K) relative orders of the columns: the paper's count.

    >>> number_of_tasks(4)
    188760
    """
    return number_of_combinations(features) * (math.factorial(features) ** 2 - features)


def number_of_laid_out_tasks(features: int) -> int:
    """Different ways to lay rules on slots: a rule for each of K triples of slots, in any order.

    A combination with K! / m labellings of its features (m of them equal, for repeated rules) has
    (K!)^3 / m layouts; with more than 4 values, no two rules are the same.

    >>> number_of_laid_out_tasks(1), number_of_laid_out_tasks(2)
    (8, 256)
    """
    total = 0
    for combination in combinations_with_replacement(range(len(RULES)), features):
        repeats = math.prod(math.factorial(combination.count(rule)) for rule in set(combination))
        total += math.factorial(features) ** 3 // repeats
    return total


def number_of_instances(features: int, values: int) -> int:
    """Layouts with all choices of symbols: what the generator can draw, with its rules.

    A row has F choices under constant and progression, F^2 under addition and subtraction; all
    three rows together have C(F, 3) 6^3 under distribute three.

    >>> number_of_instances(1, 8) == 5 * 8**3 + 2 * 8**6 + 56 * 216
    True
    """
    one, two, three = values**3, values**6, math.comb(values, 3) * 216
    choices = [one] * len(STEPS) + [two, two, three]
    total = 0
    for combination in combinations_with_replacement(range(len(RULES)), features):
        repeats = math.prod(math.factorial(combination.count(rule)) for rule in set(combination))
        symbols = math.prod(choices[rule] for rule in combination)
        total += math.factorial(features) ** 3 // repeats * symbols
    return total
