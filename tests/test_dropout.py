"""Dropout of latent codes: one mask of pairs for each layer, member and step."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import run, tiny_run
from torch import Tensor

from hyla import KINDS, MultiHeadAttention
from hyla.attention import attend, latent_codes
from hyla.attention.layer import dropout_factors
from hyla.model import ModelConfig, Transformer, build
from hyla.train.config import RunConfig
from hyla.train.population import Population
from hyla.train.training import Training

CPU = torch.device("cpu")
TASKS = ("sraven", "fuzzy_logic")


def dropped(task: str, kind: str = "hyla", **changes: object) -> RunConfig:
    config = tiny_run(task, kind=kind, **changes)
    return replace(config, model=replace(config.model, attention_dropout=0.3))


def factors_of(pairs: tuple[int, ...], fraction: float = 0.3) -> Tensor:
    return dropout_factors(torch.rand(pairs, dtype=torch.float64), fraction)


def test_the_mean_over_masks_is_the_code_without_dropout() -> None:
    torch.manual_seed(0)
    factors = factors_of((20_000, 3, 5))
    assert factors.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
    # Four standard errors of a mean of 20,000.
    assert (factors.mean(dim=0) - 1).abs().max() < 4 * (0.3 / 0.7) ** 0.5 / 20_000**0.5


@pytest.mark.parametrize("backend", ["reference", None])
@pytest.mark.parametrize("kind", ["softmax", "linear", "hyla", "hyla-nonlinearity"])
def test_all_sequences_and_heads_leave_out_the_same_pairs(kind: str, backend: str | None) -> None:
    """Against a sum over pairs of the value networks that the dropped codes configure."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 7, 3, 5) for _ in range(3))
    factors = factors_of((7, 7)).float()
    code_BQKH = latent_codes(q, k, kind=kind) * factors.unsqueeze(-1)
    if KINDS[kind].value_network == "mlp":
        hidden = torch.einsum("bqkh,bkhd->bqkd", code_BQKH, v)
        hidden = hidden.relu() if KINDS[kind].nonlinear else hidden
        expected = torch.einsum("bqkh,bqkd->bqhd", code_BQKH, hidden)
    else:
        expected = torch.einsum("bqkh,bkhd->bqhd", code_BQKH, v)
    found = attend(q, k, v, kind=kind, factors=factors, backend=backend)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(7,), (6, 7), (7, 6), (3, 7, 7)])
def test_factors_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    q = torch.randn(2, 7, 3, 5)
    with pytest.raises(ValueError, match="factors: expected"):
        attend(q, q, q, factors=torch.ones(shape))


def test_a_layer_drops_in_training_alone() -> None:
    torch.manual_seed(2)
    layer = MultiHeadAttention(width=12, heads=3, kind="linear", attention_dropout=0.5)
    x = torch.randn(4, 11, 12)
    assert not layer(x).equal(layer(x))
    torch.manual_seed(3)
    first = layer(x)
    torch.manual_seed(3)
    assert layer(x).equal(first)
    without = layer.eval()(x)
    assert layer(x).equal(without)
    # Linear attention is linear in its codes: the mean of its outputs is the output of the mean.
    layer.train()
    mean = torch.stack([layer(x) for _ in range(4000)]).mean(dim=0)
    assert (mean - without).norm() < 0.1 * without.norm()


def test_codes_are_those_of_the_model_without_dropout() -> None:
    config = ModelConfig(5, 2, layers=3, width=16, heads=4, attention_dropout=0.5, buckets=9)
    model, x = build(config, seed=1), torch.randn(2, 9, 5)
    codes = model.train().latent_codes(x, layers=[2])[2]
    assert codes.equal(model.eval().latent_codes(x, layers=[2])[2])


def test_decoding_drops_nothing() -> None:
    config = ModelConfig(5, 2, layers=2, width=16, heads=4, attention_dropout=0.5, causal=True)
    model, x = build(config, seed=1), torch.randn(2, 9, 5)
    cache = model.train().new_cache(9)
    parts = [model(x[:, start : start + 3], cache=cache) for start in (0, 3, 6)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model.eval()(x))


@pytest.mark.parametrize("kind", ["softmax", "hyla"])
def test_the_last_tokens_alone_have_the_rows_of_their_positions(kind: str) -> None:
    model = Transformer(ModelConfig(5, 2, layers=2, width=16, heads=4, kind=kind, buckets=9))
    x, factors = torch.randn(2, 9, 5), factors_of((2, 9, 9)).float()
    whole = model(x, factors=factors)
    torch.testing.assert_close(model(x, factors=factors, last=4), whole[:, -4:])
    assert not whole.allclose(model(x))


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="attention_dropout: expected"):
        ModelConfig(5, 2, attention_dropout=fraction)


def masks(population: Population) -> Tensor:
    found = population._factors()
    assert found is not None
    return found


@pytest.mark.parametrize("task", TASKS)
def test_masks_are_a_function_of_seed_step_and_layer(task: str) -> None:
    population = Population(dropped(task), range(3), CPU, compiled=False)
    first = masks(population)
    layers, members = first.shape[:2]
    tokens = population.config.task.tokens
    assert first.shape[2:] == (tokens, tokens)
    assert masks(population).equal(first)
    population.advance()
    assert not masks(population).equal(first)
    seeds = [member.seed for member in population.config.members]
    for layer in range(layers):
        assert layer == 0 or not first[layer].equal(first[0])
        for member in range(members):
            same = seeds[member] == seeds[0]
            assert first[layer, member].equal(first[layer, 0]) == same


@pytest.mark.parametrize("task", TASKS)
def test_a_member_is_what_it_is_alone(task: str) -> None:
    config = dropped(task, precision="fp64")
    together = Population(config, range(3), CPU, compiled=False)
    alone = Population(config, range(1, 2), CPU, compiled=False)
    for _ in range(4):
        together.advance()
        alone.advance()
    torch.testing.assert_close(together.parameters[1:2], alone.parameters, rtol=1e-9, atol=1e-12)


def test_compiled_is_the_same_computation() -> None:
    torch.compiler.reset()
    config = dropped("sraven", precision="fp64")
    one, other = (Population(config, range(2), CPU, compiled=flag) for flag in (False, True))
    for _ in range(3):
        one.advance()
        other.advance()
    torch.testing.assert_close(one.parameters, other.parameters)


def test_evaluation_drops_nothing() -> None:
    config = dropped("sraven")
    population = Population(config, range(3), CPU, compiled=False)
    found = population.evaluate("held_out", 37)
    plain = replace(config, model=replace(config.model, attention_dropout=0.0))
    other = Population(plain, range(3), CPU, compiled=False)
    assert other.evaluate("held_out", 37).equal(found)
    population.advance()
    other.advance()
    assert not population.loss_sum.allclose(other.loss_sum, rtol=1e-6)


def test_a_resumed_training_is_the_same_to_the_byte(tmp_path: Path) -> None:
    config = dropped("fuzzy_logic")
    run(config, tmp_path / "whole")
    run(config, tmp_path / "parts", stop_at=config.steps // 2)
    run(config, tmp_path / "parts")
    one, other = (tmp_path / name / "metrics.jsonl" for name in ("whole", "parts"))
    assert one.read_bytes() == other.read_bytes()


def test_dropout_is_part_of_the_key_and_none_changes_no_key() -> None:
    config = tiny_run("sraven")
    key = Training.of(config, config.members[0]).key
    same = replace(config, model=replace(config.model, attention_dropout=0.0))
    other = replace(config, model=replace(config.model, attention_dropout=0.1))
    assert Training.of(same, config.members[0]).key == key
    assert Training.of(other, config.members[0]).key != key
