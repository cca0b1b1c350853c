"""Baselines of fuzzy logic against loops and scikit-learn."""

from itertools import combinations
from pathlib import Path

import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from test_fuzzy_logic import by_loops

from hyla.experiments import EXPERIMENTS
from hyla.experiments.paper.baselines import SPLITS
from hyla.experiments.paper.readers import fuzzy_reader
from hyla.experiments.rows import all_rows
from hyla.experiments.run import Options, run_experiment
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig, baselines, r2
from hyla.tasks.fuzzy_logic.baselines import (
    BASELINES,
    KERNEL_WIDTH,
    RIDGE,
    best_fit,
    explained,
    kernel_regression,
    predict,
)
from hyla.train.store import Store

ROOT = Path(__file__).parents[1]
COUNT = 23
FEW = FuzzyLogicConfig(variables=3, terms=2, examples=3, held_out=0.3)  # many functions fit alike


def mean_r2(config: FuzzyLogicConfig, reader: str, split: str, count: int = 211) -> float:
    return float(explained(reader, config, split, range(count), seed=5).mean())


@pytest.mark.parametrize("split", ["train", "held_out", "unknown"])
def test_the_best_fit_is_that_of_loops(split: str) -> None:
    batch = FuzzyLogic(FEW, seed=3).batch(split, COUNT)
    functions = list(combinations(range(FEW.known_terms), FEW.terms))
    given = best_fit(batch.inputs, functions)
    several = 0
    for tokens, ours in zip(batch.inputs.tolist(), given.tolist(), strict=True):
        *context, (*query, _) = tokens
        errors = [sum((by_loops(x, list(f)) - y) ** 2 for *x, y in context) for f in functions]
        # equal numbers in float32 may differ by rounding in Python
        fits = [f for f, e in zip(functions, errors, strict=True) if e <= min(errors) + 1e-12]
        several += len(fits) > 1
        exact = sum(by_loops(query, list(f)) for f in fits) / len(fits)
        assert ours == pytest.approx(exact, abs=1e-6)
    assert several  # means over functions that fit alike were compared too


def test_regression_is_that_of_scikit_learn() -> None:
    batch = FuzzyLogic(FuzzyLogicConfig(examples=37), seed=3).batch("train", COUNT)
    given = kernel_regression(batch.inputs)
    for tokens, ours in zip(batch.inputs.double().numpy(), given.tolist(), strict=True):
        x, y = tokens[:, :-1], tokens[:-1, -1]
        theirs = KernelRidge(alpha=RIDGE, kernel="rbf", gamma=0.5 / KERNEL_WIDTH**2)
        theirs.fit(x[:-1], y - y.mean())
        assert ours == pytest.approx(theirs.predict(x[-1:])[0] + y.mean(), abs=1e-6)


def test_the_regression_is_the_best_for_functions_of_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = FuzzyLogicConfig()
    best = mean_r2(config, "regression", "train", 2003)
    for name, value in [("KERNEL_WIDTH", 0.4), ("KERNEL_WIDTH", 0.8), ("RIDGE", 1e-3)]:
        with monkeypatch.context() as patch:
            patch.setattr(baselines, name, value)
            assert mean_r2(config, "regression", "train", 2003) < best, (name, value)


@pytest.mark.parametrize("split", ["train", "held_out", "unknown"])
def test_who_knows_all_terms_reads_every_function(split: str) -> None:
    assert mean_r2(FuzzyLogicConfig(examples=31), "all terms", split) > 0.999


def test_no_reader_errs_less_where_all_functions_are_equally_probable() -> None:
    batch = FuzzyLogic(FEW, seed=3).batch("train", 5003)
    errors = {
        reader: float((predict(reader, batch.inputs, FEW, 3) - batch.query_target).square().mean())
        for reader in BASELINES
    }
    assert errors.pop("functions of training") < 0.9 * min(errors.values())


def test_readers_solve_what_they_know_and_nothing_else() -> None:
    config = FuzzyLogicConfig(examples=31)
    assert mean_r2(config, "functions of training", "train") > 0.999
    assert mean_r2(config, "functions of training", "held_out") < 0.5
    assert mean_r2(config, "known terms", "held_out") > 0.999
    assert mean_r2(config, "known terms", "unknown") < 0
    assert 0.5 < mean_r2(config, "regression", "unknown") < 0.95


@pytest.mark.parametrize("reader", BASELINES)
def test_readers_do_not_see_the_masked_target(reader: str) -> None:
    batch = FuzzyLogic(FEW, seed=3).batch("train", COUNT)
    spoiled = batch.inputs.clone()
    spoiled[:, -1, -1] = torch.rand(COUNT)
    assert predict(reader, batch.inputs, FEW, 3).equal(predict(reader, spoiled, FEW, 3))


@pytest.mark.parametrize("reader", BASELINES)
def test_readers_take_more_axes_and_keep_the_precision(reader: str) -> None:
    inputs = FuzzyLogic(FuzzyLogicConfig(examples=7), seed=(3, 4)).batch("train", COUNT).inputs
    given = predict(reader, inputs, FuzzyLogicConfig(examples=7), 3)
    assert given.shape == (2, COUNT)
    for ours, tokens in zip(given, inputs, strict=True):
        alone = predict(reader, tokens, FuzzyLogicConfig(examples=7), 3)
        assert torch.allclose(ours, alone, atol=1e-6)
    assert predict(reader, inputs.double(), FuzzyLogicConfig(examples=7), 3).dtype == torch.float64


def test_what_cannot_be_read_is_refused() -> None:
    tokens = FuzzyLogic(FEW, seed=3).batch("train", 1).inputs
    with pytest.raises(ValueError, match="Did you mean 'known terms'"):
        predict("known term", tokens, FEW, 3)
    with pytest.raises(ValueError, match="functions: expected one or more"):
        best_fit(tokens, [])
    with pytest.raises(ValueError, match="inputs: expected tokens of 3 variables and a target"):
        predict("all terms", tokens[..., 1:], FEW, 3)
    with pytest.raises(ValueError, match="inputs: expected two or more examples"):
        kernel_regression(tokens[:, -1:])


@pytest.mark.parametrize("reader", ["regression", "functions of training"])
def test_rows_are_of_their_place_and_have_the_measures_of_trained_models(
    reader: str, tmp_path: Path
) -> None:
    options = Options(runs=tmp_path, only={"reader": (reader,)}, tiny=True)
    rows = run_experiment(EXPERIMENTS["readers"], options)
    assert [(row.axes["examples"], row.axes["held_out"]) for row in rows] == [(16, 0.3), (16, 0.7)]
    for row in rows:
        assert row.axes["reader"] == reader
        config = FuzzyLogicConfig(examples=16, held_out=row.axes["held_out"])
        assert list(row.measures) == list(SPLITS)
        for name, split in SPLITS.items():
            found = []
            for seed in range(3):
                batch = FuzzyLogic(config, seed).batch(split, range(2**40, 2**40 + 64))
                r2s = r2(predict(reader, batch.inputs, config, seed), batch)
                found.append(100 * float(r2s.mean()))
            assert row.measures[name].per_seed == pytest.approx(found, abs=1e-3)
        assert row.main == row.measures["held out"]


def test_a_published_row_is_reproduced() -> None:
    place = {"reader": "known terms", "examples": 16, "held_out": 0.7}
    rows = all_rows(EXPERIMENTS["readers"], Store.open(None, ROOT / "results"))
    (row,) = (row for row in rows if row.is_at(place))
    config = FuzzyLogicConfig(examples=16, held_out=0.7)
    instances = fuzzy_reader("known terms").settings["instances"]
    batch = FuzzyLogic(config, seed=2).batch("unknown", range(2**40, 2**40 + instances))
    again = r2(predict("known terms", batch.inputs, config, 2), batch).double().mean()
    assert row.measures["unknown terms"].per_seed[2] == pytest.approx(100 * float(again))
