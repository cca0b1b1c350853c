"""A population: each member as if alone, frozen when it diverges, measured as by hand."""

import gc
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import ALL_KINDS, tiny_run
from torch import Tensor

from hyla import build
from hyla.tasks.base import FIRST_EVALUATION_INSTANCE
from hyla.tasks.fuzzy_logic import FuzzyLogic, pooled_r2, r2
from hyla.tasks.sraven import RULES, Sraven, accuracy
from hyla.train import Member, RunConfig
from hyla.train.optimiser import decayed_parameters, learning_rate
from hyla.train.population import Population

CPU = torch.device("cpu")
TASKS = ("sraven", "fuzzy_logic")


def trained(config: RunConfig, steps: int, which: range | None = None) -> Population:
    which = range(len(config.members)) if which is None else which
    population = Population(config, which, CPU, compiled=False)
    for _ in range(steps):
        population.advance()
    return population


def alone(config: RunConfig, member: Member, steps: int) -> dict[str, Tensor]:
    """An ordinary loop over one model, with PyTorch's own optimiser and losses, in float64."""
    model = build(config.model, member.seed).double()
    decayed = decayed_parameters(model, head_biases=False)
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for name, p in named.items() if name in decayed]},
        {"params": [p for name, p in named.items() if name not in decayed], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=1.0, weight_decay=member.weight_decay)
    for step in range(steps):
        index = range(step * config.batch, (step + 1) * config.batch)
        if config.task_name == "sraven":
            batch = Sraven(config.task, member.seed).batch("train", index)
            logits = model(batch.inputs.double())[:, -config.task.features :]
            loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        else:
            sequences = FuzzyLogic(config.task, member.seed).batch("train", index)
            loss = F.mse_loss(
                model(sequences.inputs.double())[:, -1, 0], sequences.query_target.double()
            )
        if step < member.warmup:
            rate = member.learning_rate * step / member.warmup
        else:
            part = (step - member.warmup) / (config.steps - member.warmup)
            rate = member.learning_rate * (0.1 + 0.9 * (1 + math.cos(math.pi * part)) / 2)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {name: parameter.detach() for name, parameter in named.items()}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_member_ends_where_it_would_have_alone(kind: str, task: str) -> None:
    config = tiny_run(task, kind=kind, precision="fp64")
    population = trained(config, steps=7)
    for m, member in enumerate(config.members):
        for name, expected in alone(config, member, steps=7).items():
            given = population.state()[f"parameters.{name}"][m]
            # Adam may divide rounding errors by their own size (plus 1e-8).
            torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_others_do_not_matter_to_a_member_to_the_last_bit(kind: str, task: str) -> None:
    # Multiples of 16 align all members alike with vector units; otherwise rounding may differ.
    config = tiny_run(task, kind=kind, batch=16)
    config = replace(
        config, model=replace(config.model, width=16, heads=4, hidden_size=16, buckets=16)
    )
    together = trained(config, steps=5)
    for first in (0, 1):
        two = trained(config, 5, range(first, first + 2))
        assert two.parameters.equal(together.parameters[first : first + 2])
        assert two.loss_sum.equal(together.loss_sum[first : first + 2])
    # PyTorch sums a single matrix product in another order than batched ones.
    single = trained(config, 5, range(1))
    torch.testing.assert_close(single.loss_sum, together.loss_sum[:1], rtol=1e-5, atol=0)


def test_mixture_of_experts_trains_as_alone() -> None:
    config = tiny_run("sraven", precision="fp64")
    config = replace(config, model=replace(config.model, feed_forward="moe"))
    population = trained(config, steps=3)
    for name, expected in alone(config, config.members[1], steps=3).items():
        given = population.state()[f"parameters.{name}"][1]
        torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("rate", [1e30, 3e38])
def test_a_member_that_diverges_is_frozen_and_the_others_do_not_notice(
    task: str, rate: float
) -> None:
    config = tiny_run(task)
    first, second, third = config.members
    absurd = replace(second, learning_rate=rate)
    population = trained(replace(config, members=(first, absurd, third)), steps=9)
    assert population.active.tolist() == [True, False, True]
    step = int(population.diverged_at[1])
    assert 1 <= step < 9
    good = trained(config, steps=9)
    assert good.diverged_at.eq(-1).all()
    assert population.parameters[[0, 2]].equal(good.parameters[[0, 2]])
    assert population.loss_sum[[0, 2]].equal(good.loss_sum[[0, 2]])
    # Frozen as it was before the step whose loss was not finite.
    before = trained(replace(config, members=(first, absurd, third)), steps=step)
    assert before.active.all()
    left, kept = population.parameters[1], before.parameters[1]
    assert torch.allclose(left, kept, rtol=0, atol=0, equal_nan=True)


def test_a_frozen_member_stays_frozen() -> None:
    population = trained(tiny_run("fuzzy_logic"), steps=2)
    before = population.parameters.clone()
    population.active[1] = False
    population.advance()
    changed = population.parameters.ne(before).any(dim=1)
    assert changed.tolist() == [True, False, True]


def test_learning_rate_by_hand() -> None:
    peak, warmup = torch.tensor([2.0, 1.0]).double(), torch.tensor([4.0, 0.0]).double()

    def rates(step: int) -> list[float]:
        return learning_rate(torch.tensor(step), peak, warmup, 12).tolist()

    assert rates(0) == [0.0, 1.0]
    assert rates(3) == pytest.approx([1.5, 0.1 + 0.45 * (1 + math.cos(math.pi / 4))])
    assert rates(4)[0] == 2.0
    assert rates(8)[0] == pytest.approx(1.1)
    assert rates(12) == pytest.approx([0.2, 0.1])


def test_what_weight_decay_acts_on() -> None:
    config = tiny_run("sraven", kind="hyla+deep")
    model = build(config.model, seed=0)
    decayed = decayed_parameters(model, head_biases=False)
    exempt = set(dict(model.named_parameters())) - decayed
    assert all(name.endswith("bias") or "norm" in name for name in exempt)
    assert not any(name.endswith("bias") or "norm" in name for name in decayed)
    assert "blocks.0.attention.relative_bias.table" in decayed
    assert "blocks.0.attention.deep" in decayed
    more = decayed_parameters(model, head_biases=True) - decayed
    layers = range(config.model.layers)
    assert more == {
        f"blocks.{i}.attention.{n}.bias" for i in layers for n in ("query", "key", "value")
    }


def test_head_biases_decay_on_request() -> None:
    config = tiny_run("sraven")
    biases = "parameters.blocks.0.attention.query.bias"
    plain, decayed = (
        trained(replace(config, decay_head_biases=on), 3).state()[biases] for on in (False, True)
    )
    assert not plain.equal(decayed)


@pytest.mark.parametrize("task", TASKS)
def test_rehearsing_changes_no_state(task: str) -> None:
    config = tiny_run(task)
    population = trained(config, 3)
    before = {name: tensor.clone() for name, tensor in population.state().items()}
    population.warm_up_kernels(["train", "held_out"])
    for name, tensor in population.state().items():
        assert tensor.equal(before[name]), name
    population.advance()
    assert population.parameters.equal(trained(config, 4).parameters)
    measured = trained(config, 4).evaluate("held_out", 37)
    assert population.evaluate("held_out", 37).equal(measured)


def test_state_and_load_are_inverse() -> None:
    config = tiny_run("sraven")
    source, target = trained(config, 3), trained(config, 0)
    target.load({name: tensor.clone() for name, tensor in source.state().items()})
    source.advance()
    target.advance()
    assert source.parameters.equal(target.parameters)
    assert source.loss_sum.equal(target.loss_sum)


@pytest.mark.parametrize("split", ["train", "held_out", "all"])
@pytest.mark.parametrize("instances", [1, 37])
def test_sraven_measures_by_hand(split: str, instances: int) -> None:
    config = tiny_run("sraven")
    population = trained(config, 2)
    rows = population.evaluate(split, instances).tolist()
    index = range(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + instances)
    seeds = [member.seed for member in config.members]
    batch = Sraven(config.task, seeds).batch(split, index)
    with torch.no_grad():
        logits = population.model(batch.inputs)[..., -config.task.features :, :]
    for m, sums in enumerate(rows):
        measures = population.tally.measures(sums)
        right = accuracy(logits[m], batch.targets[m])
        slots = logits[m].argmax(dim=-1) == batch.targets[m]
        assert measures["accuracy"] == pytest.approx(right.double().mean().item())
        assert measures["feature_accuracy"] == pytest.approx(slots.double().mean().item())
        loss = F.cross_entropy(logits[m].flatten(0, 1), batch.targets[m].flatten())
        assert measures["loss"] == pytest.approx(loss.item(), rel=1e-5)
        other = batch.other_sign[m]
        differs, answers = other != batch.targets[m], logits[m].argmax(dim=-1)
        if differs.any():
            told = {"right": slots[differs], "other": (answers == other)[differs]}
            means = {name: part.double().mean().item() for name, part in told.items()}
            assert measures["signs"] == pytest.approx(means)
        else:
            assert measures["signs"] is None
        for number, rule in enumerate(RULES):
            has = [number in rules for rules in batch.rules[m].tolist()]
            governed = batch.target_rules[m] == number
            for name, kept in (
                ("accuracy_by_rule", right[has]),
                ("feature_accuracy_by_rule", slots[governed]),
            ):
                expected = kept.double().mean().item() if len(kept) else None
                assert measures[name][rule] == (expected and pytest.approx(expected))


@pytest.mark.parametrize("split", ["train", "held_out", "unknown"])
def test_fuzzy_logic_measures_by_hand(split: str) -> None:
    config = tiny_run("fuzzy_logic")
    population = trained(config, 2)
    rows = population.evaluate(split, 53).tolist()
    index = range(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + 53)
    seeds = [member.seed for member in config.members]
    batch = FuzzyLogic(config.task, seeds).batch(split, index)
    with torch.no_grad():
        predictions = population.model(batch.inputs)[..., -1, 0]
    for m, sums in enumerate(rows):
        measures = population.tally.measures(sums)
        error = (predictions - batch.query_target)[m].square().mean()
        assert measures["loss"] == pytest.approx(error.item(), rel=1e-5)
        assert measures["r2"] == pytest.approx(r2(predictions, batch)[m].mean().item(), rel=1e-5)
        pooled = pooled_r2(predictions, batch)[m].item()
        assert measures["pooled_r2"] == pytest.approx(pooled, rel=1e-4)


def test_evaluation_changes_nothing_and_repeats() -> None:
    config = tiny_run("sraven")
    population = trained(config, 3)
    first = population.evaluate("held_out", 37)
    assert population.evaluate("train", 37).ne(first).any()
    assert population.evaluate("held_out", 37).equal(first)
    population.advance()
    assert population.parameters.equal(trained(config, 4).parameters)


def test_nothing_grows_with_the_number_of_steps() -> None:
    population = trained(tiny_run("fuzzy_logic"), 3)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    before = tensors()
    for _ in range(20):
        population.advance()
        population.take_log()
    assert tensors() <= before


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(
    "attention, tolerance",
    # The largest learning rate amplifies rounding errors, and one may flip a ReLU of HYLA.
    [("softmax", 0.005), ("linear", 0.03), ("hyla", 0.06)],
)
def test_halves_are_near_fp32(attention: str, tolerance: float, precision: str) -> None:
    config = tiny_run("sraven", kind=attention)
    full = trained(config, 10).take_log()
    half = trained(replace(config, precision=precision), 10).take_log()
    assert (half[:, 0] / full[:, 0] - 1).abs().max() < tolerance
    assert not half[:, 0].equal(full[:, 0])


@pytest.mark.parametrize("compiled", [False, True])
def test_large_members_take_turns_and_are_the_same(
    monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    config = tiny_run("sraven", precision="fp64")
    at_once = trained(config, 3)
    assert at_once.alone is None
    monkeypatch.setattr("hyla.train.population.LARGE", 0)
    torch.compiler.reset()
    in_turn = Population(config, range(3), CPU, compiled=compiled)
    assert in_turn.alone is not None
    for _ in range(3):
        in_turn.advance()
    torch.testing.assert_close(in_turn.parameters, at_once.parameters, rtol=1e-9, atol=1e-12)
    found, expected = in_turn.evaluate("held_out", 37), at_once.evaluate("held_out", 37)
    torch.testing.assert_close(found, expected)


def test_compiled_on_the_cpu_is_the_same_computation() -> None:
    torch.compiler.reset()
    config = tiny_run("sraven", precision="fp64")
    compiled = Population(config, range(3), CPU, compiled=True)
    for _ in range(3):
        compiled.advance()
    torch.testing.assert_close(compiled.parameters, trained(config, 3).parameters)
    given, expected = compiled.evaluate("held_out", 37), trained(config, 3).evaluate("held_out", 37)
    torch.testing.assert_close(given, expected)


def test_validation_takes_tasks_of_training_at_addresses_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    population = Population(tiny_run("sraven"), range(3), CPU, compiled=False)
    seen: list[tuple[str, int, int]] = []
    batch = population.task.batch

    def record(split: str, index: torch.Tensor) -> Any:
        seen.append((split, int(index.min()), int(index.max())))
        return batch(split, index)

    monkeypatch.setattr(population.task, "batch", record)
    for split in ("validation", "train", "held_out"):
        population.evaluate(split, 13)
    assert seen == [
        ("train", 2**41, 2**41 + 12),
        ("train", 2**40, 2**40 + 12),
        ("held_out", 2**40, 2**40 + 12),
    ]
