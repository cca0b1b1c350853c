"""Associative recall: what instances are, by an independent reading of them, and the measures."""

from collections import Counter

import pytest
import torch

from hyla.tasks.base import Tally
from hyla.tasks.recall import POWER, RecallConfig

CONFIGS = [
    RecallConfig(vocabulary=62, pairs=5, least_pairs=1, length=23),
    RecallConfig(vocabulary=128, pairs=16, least_pairs=4, length=64),
    RecallConfig(vocabulary=1024, pairs=7, least_pairs=7, length=97),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_an_instance_is_pairs_and_then_some_of_their_keys(config: RecallConfig) -> None:
    batch = config.bind(3).batch("train", torch.arange(300))
    half = config.vocabulary // 2
    seen = set()
    for n, tokens in enumerate(batch.tokens.tolist()):
        assert len(tokens) == config.length
        assert all(0 <= token < config.vocabulary for token in tokens)
        count = config.levels[int(batch.level[n])]
        seen.add(count)
        assert batch.counted[n].tolist() == [pair < count for pair in range(config.pairs)]
        values = dict(zip(tokens[0 : 2 * count : 2], tokens[1 : 2 * count : 2], strict=True))
        assert len(values) == len({*values.values()}) == count
        assert all(key < half <= value for key, value in values.items())
        asked = []
        for pair in range(count):
            at, gap = int(batch.at[n, pair]), int(batch.gaps[n, pair])
            assert at >= 2 * count
            assert at - gap == 2 * pair
            assert tokens[at] == tokens[2 * pair]
            assert values[tokens[at]] == int(batch.targets[n, pair])
            asked.append(at)
        assert len({*asked}) == count
    assert seen == {*config.levels}


def test_queries_follow_the_power_law() -> None:
    config = RecallConfig(vocabulary=64, pairs=1, least_pairs=1, length=15)
    batch = config.bind(0).batch("train", torch.arange(60_000))
    places = (batch.at[:, 0] - 2) // 2  # of the only query, behind the only pair
    weights = [(place + 1) ** (POWER - 1) for place in range(6)]
    counted = Counter(places.tolist())
    for place, weight in enumerate(weights):
        expected = weight / sum(weights)
        error = (expected * (1 - expected) / len(places)) ** 0.5
        assert abs(counted[place] / len(places) - expected) < 5 * error


def test_all_words_of_a_half_are_keys_or_values() -> None:
    config = RecallConfig(vocabulary=64, pairs=8, least_pairs=8, length=37)
    tokens = config.bind(1).batch("train", torch.arange(2000)).tokens
    assert {*tokens[:, 0].tolist()} == {*range(32)}
    assert {*tokens[:, 1].tolist()} == {*range(32, 64)}


def test_measures_by_hand() -> None:
    config = RecallConfig(vocabulary=32, pairs=4, least_pairs=2, length=19)
    task = config.bind(5)
    batch, tally = task.batch("train", torch.arange(41)), Tally(task)
    torch.manual_seed(0)
    logits = torch.randn(41, 4, 32) + 3 * torch.nn.functional.one_hot(batch.targets, 32)
    found = tally.measures(tally(logits, batch).sum(dim=0).tolist())
    right = (logits.argmax(dim=-1) == batch.targets)[batch.counted]
    assert 0.1 < found["accuracy"] < 1
    assert found["accuracy"] == pytest.approx(right.double().mean().item())
    loss = torch.nn.functional.cross_entropy(logits[batch.counted], batch.targets[batch.counted])
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert task.loss(logits, batch).item() == pytest.approx(loss.item(), rel=1e-6)
    pairs = torch.tensor(config.levels)[batch.level]
    of_two = (pairs == 2).unsqueeze(-1).expand_as(batch.counted)[batch.counted]
    assert found["accuracy_by_pairs"]["2"] == pytest.approx(right[of_two].double().mean().item())
    gaps = batch.gaps[batch.counted]
    near = (gaps >= 4) & (gaps < 8)
    assert found["accuracy_by_gap"]["4 to 7"] == pytest.approx(right[near].double().mean().item())


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"pairs": 3}, "pairs"),
        ({"vocabulary": 63}, "vocabulary"),
        ({"vocabulary": 100}, "vocabulary"),
        ({"length": 255}, "length"),
        ({"least_pairs": 0}, "least_pairs"),
    ],
)
def test_bad_settings_are_named(change: dict[str, int], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        RecallConfig(**change)
