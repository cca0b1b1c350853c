"""The preset as_published: where the published code differs from the paper's text."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import tiny_run

from hyla.experiments.paper.runs import fuzzy_logic_run, sraven_run
from hyla.model import Transformer
from hyla.tasks import fuzzy_logic, sraven
from hyla.tasks.published import PRESETS, as_published
from hyla.train.config import Member, RunConfig
from hyla.train.optimiser import decayed_parameters, learning_rate
from hyla.train.population import Population
from hyla.train.training import Training

RUNS = {"sraven": sraven_run, "fuzzy_logic": fuzzy_logic_run}
FILES = Path(sraven.__file__).parents[1]


def run_of(task: str) -> RunConfig:
    return RUNS[task]((Member(seed=0, warmup=100), Member(seed=2, warmup=100)))


@pytest.mark.parametrize("task", RUNS)
def test_the_preset_is_part_of_the_key_and_the_default_changes_nothing(task: str) -> None:
    run = run_of(task)
    assert PRESETS["as_described"](run) == run
    published = as_published(run)
    assert published.model.attention_dropout == 0.1
    keys = {Training.of(one, one.members[0]).key for one in (run, published)}
    changes = ({"schedule": "cosine"}, {"decay_head_biases": False})
    keys |= {Training.of(replace(published, **one), run.members[0]).key for one in changes}
    assert len(keys) == 4
    assert RunConfig.from_dict(json.loads(json.dumps(published.to_dict()))) == published


@pytest.mark.parametrize("seed", range(3))
def test_sraven_holds_out_what_the_published_code_held_out(seed: int) -> None:
    config = sraven.SravenConfig(published_splits=True)
    train, held_out = (sraven.split_combinations(config, s, seed) for s in ("train", "held_out"))
    file = json.loads((FILES / "sraven" / "published-splits.json").read_text())
    assert held_out == sorted(map(tuple, file["held_out"][str(seed)]))
    rules = range(len(sraven.RULES))
    assert sorted(train + held_out) == [*itertools.combinations_with_replacement(rules, 4)]
    assert (len(train), len(held_out)) == (248, 82)


@pytest.mark.parametrize("held_out", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_fuzzy_logic_trains_on_what_the_published_code_trained_on(
    seed: int, held_out: float
) -> None:
    config = fuzzy_logic.FuzzyLogicConfig(published_splits=True, held_out=held_out)
    train, rest, unknown = (
        fuzzy_logic.split_combinations(config, split, seed) for split in fuzzy_logic.STREAMS
    )
    file = json.loads((FILES / "fuzzy_logic" / "published-splits.json").read_text())["train"]
    assert train == sorted(tuple(sorted(pair)) for pair in file[f"{held_out:g}/{seed}"])
    assert sorted(train + rest) == [*itertools.combinations(range(12), 2)]
    assert unknown == [*itertools.combinations(range(12, 16), 2)]


def test_a_published_split_leaves_terms_out_of_training() -> None:
    config = fuzzy_logic.FuzzyLogicConfig(published_splits=True)
    train = fuzzy_logic.split_combinations(config, "train", 2)
    missing = set(range(12)).difference(itertools.chain(*train))
    held_out = fuzzy_logic.split_combinations(config, "held_out", 2)
    assert missing == {5, 6}
    assert sum(not missing.isdisjoint(pair) for pair in held_out) == 21


def test_other_seeds_are_drawn_uniformly() -> None:
    """Some leave a term out, as in the published code; ours never do."""
    published = fuzzy_logic.FuzzyLogicConfig(published_splits=True)
    ours = fuzzy_logic.FuzzyLogicConfig()

    def terms(config: fuzzy_logic.FuzzyLogicConfig, seed: int) -> int:
        train = fuzzy_logic.split_combinations(config, "train", seed)
        assert len(train) == 20
        return len(set(itertools.chain(*train)))

    assert {terms(ours, seed) for seed in range(3, 60)} == {12}
    assert min(terms(published, seed) for seed in range(3, 60)) < 12


def test_the_early_cosine_ends_a_warm_up_before_the_last_step() -> None:
    steps, warmup = 1000, 100
    peak, warmups = torch.ones(1), torch.tensor([warmup])

    def rate(step: int, early: bool) -> float:
        return float(learning_rate(torch.tensor(step), peak, warmups, steps, early=early))

    for step in range(0, warmup + 1, 20):
        assert rate(step, True) == rate(step, False) == pytest.approx(step / warmup)
    assert rate(warmup + 400, True) == pytest.approx(0.55)  # half of T - 2 W
    for step in (steps - warmup, steps - 50, steps):
        assert rate(step, True) == pytest.approx(0.1)
    assert rate(steps - warmup - 1, True) > 0.1
    with pytest.raises(ValueError, match="warmup: expected less than half"):
        replace(as_published(run_of("sraven")), steps=150)


def test_the_published_code_decays_all_that_it_holds_in_two_axes() -> None:
    model = Transformer(run_of("sraven").model)
    names = {name for name, _ in model.named_parameters()}
    decayed = decayed_parameters(model, head_biases=True)
    for name in names:
        of_head = any(f"attention.{part}.bias" in name for part in ("query", "key", "value"))
        norm = "norm" in name
        assert (name in decayed) == (of_head or not (name.endswith(".bias") or norm)), name
    assert any("relative_bias" in name for name in decayed)


@pytest.mark.parametrize("task", RUNS)
def test_a_step_of_it_trains(task: str) -> None:
    config = tiny_run(task)
    config = replace(config, model=replace(config.model, attention_dropout=0.1))
    config = replace(config, schedule="early_cosine", decay_head_biases=True, steps=60)
    population = Population(config, range(3), torch.device("cpu"), compiled=False)
    before = population.parameters.clone()
    for _ in range(2):  # the first has a rate of 0
        population.advance()
    assert population.parameters.isfinite().all()
    assert not population.parameters.equal(before)
