"""SRAVEN baselines with less information than the solver, and analyses of models' answers."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hyla
from hyla.experiments import EXPERIMENTS
from hyla.experiments.paper.baselines import BY_RULE
from hyla.experiments.run import Options, run_experiment
from hyla.tasks.base import FIRST_EVALUATION_INSTANCE
from hyla.tasks.sraven import RULES, Sraven, SravenBatch, SravenConfig
from hyla.tasks.sraven.answers import (
    agreement_after_row_swap,
    arithmetic_answers,
    best_symbols,
    judge_answers,
)
from hyla.tasks.sraven.baselines import BASELINES, read

SLOTWISE = [reader for reader in BASELINES if "exact" not in reader]
SMALL = SravenConfig(features=3, values=5)


def follows(rule: str, a: int, b: int, c: int, values: int) -> bool:
    """Whether a row follows a rule, by itself."""
    steps = {"constant": 0, "progression +1": 1, "progression +2": 2}
    steps |= {"progression -1": -1, "progression -2": -2}
    if rule in steps:
        return b == (a + steps[rule]) % values and c == (b + steps[rule]) % values
    if rule == "distribute three":
        return len({a, b, c}) == 3
    return c == ((a + b) if rule == "addition" else (a - b)) % values


def by_hand(reader: str, panels: Tensor, slot: int, values: int) -> list[Fraction]:
    """What a reader answers in a slot, from a loop over triples, rules and symbols."""
    rows = panels.tolist()
    looked_at = rows[:1] if reader == "one row" else rows[:2]
    votes = [Fraction(0)] * values
    for s1, s2 in product(range(panels.shape[-1]), repeat=2):
        shown = [(row[0][s1], row[1][s2], row[2][slot]) for row in looked_at]
        a, b = rows[2][0][s1], rows[2][1][s2]
        fitting: dict[str, int] = {}
        for rule in RULES:
            for symbol in range(values):
                triples = [*shown, (a, b, symbol)]
                fits = all(follows(rule, *triple, values) for triple in triples)
                if rule == "distribute three":
                    fits &= len({frozenset(triple) for triple in triples}) == 1
                if fits:
                    fitting[rule] = symbol
        weight = {rule: Fraction(1, values ** len(triples)) for rule in RULES}
        weight["addition"] = weight["subtraction"] = weight["constant"] ** 2
        weight["distribute three"] = Fraction(1, comb(values, 3) * 6 ** len(triples))
        signs = [rule for rule in ("addition", "subtraction") if rule in fitting]
        if signs and reader in ("no arithmetic", "no sign"):
            for rule in signs:
                del fitting[rule]
        if signs and reader == "no sign":
            votes[(a + b) % values] += weight["addition"] / 2
            votes[(a - b) % values] += weight["addition"] / 2
        for rule, symbol in fitting.items():
            votes[symbol] += weight[rule]
    best = [vote == max(votes) for vote in votes]
    return [Fraction(one, sum(best)) for one in best]


@pytest.mark.parametrize("reader", SLOTWISE)
@pytest.mark.parametrize("values", [5, 8])
def test_readers_are_those_of_a_loop(reader: str, values: int) -> None:
    config = replace(SMALL, values=values)
    panels = Sraven(config, seed=3).batch("all", 40).panels
    found = read(reader, panels, config)
    for instance, slot in product(range(len(panels)), range(config.features)):
        expected = by_hand(reader, panels[instance], slot, values)
        assert found[instance, slot].tolist() == pytest.approx([float(p) for p in expected])


def accuracy(reader: str, batch: SravenBatch, config: SravenConfig) -> float:
    answers = read(reader, batch.panels, config)
    assert answers.sum(dim=-1).allclose(torch.ones((), dtype=torch.double))
    right = answers.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
    return float(right.prod(dim=-1).mean())


@pytest.mark.parametrize("features", [2, 4])
def test_who_sees_less_solves_less(features: int) -> None:
    config = SravenConfig(features=features)
    batch = Sraven(config, seed=0).batch("all", 5000)  # more than one batch
    *solved, one_row, one_row_exact = (accuracy(reader, batch, config) for reader in BASELINES)
    assert solved == sorted(solved, reverse=True)
    assert one_row < one_row_exact < solved[0]
    assert one_row < solved[1]


@pytest.mark.parametrize("reader", BASELINES)
def test_readers_see_slots_not_their_places(reader: str) -> None:
    panels = Sraven(SMALL, seed=1).batch("all", 300).panels
    found = read(reader, panels, SMALL)
    moved = panels.clone()
    moved[:, :, 0] = panels[:, :, 0].roll(1, dims=-1)  # the first column in another order
    moved[:, 2, 2] = 0  # the answer must be ignored
    if reader in SLOTWISE:  # exact ones take the first of equally probable panels
        assert torch.equal(read(reader, moved, SMALL), found)
        moved[:, :, 2] = moved[:, :, 2].roll(1, dims=-1)
        assert torch.equal(read(reader, moved, SMALL), found.roll(1, dims=-2))
    moved = panels.clone()
    moved[:, 2, 2] = 0
    assert torch.equal(read(reader, moved, SMALL), found)


def test_one_row_is_the_first() -> None:
    panels = Sraven(SMALL, seed=1).batch("all", 100).panels
    other = panels.clone()
    other[:, 1] = (other[:, 1] + 1) % SMALL.values
    for reader in ("one row", "one row exact"):
        assert torch.equal(read(reader, other, SMALL), read(reader, panels, SMALL))
    assert not torch.equal(read("no sign", other, SMALL), read("no sign", panels, SMALL))


def test_readers_name_what_is_wrong() -> None:
    panels = Sraven(SMALL).batch("all", 3).panels
    with pytest.raises(ValueError, match=r"reader.*no sing.*Did you mean 'no sign'"):
        read("no sing", panels, SMALL)
    with pytest.raises(ValueError, match="panels"):
        read("no sign", panels, SravenConfig())


@pytest.mark.parametrize("permute", [True, False])
def test_the_other_sign_is_that_of_the_instance_without_permutation(permute: bool) -> None:
    config = SravenConfig(features=4, values=7, permute=permute)
    batch = Sraven(config, seed=2).batch("all", 2000)
    swapped = []
    for panels, rules, orders in zip(batch.panels, batch.rules, batch.orders, strict=True):
        row, answer = panels[2].tolist(), []
        for feature in orders[2].tolist():  # that a slot shows
            a, b, c = (row[j][orders[j].tolist().index(feature)] for j in range(3))
            rule = RULES[rules[feature]]
            assert rule != "addition" or c == (a + b) % 7
            others = {"addition": (a - b) % 7, "subtraction": (a + b) % 7}
            answer.append(others.get(rule, c))
        swapped.append(answer)
    assert batch.other_sign.tolist() == swapped
    population = Sraven(config, [2, 5])
    both = population.batch("all", 100)
    assert torch.equal(both.other_sign[0], batch.other_sign[:100])


def test_answers_are_told_apart() -> None:
    config = SravenConfig()
    batch = Sraven(config, seed=0).batch("all", 3000)
    right = judge_answers(batch.targets, batch)
    swapped = judge_answers(batch.other_sign, batch)
    wrong = judge_answers((batch.targets + 1) % 8, batch)
    answers = torch.distributions.Categorical(read("no sign", batch.panels, config)).sample()
    signless = judge_answers(answers, batch)
    for name in ("addition", "subtraction"):
        assert (right[name].right, right[name].other, right[name].told_apart) == (1, 0, 1)
        assert (swapped[name].right, swapped[name].other, swapped[name].told_apart) == (0, 1, 0)
        assert wrong[name].right == 0
        assert right[name].count > 1000
        assert abs(signless[name].told_apart - 0.5) < 0.05
        assert signless[name].right + signless[name].other > 0.7


def test_answers_of_a_model_are_its_best_symbols() -> None:
    task = Sraven(SravenConfig(features=2, values=5), seed=0)
    batch = task.batch("all", 700)  # more than are taken at once
    config = hyla.ModelConfig(5, 5, layers=2, width=8, heads=3, buckets=18)
    model = hyla.build(config, seed=0)
    with torch.no_grad():
        answers = model(batch.inputs)[:, -2:].argmax(dim=-1)
    assert arithmetic_answers(model, batch) == judge_answers(answers, batch)
    none = Sraven(replace(task.config, features=1), seed=0)
    constant = next(
        b for b in (none.batch("all", range(i, i + 1)) for i in range(99)) if not b.rules.any()
    )
    found = judge_answers(constant.targets, constant)["addition"]
    assert found.count == 0
    assert found.told_apart != found.told_apart  # not a number
    population = hyla.build(config, seed=0)
    for name, parameter in list(population.named_parameters()):
        hyla.layers.replace_parameter(population, name, parameter[None], True)
    with pytest.raises(ValueError, match="model: expected one model"):
        arithmetic_answers(population, batch)
    with pytest.raises(ValueError, match="batch: expected instances of one seed"):
        arithmetic_answers(model, Sraven(task.config, [0, 1]).batch("all", 3))
    with pytest.raises(ValueError, match="batch: expected one with 5 values"):
        arithmetic_answers(model, Sraven(replace(task.config, values=8)).batch("all", 3))
    assert arithmetic_answers(model.double(), batch) == judge_answers(answers, batch)


class Blind(hyla.Transformer):
    """Sees zeros for one of the rows of panels."""

    row: int

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        seen, row = tokens.clone(), tokens.shape[-2] // 3
        seen[..., self.row * row : (self.row + 1) * row, :] = 0
        return super().forward(seen, **options)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_who_does_not_look_at_a_row_keeps_all_answers(row: int) -> None:
    task = Sraven(SMALL, seed=0)
    batch = task.batch("all", 601)
    config = hyla.ModelConfig(5, 5, layers=2, width=8, heads=3, buckets=27)
    model = Blind(config)
    model.load_state_dict(hyla.build(config, seed=0).state_dict())
    model.row = row
    kept = agreement_after_row_swap(model, batch)
    assert [*kept] == ["first row", "second row"]
    assert [part == 1 for part in kept.values()] == [row == 0, row == 1]
    answers = best_symbols(model, batch)
    for place, part in enumerate(kept.values()):
        panels = batch.panels.clone()
        for i in range(601):
            panels[i, place] = batch.panels[(i - 1) % 601, place]
        others = best_symbols(model, replace(batch, panels=panels))
        assert part == (answers == others).sum().item() / answers.numel()
    with pytest.raises(ValueError, match="batch: expected at least two instances"):
        agreement_after_row_swap(model, task.batch("all", 1))


def test_readers_are_an_experiment(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["readers-sraven"]
    rows = run_experiment(experiment, Options(runs=tmp_path, tiny=True))
    assert len(rows) == len(experiment.tiny["features"]) * len(BASELINES)
    for row in rows:
        assert row.seeds == (0, 1, 2)
        assert len(row.main.values) == 3
        assert row.main.mean is not None
        assert 0 < row.main.mean <= 100
        assert all(0 <= right <= 100 for right in row.details[BY_RULE]["addition"].values)
    signless = next(row for row in rows if row.is_at({"reader": "no sign", "features": 3}))
    config = SravenConfig(features=3)
    numbers = range(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + 64)
    for name, split in (("held out", "held_out"), ("in distribution", "train")):
        batches = [Sraven(config, seed).batch(split, numbers) for seed in range(3)]
        solved = [100 * accuracy("no sign", batch, config) for batch in batches]
        assert signless.measures[name].per_seed == pytest.approx(solved)
    assert signless.main == signless.measures["held out"]
    batch = Sraven(config, 1).batch("held_out", numbers)
    right = read("no sign", batch.panels, config).gather(-1, batch.targets[..., None])[..., 0]
    for rule, name in enumerate(RULES):
        governed = right[batch.target_rules == rule]
        found = signless.details[BY_RULE][name].per_seed[1]
        assert found == (pytest.approx(100 * governed.mean().item()) if len(governed) else None)
