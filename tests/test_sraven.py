"""SRAVEN by address: rules, permutations, splits, and what may not matter."""

import math
import pickle
import shutil
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from hyla.tasks.address import SPLIT_STREAM
from hyla.tasks.sraven import (
    RULES,
    STREAMS,
    Sraven,
    SravenBatch,
    SravenConfig,
    accuracy,
    feature_accuracy,
    number_of_combinations,
    split_combinations,
)
from hyla.tasks.sraven.config import ATTEMPTS_STREAM
from hyla.tasks.sraven.solver import solve
from hyla.tasks.sraven.stats import (
    number_of_instances,
    number_of_laid_out_tasks,
    number_of_tasks,
    statistics,
)

CONFIGS = [
    SravenConfig(),
    SravenConfig(features=3, values=5),
    SravenConfig(features=2, values=3),
    SravenConfig(features=5, values=11, permute=False),
]


def features_of(batch: SravenBatch) -> torch.Tensor:
    """The symbols by feature instead of slot, `[B, K, row, column]`: undoes the columns' orders."""
    slot_of_feature = batch.orders.argsort(dim=-1)
    index = slot_of_feature.unsqueeze(-3).expand(batch.panels.shape)
    return batch.panels.gather(-1, index).movedim(-1, -3)


def obeys(rule: int, rows: list[list[int]], values: int) -> bool:
    """Whether three rows follow a rule, in the paper's words."""
    name = RULES[rule]
    if name == "distribute three":
        return all(set(row) == set(rows[0]) and len(set(row)) == 3 for row in rows)
    if name == "addition":
        return all((a + b) % values == c for a, b, c in rows)
    if name == "subtraction":
        return all((a - b) % values == c for a, b, c in rows)
    step = 0 if name == "constant" else int(name.split()[1])
    return all((y - x) % values == step % values for row in rows for x, y in pairwise(row))


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("split", ["train", "held_out", "all"])
def test_every_row_obeys_its_rule(config: SravenConfig, split: str) -> None:
    batch = Sraven(config, seed=3).batch(split, 200)
    assert batch.panels.min() >= 0
    assert batch.panels.max() < config.values
    for rules, rows in zip(batch.rules.tolist(), features_of(batch).tolist(), strict=True):
        assert rules == sorted(rules)
        assert all(obeys(r, feature, config.values) for r, feature in zip(rules, rows, strict=True))


def test_the_rule_of_each_slot_of_the_answer() -> None:
    batch = Sraven(SravenConfig(), seed=0).batch("all", 50)
    for n in range(50):
        for slot in range(4):
            feature = int(batch.orders[n, 2, slot])
            assert batch.target_rules[n, slot] == batch.rules[n, feature]
            assert batch.targets[n, slot] == features_of(batch)[n, feature, 2, 2]


@pytest.mark.parametrize("config", CONFIGS)
def test_an_instance_depends_on_its_address_only(config: SravenConfig) -> None:
    task = Sraven(config, seed=9)
    large = task.batch("train", range(100, 164))
    for i in (100, 131, 163):
        alone = task.batch("train", torch.tensor([i]))
        assert alone.panels[0].equal(large.panels[i - 100])
        assert alone.orders[0].equal(large.orders[i - 100])
    backwards = task.batch("train", torch.arange(163, 99, -1))
    assert backwards.panels.flip(0).equal(large.panels)
    others = (Sraven(config, seed=10).batch("train", 64), task.batch("all", 64))
    assert not any(other.panels.equal(task.batch("train", 64).panels) for other in others)


@pytest.mark.parametrize("split", ["train", "held_out", "all"])
def test_members_of_a_population_are_as_alone(split: str) -> None:
    seeds, index = [4, 2**50, 0], range(7, 30)
    together = Sraven(SravenConfig(), seeds).batch(split, index)
    assert together.inputs.shape == (3, 23, 36, 8)
    for m, seed in enumerate(seeds):
        alone = Sraven(SravenConfig(), seed).batch(split, index)
        for name in ("panels", "rules", "orders", "inputs", "targets", "target_rules"):
            assert getattr(together, name)[m].equal(getattr(alone, name)), name


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_generation_is_bit_identical() -> None:
    task = Sraven(SravenConfig(), [0, 1])
    torch.compiler.reset()
    compiled = torch.compile(lambda start: task.batch("train", start + torch.arange(53)).panels)
    for start in (0, 2**33):
        exact = task.batch("train", range(start, start + 53)).panels
        assert compiled(torch.tensor(start)).equal(exact)


@pytest.mark.gpu
def test_generation_on_the_gpu_is_bit_identical() -> None:
    exact = Sraven(SravenConfig(), [0, 1]).batch("train", 1000)
    task = Sraven(SravenConfig(), [0, 1], device="cuda")
    assert task.batch("train", 1000).panels.cpu().equal(exact.panels)
    compiled = torch.compile(lambda i: task.batch("train", i).inputs, fullgraph=True)
    assert compiled(torch.arange(1000, device="cuda")).cpu().equal(exact.inputs)
    index = torch.arange(1000, device="cuda")
    task.batch("train", index)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = task.batch("train", index).inputs
    index += 2**33  # the replay must read the new numbers, not repeat the captured instances
    graph.replay()
    later = Sraven(SravenConfig(), [0, 1]).batch("train", range(2**33, 2**33 + 1000))
    assert captured.cpu().equal(later.inputs)


def test_tokens_are_one_hot_in_reading_order_and_the_answer_is_hidden() -> None:
    batch = Sraven(SravenConfig(features=3, values=5), seed=0).batch("all", 20)
    inputs = batch.inputs
    assert inputs.shape == (20, 27, 5)
    assert inputs[:, :24].sum(dim=-1).eq(1).all()
    assert inputs[:, 24:].eq(0).all()
    assert inputs[:, :24].argmax(dim=-1).equal(batch.panels.flatten(1)[:, :24])
    assert inputs[4, 3 * (3 * 1 + 2) + 1].argmax() == batch.panels[4, 1, 2, 1]


def test_permutations_are_uniform_and_independent_between_columns() -> None:
    orders = Sraven(SravenConfig(features=3), seed=0).batch("all", 21_600).orders
    assert orders.sort(dim=-1).values.eq(torch.arange(3)).all()
    counts = Counter(map(str, orders.tolist()))
    assert len(counts) == 6**3
    chi_square = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi_square < 285  # the 99.9 % quantile for 215 degrees of freedom


def test_without_permutation_slots_are_features() -> None:
    batch = Sraven(SravenConfig(permute=False), seed=0).batch("all", 50)
    assert batch.orders.eq(torch.arange(4)).all()
    assert batch.target_rules.equal(batch.rules)


@pytest.mark.parametrize("split, size", [("train", 248), ("held_out", 82), ("all", 330)])
def test_combinations_are_uniform_over_their_split(split: str, size: int) -> None:
    task = Sraven(SravenConfig(), seed=5)
    rules = task.batch(split, 100 * size).rules
    counts = Counter(map(tuple, rules.tolist()))
    assert sorted(counts) == sorted(map(tuple, task.combinations[split].tolist()))
    assert len(counts) == size
    chi_square = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi_square < size + 3.3 * math.sqrt(2 * size)  # about the 99.9 % quantile


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_splits_are_disjoint_multisets_that_cover_all(seed: int) -> None:
    config = SravenConfig(features=3, held_out=0.4)
    train, held_out = (set(split_combinations(config, s, seed)) for s in ("train", "held_out"))
    assert not train & held_out
    assert train | held_out == set(split_combinations(config, "all", seed))
    assert len(held_out) == int(number_of_combinations(3) * 0.4)
    # A combination and its permutations are one: each appears once, sorted.
    assert all(tuple(sorted(combination)) == combination for combination in train | held_out)


def test_the_split_follows_the_seed_unless_it_has_its_own() -> None:
    by_seed = [split_combinations(SravenConfig(), "train", seed) for seed in (0, 1)]
    fixed = [split_combinations(SravenConfig(split_seed=0), "train", seed) for seed in (0, 1)]
    assert by_seed[0] != by_seed[1]
    assert fixed[0] == fixed[1] == by_seed[0]


def test_symbols_are_uniform_and_three_symbols_different() -> None:
    batch = Sraven(SravenConfig(), seed=2).batch("all", 20_000)
    rows = features_of(batch)[batch.rules == RULES.index("distribute three")]
    triples = Counter(map(tuple, rows[:, 0].sort(dim=-1).values.tolist()))
    assert len(triples) == math.comb(8, 3)
    expected = len(rows) / 56
    assert sum((c - expected) ** 2 / expected for c in triples.values()) < 93  # 99.9 %, 55 degrees
    firsts = features_of(batch)[batch.rules == RULES.index("addition")][:, 1, :2]
    pairs = Counter(map(tuple, firsts.tolist()))
    expected = len(firsts) / 64
    assert sum((c - expected) ** 2 / expected for c in pairs.values()) < 104  # 63 degrees


def chi_square(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of the hypothesis that two lists of small numbers have nothing to do with each other."""
    table = torch.zeros(int(one.max()) + 1, int(other.max()) + 1).double()
    table.index_put_((one, other), torch.ones(len(one)).double(), accumulate=True)
    expected = table.sum(dim=1, keepdim=True) * table.sum(dim=0) / len(one)
    return float(((table - expected) ** 2 / expected).sum())


def test_rules_symbols_and_orders_have_nothing_to_do_with_each_other() -> None:
    batch = Sraven(SravenConfig(), seed=4).batch("all", 20_000)
    symbols = features_of(batch)
    drawn = [symbols[:, k, r, 0] for k in range(4) for r in range(3)]
    drawn += [batch.orders[:, c, slot] for c in range(3) for slot in (0, 1)]
    drawn += [batch.rules[:, 0], batch.rules[:, 3]]
    same_rows = {(3 * k + r, 3 * k + s) for k in range(4) for r in range(3) for s in range(3)}
    for i, one in enumerate(drawn):
        for j, other in enumerate(drawn[:i]):
            # Rows of distribute three, slots of one order and sorted rules do depend.
            if (j, i) in same_rows or (i >= 12 and j >= 12 and i // 2 == j // 2):
                continue
            # 99.99 % quantile at the 49 degrees of freedom of two symbols: 96.
            assert chi_square(one, other) < 110, (i, j)


def test_first_symbols_and_row_orders_are_uniform() -> None:
    batch = Sraven(SravenConfig(), seed=6).batch("all", 30_000)
    rows = features_of(batch)
    for rule in range(7):
        first = rows[batch.rules == rule][:, 2, 0]
        counts = first.bincount(minlength=8)
        expected = len(first) / 8
        assert ((counts - expected) ** 2 / expected).sum() < 30, rule  # 99.99 %, 7 degrees
    three = rows[batch.rules == RULES.index("distribute three")]
    order = three.argsort(dim=-1)
    number = order[..., 0] * 2 + (order[..., 1] > order[..., 2]).long()
    counts = (number[:, 0] * 36 + number[:, 1] * 6 + number[:, 2]).bincount(minlength=216)
    expected = len(three) / 216
    assert ((counts - expected) ** 2 / expected).sum() < 300  # 99.99 %, 215 degrees


def test_every_split_and_attempt_has_random_numbers_of_its_own() -> None:
    task = Sraven(SravenConfig(), seed=0)
    drawn = {
        str(task.batch(split, 20, attempt=attempt).orders.tolist())
        for split in STREAMS
        for attempt in range(4)
    }
    assert len(drawn) == 12
    assert max(STREAMS.values()) < SPLIT_STREAM < ATTEMPTS_STREAM
    with pytest.raises(ValueError, match="attempt: expected a whole number of at least 0"):
        task.batch("train", 5, attempt=-1)


def test_indices_must_be_numbers_of_instances() -> None:
    task = Sraven(SravenConfig())
    for index in (range(-2, 3), -1, range(5, -5, -1), [1, 2], torch.tensor([0.5]), True):
        with pytest.raises(ValueError, match="index: expected"):
            task.batch("train", index)
    assert len(task.batch("train", 0).panels) == 0
    # As a tensor, a negative number is an address of 64 bits like any other.
    assert task.batch("train", torch.tensor([-1])).panels.min() >= 0


def test_a_data_loader_with_workers_that_share_nothing() -> None:
    task = Sraven(SravenConfig(), seed=1)
    copied = pickle.loads(pickle.dumps(task.dataset("held_out", 11)))
    assert copied[3]["inputs"].equal(task.batch("held_out", 11).inputs[3])
    with pytest.raises(ValueError, match="split: unknown name 'nope'"):
        task.dataset("nope", 5)


def test_a_data_loader_gives_the_same_instances() -> None:
    task = Sraven(SravenConfig(), seed=1)
    dataset = task.dataset("held_out", 11)
    batches = list(DataLoader(dataset, batch_size=4))
    exact = task.batch("held_out", 11)
    assert torch.cat([batch["inputs"] for batch in batches]).equal(exact.inputs)
    assert torch.cat([batch["targets"] for batch in batches]).equal(exact.targets)
    assert dataset[-1]["panels"].equal(exact.panels[10])
    with pytest.raises(IndexError, match="index 11 of a dataset of 11"):
        dataset[11]


def test_accuracy_needs_all_features() -> None:
    targets = torch.tensor([[0, 1], [2, 2]])
    logits = torch.nn.functional.one_hot(torch.tensor([[0, 1], [2, 1]]), 3).float()
    assert accuracy(logits, targets).tolist() == [True, False]
    assert feature_accuracy(logits, targets).tolist() == [[True, True], [True, False]]


def test_numbers_of_tasks_and_instances() -> None:
    assert [number_of_combinations(k) for k in (1, 2, 4, 8)] == [8, 36, 330, 6435]
    assert number_of_tasks(4) == 330 * (576 - 4)
    # Two features by hand: 28 pairs of rules with 2^3 layouts, 8 repeated with half as many.
    assert number_of_laid_out_tasks(2) == 28 * 8 + 8 * 4
    assert number_of_instances(1, 3) == 5 * 27 + 2 * 729 + 216


@pytest.mark.parametrize(
    "options, message",
    [
        ({"values": 2}, "values: expected from 3 .*distribute three.*got 2"),
        ({"features": 0}, "features: expected a whole number of at least 1, got 0"),
        ({"held_out": 0.0}, r"held_out: expected a fraction that leaves some of the 330"),
        ({"held_out": 1.0}, "held_out: expected a fraction"),
        ({"held_out": float("nan")}, "held_out: expected a fraction"),
        ({"held_out": float("inf")}, "held_out: expected a fraction"),
        ({"values": 1025}, "values: expected from 3 .* to 1024"),
        ({"features": 21}, "features: expected a number with at most 1000000 combinations"),
        ({"split_seed": 2**63}, "split_seed: expected -1, or a seed"),
        ({"features": 1, "held_out": 0.1}, "held_out: .* 8 combinations of 1 features"),
        ({"split_seed": -2}, "split_seed: expected -1, or a seed"),
        ({"values": 8.5}, "values: expected a value of type int"),
    ],
)
def test_settings_that_cannot_work_say_which_number_to_change(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SravenConfig(**options)


def test_a_rule_must_not_be_held_out_altogether() -> None:
    with pytest.raises(
        ValueError, match=r"held_out: expected a fraction that leaves '.*' in train"
    ):
        Sraven(SravenConfig(features=2, held_out=0.95))
    single = Sraven(SravenConfig(features=1))
    assert single.batch("all", 9).panels.shape == (9, 3, 3, 1)
    with pytest.raises(ValueError, match="split: expected 'all': with one feature"):
        single.batch("train", 5)


def test_unknown_splits_and_bad_seeds_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"split: unknown name 'heldout'\. Did you mean 'held_out'"
    ):
        Sraven(SravenConfig()).batch("heldout", 3)
    for seed in (-1, 2**63, True, [], 1.5, None, np.int64(3), "0"):
        with pytest.raises(ValueError, match="seed: expected"):
            Sraven(SravenConfig(), seed)


def test_inputs_do_not_overwrite_the_batch() -> None:
    batch = Sraven(SravenConfig(), seed=0).batch("train", 5)
    small = replace(batch, panels=batch.panels.to(torch.int16))
    assert torch.equal(small.inputs, batch.inputs)
    assert torch.equal(small.targets.long(), batch.targets)


def test_priors_that_there_are_not() -> None:
    with pytest.raises(ValueError, match="with one feature"):
        statistics(SravenConfig(features=1), "all", 10, prior="train")
    task = Sraven(SravenConfig(), seed=0)
    with pytest.raises(ValueError, match=r"combinations: expected .* at least one"):
        solve(task.batch("all", 3).panels, task.config, task.combinations["all"][:0])
