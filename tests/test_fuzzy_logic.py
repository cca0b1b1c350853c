"""Fuzzy logic functions against pure Python, and addressing."""

import math
import pickle
import shutil
from itertools import combinations, product

import pytest
import torch
from helpers import assert_uniform
from torch import Tensor
from torch.utils.data import DataLoader

from hyla.tasks.fuzzy_logic import (
    FIXED_STREAM,
    STREAMS,
    FuzzyLogic,
    FuzzyLogicBatch,
    FuzzyLogicConfig,
    describe,
    evaluate,
    pooled_r2,
    r2,
    split_combinations,
)

SPLITS = ("train", "held_out", "unknown")
CONFIGS = (
    FuzzyLogicConfig(),
    FuzzyLogicConfig(variables=3, terms=3, examples=7, held_out=0.3, unknown=0.4),
    FuzzyLogicConfig(variables=5, terms=2, examples=11, held_out=0.5),
    FuzzyLogicConfig(variables=3, terms=2, examples=2, held_out=0.3),
)
COUNT = 37


def by_loops(x: list[float], terms: list[int]) -> float:
    """The definition with nothing shared with the package."""
    values = []
    for term in terms:
        signs = reversed(f"{term:0{len(x)}b}")  # the last digit belongs to the first variable
        values.append(min(a if s == "1" else 1 - a for a, s in zip(x, signs, strict=True)))
    return max(values)


def tensors(batch: FuzzyLogicBatch) -> tuple[Tensor, ...]:
    return batch.inputs, batch.targets, batch.terms


def assert_identical(given: FuzzyLogicBatch, exact: FuzzyLogicBatch) -> None:
    for ours, theirs in zip(tensors(given), tensors(exact), strict=True):
        assert ours.equal(theirs)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("config", CONFIGS)
def test_targets_are_their_definition(config: FuzzyLogicConfig, split: str) -> None:
    batch = FuzzyLogic(config, seed=3).batch(split, COUNT)
    assert batch.inputs.shape == (COUNT, config.examples, config.variables + 1)
    assert batch.inputs.dtype == batch.targets.dtype == torch.float32
    x = batch.inputs[..., :-1].tolist()
    exact = [
        [by_loops(example, terms) for example in sequence]
        for sequence, terms in zip(x, batch.terms.tolist(), strict=True)
    ]
    assert batch.targets.tolist() == exact  # 1 - x is exact: x is a multiple of 2^-24
    assert batch.inputs[:, :-1, -1].equal(batch.targets[:, :-1])
    assert batch.inputs[:, -1, -1].eq(0).all()
    assert batch.query_target.equal(batch.targets[:, -1])


@pytest.mark.parametrize("variables, terms", [(2, 2), (3, 3), (4, 2)])
def test_boolean_inputs_give_the_boolean_function(variables: int, terms: int) -> None:
    """A conjunction of all variables is true at the one input that its bits spell."""
    x = torch.tensor(list(product((0.0, 1.0), repeat=variables)))
    numbers = (x * 2.0 ** torch.arange(variables)).sum(dim=-1)
    for combination in combinations(range(2**variables), terms):
        combination = torch.tensor(combination)
        assert evaluate(x, combination).bool().equal(torch.isin(numbers, combination))


def test_the_formula_is_the_function() -> None:
    """Python evaluates the formula as printed to the same truth values."""
    symbols = {"∧": "and", "\N{LOGICAL OR}": "or", "¬": "not "}
    for terms in combinations(range(8), 3):
        formula = describe(torch.tensor(terms), variables=3)
        for symbol, word in symbols.items():
            formula = formula.replace(symbol, word)
        for x in product((0, 1), repeat=3):
            names = dict(zip(("x1", "x2", "x3"), x, strict=True))
            assert eval(formula, names) == bool(by_loops(list(x), list(terms)))


def test_inputs_are_uniform() -> None:
    batch = FuzzyLogic(FuzzyLogicConfig(examples=5), seed=2).batch("train", 20_000)
    x = batch.inputs[..., :-1].double()
    assert x.min() >= 0
    assert x.max() < 1
    count = x.shape[0]
    # Five standard deviations of the mean and of the variance of a uniform sample, whose second
    # and fourth central moments are 1/12 and 1/80, at each of the 20 places of a sequence.
    assert (x.mean(dim=0) - 1 / 2).abs().max() < 5 * math.sqrt(1 / 12 / count)
    variance = (x - 1 / 2).square().mean(dim=0)
    assert (variance - 1 / 12).abs().max() < 5 * math.sqrt((1 / 80 - 1 / 144) / count)
    # Places are uncorrelated: each correlation has a standard deviation of 1 / sqrt(count).
    correlation = torch.corrcoef(x.flatten(1).T) - torch.eye(20)
    assert correlation.abs().max() < 5 / math.sqrt(count)
    assert_uniform((x.flatten() * 50).long().bincount(minlength=50).tolist())


@pytest.mark.parametrize("fixed", [None, "context", "query"])
@pytest.mark.parametrize("config", CONFIGS)
def test_an_instance_does_not_depend_on_its_batch(
    config: FuzzyLogicConfig, fixed: str | None
) -> None:
    task = FuzzyLogic(config, seed=4)
    whole = task.batch("held_out", COUNT, fixed=fixed)
    order = torch.randperm(COUNT)
    shuffled = task.batch("held_out", order, fixed=fixed)
    for ours, theirs in zip(tensors(shuffled), tensors(whole), strict=True):
        assert ours.equal(theirs[order])
    for i in (0, 5, COUNT - 1):
        alone = task.batch("held_out", range(i, i + 1), fixed=fixed)
        for ours, theirs in zip(tensors(alone), tensors(whole), strict=True):
            assert ours[0].equal(theirs[i])


def test_splits_seeds_and_instances_have_numbers_of_their_own() -> None:
    """No input occurs twice: 2^24 values leave few chances, and whole examples none."""
    batches = [FuzzyLogic(CONFIGS[0], seed).batch(s, COUNT) for seed in (0, 1) for s in SPLITS]
    batches += [FuzzyLogic(CONFIGS[0]).batch(s, range(2**40, 2**40 + COUNT)) for s in SPLITS]
    examples = torch.cat([batch.inputs[..., :-1].flatten(0, 1) for batch in batches])
    assert examples.unique(dim=0).shape == examples.shape


@pytest.mark.parametrize("fixed", [None, "context", "query"])
@pytest.mark.parametrize("split_seed", [-1, 9])
@pytest.mark.parametrize("config", CONFIGS[:2])
def test_members_of_a_population_equal_the_run_alone(
    config: FuzzyLogicConfig, split_seed: int, fixed: str | None
) -> None:
    config = FuzzyLogicConfig.from_dict(vars(config) | {"split_seed": split_seed})
    seeds = [7, 0, 2**40 + 1]
    for split in SPLITS:
        together = FuzzyLogic(config, seeds).batch(split, range(3, 3 + COUNT), fixed=fixed)
        for member, seed in enumerate(seeds):
            alone = FuzzyLogic(config, seed).batch(split, range(3, 3 + COUNT), fixed=fixed)
            for ours, theirs in zip(tensors(together), tensors(alone), strict=True):
                assert ours[member].equal(theirs)


@pytest.mark.parametrize("fixed", ["context", "query"])
@pytest.mark.parametrize("config", CONFIGS)
def test_fixed_inputs_are_fixed_and_the_rest_varies(config: FuzzyLogicConfig, fixed: str) -> None:
    task = FuzzyLogic(config, seed=6)
    kept, free = (
        (slice(-1), slice(-1, None)) if fixed == "context" else (slice(-1, None), slice(-1))
    )
    shared = task.batch("train", 1, fixed=fixed).inputs[0, kept, :-1]
    for split in SPLITS:
        free_batch, batch = task.batch(split, COUNT), task.batch(split, COUNT, fixed=fixed)
        x = batch.inputs[..., :-1]
        assert x[:, kept].eq(shared).all()
        assert x[:, free].equal(free_batch.inputs[:, free, :-1])
        assert batch.terms.equal(free_batch.terms)
        assert len(x[:, free].flatten(1).unique(dim=0)) == COUNT
        several = len(split_combinations(config, split, seed=6)) > 1
        assert (len(batch.terms.unique(dim=0)) > 1) == several
        assert batch.targets.equal(evaluate(x, batch.terms))
    other = FuzzyLogic(config, seed=8).batch("train", 1, fixed=fixed)
    assert not other.inputs[0, kept, :-1].eq(shared).any()


def test_r2_by_hand() -> None:
    targets = torch.tensor([[0.0, 1.0, 0.5], [0.25, 0.25, 1.0]])
    batch = FuzzyLogicBatch(torch.zeros(2, 3, 5), targets, torch.zeros(2, 2))
    predictions = torch.tensor([0.75, 0.5])
    # Variances 1/6 and 1/8, squared errors 1/16 and 1/4; the queries 1/2 and 1 have variance 1/16.
    torch.testing.assert_close(r2(predictions, batch), torch.tensor([1 - 6 / 16, 1 - 8 / 4]))
    torch.testing.assert_close(pooled_r2(predictions, batch), torch.tensor(1 - 16 * 5 / 32))


def test_r2_of_perfect_and_of_constant_predictions() -> None:
    batch = FuzzyLogic(CONFIGS[0], seed=[0, 1]).batch("train", COUNT)
    assert r2(batch.query_target, batch).eq(torch.ones(2, COUNT)).all()
    assert pooled_r2(batch.query_target, batch).eq(torch.ones(2)).all()
    mean = batch.query_target.mean(dim=-1, keepdim=True).expand(2, COUNT)
    # A few roundings of float32: 2^-24 = 6e-8.
    torch.testing.assert_close(pooled_r2(mean, batch), torch.zeros(2), rtol=0, atol=1e-6)
    # With each example as the query in turn, the mean of the sequence explains nothing of it.
    turns = [
        r2(
            batch.targets.mean(dim=-1),
            FuzzyLogicBatch(batch.inputs, batch.targets.roll(shift, dims=-1), batch.terms),
        )
        for shift in range(CONFIGS[0].examples)
    ]
    average = torch.stack(turns).mean(dim=0)
    torch.testing.assert_close(average, torch.zeros(2, COUNT), rtol=0, atol=1e-5)


def test_r2_refuses_predictions_of_another_shape() -> None:
    batch = FuzzyLogic(CONFIGS[0]).batch("train", 3)
    for measure in (r2, pooled_r2):
        with pytest.raises(ValueError, match=r"predictions: expected a tensor of shape \[3\]"):
            measure(torch.zeros(3, 1), batch)


def test_dataset_in_a_data_loader() -> None:
    task = FuzzyLogic(CONFIGS[1], seed=5)
    dataset = pickle.loads(pickle.dumps(task.dataset("held_out", 10)))  # as sent to a worker
    batches = list(DataLoader(dataset, batch_size=5))
    assert len(batches) == 2
    for number, given in enumerate(batches):
        exact = task.batch("held_out", range(5 * number, 5 * number + 5))
        named = FuzzyLogicBatch(given["inputs"], given["targets"], given["terms"])
        assert_identical(named, exact)
        assert given["query_target"].equal(exact.query_target)


@pytest.mark.parametrize("seed, fixed", [(3, None), ([3, 4], "context"), ([3, 4], "query")])
def test_compiled_without_a_graph_break_to_the_same_bits(
    seed: int | list[int], fixed: str | None
) -> None:
    torch.compiler.reset()
    task = FuzzyLogic(CONFIGS[1], seed)

    def generate(index: Tensor) -> tuple[Tensor, ...]:
        return tensors(task.batch("train", index, fixed=fixed))

    compiled = torch.compile(generate, fullgraph=True, backend="eager")
    for index in (torch.arange(COUNT), torch.arange(COUNT) + 2**33):
        for ours, theirs in zip(compiled(index), generate(index), strict=True):
            assert ours.equal(theirs)


@pytest.mark.gpu
def test_the_same_bits_on_a_gpu() -> None:
    for seed in (3, [3, 4]):
        for split in SPLITS:
            given = FuzzyLogic(CONFIGS[1], seed, device="cuda").batch(split, COUNT)
            exact = FuzzyLogic(CONFIGS[1], seed).batch(split, COUNT)
            assert_identical(FuzzyLogicBatch(*(x.cpu() for x in tensors(given))), exact)
    task, index = FuzzyLogic(CONFIGS[1], [3, 4], device="cuda"), torch.arange(50, device="cuda")
    compiled = torch.compile(lambda i: task.batch("train", i).inputs, fullgraph=True)
    exact = FuzzyLogic(CONFIGS[1], [3, 4])
    assert compiled(index).cpu().equal(exact.batch("train", 50).inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = task.batch("train", index).inputs
    index += 2**33
    graph.replay()
    assert captured.cpu().equal(exact.batch("train", range(2**33, 2**33 + 50)).inputs)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"variables": 1}, "variables: expected a whole number from 2 to 16, got 1"),
        ({"variables": 17}, "variables: expected"),
        ({"variables": 4.0}, "variables: expected a value of type int"),
        ({"terms": 1}, "terms: expected at least 2"),
        ({"terms": 12, "unknown": 0.75}, "terms: expected fewer than the 4 known"),
        ({"terms": 3, "variables": 3, "unknown": 0.7}, "terms: expected fewer than the 3 known"),
        ({"terms": 4, "variables": 10}, "terms: expected a number that gives at most 1000000"),
        ({"examples": 1}, "examples: expected a whole number of at least 2"),
        ({"unknown": -0.1}, "unknown: expected a fraction"),
        ({"unknown": 1.0}, "unknown: expected a fraction"),
        ({"unknown": math.nan}, "unknown: expected a fraction"),
        ({"unknown": 0.1}, "unknown: expected 0, or a fraction that reserves at least 2"),
        ({"held_out": 0.0}, "held_out: expected a fraction that holds out from 1 to 60 of the 66"),
        ({"held_out": 0.01}, "held_out: expected"),
        ({"held_out": 0.93}, r"held_out: .*training needs 6 to contain all 12 terms"),
        ({"held_out": 1.0}, "held_out: expected"),
        ({"held_out": -0.5}, "held_out: expected"),
        ({"held_out": math.nan}, "held_out: expected"),
        ({"split_seed": -2}, "split_seed: expected"),
    ],
)
def test_bad_settings_name_the_field(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FuzzyLogicConfig(**settings)


def test_bad_requests() -> None:
    task = FuzzyLogic(FuzzyLogicConfig(unknown=0), seed=0)
    assert task.batch("train", 3).inputs.shape == (3, 32, 5)
    for ask in (
        lambda: task.batch("unknown", 3),
        lambda: task.dataset("unknown", 3),
        lambda: split_combinations(task.config, "unknown", 0),
    ):
        with pytest.raises(ValueError, match="unknown: expected a fraction above 0"):
            ask()
    with pytest.raises(
        ValueError, match=r"split: unknown name 'heldout'\. Did you mean 'held_out'"
    ):
        task.batch("heldout", 3)
    with pytest.raises(ValueError, match=r"fixed: unknown name 'contxt'\. Did you mean 'context'"):
        task.batch("train", 3, fixed="contxt")
    with pytest.raises(ValueError, match="seed: expected one seed for a dataset"):
        FuzzyLogic(FuzzyLogicConfig(), [0, 1]).dataset("train", 3)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_by_inductor_to_the_same_bits() -> None:
    torch.compiler.reset()
    task = FuzzyLogic(FuzzyLogicConfig(), [0, 1])
    compiled = torch.compile(lambda start: task.batch("train", start + torch.arange(53)).inputs)
    for start in (0, 2**33):
        exact = task.batch("train", range(start, start + 53)).inputs
        assert compiled(torch.tensor(start)).equal(exact)


def test_functions_inputs_and_fixed_inputs_have_nothing_to_do_with_each_other() -> None:
    task = FuzzyLogic(FuzzyLogicConfig(), seed=0)
    batch = task.batch("train", 20_000)
    combination = batch.terms[:, 0] * 16 + batch.terms[:, 1]
    numbers = torch.cat((combination.unsqueeze(1), batch.inputs[:, :2, :4].flatten(1)), dim=1)
    correlation = torch.corrcoef(numbers.double().T).fill_diagonal_(0)
    assert correlation.abs().max() < 0.03  # four standard errors of 20,000 pairs
    shared = task.batch("train", 1, fixed="context").inputs[0, :-1, :4]
    for split in STREAMS:
        assert not shared.equal(task.batch(split, 1).inputs[0, :-1, :4])
    assert FIXED_STREAM not in STREAMS.values()
