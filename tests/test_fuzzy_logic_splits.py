"""What the splits of the fuzzy logic functions guarantee."""

import math
from collections import Counter
from itertools import combinations

import pytest
from helpers import assert_uniform
from test_fuzzy_logic import CONFIGS, SPLITS

from hyla import random
from hyla.tasks.address import SPLIT_STREAM
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig, split_combinations


def test_sizes_of_the_paper() -> None:
    for held_out, size in ((0.3, 19), (0.5, 33), (0.7, 46)):
        config = FuzzyLogicConfig(held_out=held_out)
        sizes = [len(split_combinations(config, split, 5)) for split in SPLITS]
        assert sizes == [66 - size, size, 6]


@pytest.mark.parametrize("variables, terms, unknown", [(4, 2, 0.25), (3, 3, 0.4), (3, 2, 0.0)])
@pytest.mark.parametrize("held_out", [0.1, 0.3, 0.5, "largest"])
def test_splits_are_disjoint_exact_and_cover_every_term(
    variables: int, terms: int, unknown: float, held_out: float | str
) -> None:
    known = 2**variables - int(2**variables * unknown)
    count = math.comb(known, terms)
    if held_out == "largest":  # training is as small as it can be while it has every term
        held_out = (count - math.ceil(known / terms) + 0.5) / count
    config = FuzzyLogicConfig(variables, terms, held_out=held_out, unknown=unknown)
    for seed in range(50):
        train, held = (split_combinations(config, split, seed) for split in SPLITS[:2])
        assert len(held) == int(count * held_out)
        assert sorted(train + held) == list(combinations(range(known), terms))
        assert train == sorted(train)
        assert held == sorted(held)
        assert {term for combination in train for term in combination} == set(range(known))


def test_held_out_combinations_are_drawn_uniformly() -> None:
    config = FuzzyLogicConfig(held_out=0.3)  # coverage hardly ever interferes
    draws = [split_combinations(config, "held_out", seed) for seed in range(200)]
    assert len({tuple(draw) for draw in draws}) == 200
    assert_uniform(list(Counter(pair for draw in draws for pair in draw).values()))


def test_an_order_that_covers_every_term_is_taken_as_it_is() -> None:
    config, known = FuzzyLogicConfig(), list(combinations(range(12), 2))
    repaired = 0
    for seed in range(100):
        order = random.shuffled(66, seed, SPLIT_STREAM)
        first = sorted(known[index] for index in order[:20])
        train = split_combinations(config, "train", seed)
        if len(set(sum(first, ()))) == 12:
            assert train == first
        else:
            repaired += 1
            assert len(set(train) & set(first)) >= 17  # little is exchanged
    assert 0 < repaired < 50


@pytest.mark.parametrize("config", CONFIGS)
def test_unknown_has_only_reserved_terms_and_the_others_none(config: FuzzyLogicConfig) -> None:
    task = FuzzyLogic(config, seed=1)
    reserved = int(2**config.variables * config.unknown)
    for split in SPLITS:
        terms = task.batch(split, 500).terms
        assert terms.ge(2**config.variables - reserved).eq(split == "unknown").all()
        assert terms.diff(dim=-1).gt(0).all()  # different, and sorted
        table = split_combinations(config, split, seed=1)
        assert {tuple(row) for row in terms.tolist()} <= set(table)


@pytest.mark.parametrize("split", SPLITS)
def test_combinations_are_uniform_over_the_split(split: str) -> None:
    terms = FuzzyLogic(CONFIGS[0], seed=2).batch(split, 20_000).terms
    counts = Counter(map(tuple, terms.tolist()))
    assert sorted(counts) == split_combinations(CONFIGS[0], split, seed=2)
    assert_uniform(list(counts.values()))


def test_split_seed_gives_all_seeds_one_split() -> None:
    own, common = FuzzyLogicConfig(), FuzzyLogicConfig(split_seed=9)
    assert split_combinations(own, "train", 1) != split_combinations(own, "train", 2)
    assert split_combinations(common, "train", 1) == split_combinations(common, "train", 2)
    assert split_combinations(common, "train", 1) == split_combinations(own, "train", 9)
