"""Readers of fuzzy logic contexts against loops and scikit-learn."""

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from test_fuzzy_logic import by_loops
from test_report_rows import write_results

from hyla.experiments import EXPERIMENTS
from hyla.experiments.declare import Row
from hyla.experiments.judge import find
from hyla.experiments.rows import SPLIT_OF
from hyla.experiments.scales import points_at
from hyla.report import load
from hyla.report.figures import draw
from hyla.tasks import fuzzy_readers
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig, r2
from hyla.tasks.fuzzy_readers import (
    KERNEL_WIDTH,
    READERS,
    RIDGE,
    best_fit,
    explained,
    kernel_regression,
    predict,
)

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
        # what is equal in float32 may differ by a rounding in Python's numbers
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
            patch.setattr(fuzzy_readers, name, value)
            assert mean_r2(config, "regression", "train", 2003) < best, (name, value)


@pytest.mark.parametrize("split", ["train", "held_out", "unknown"])
def test_who_knows_all_terms_reads_every_function(split: str) -> None:
    assert mean_r2(FuzzyLogicConfig(examples=31), "all terms", split) > 0.999


def test_no_reader_errs_less_where_all_functions_are_equally_probable() -> None:
    batch = FuzzyLogic(FEW, seed=3).batch("train", 5003)
    errors = {
        reader: float((predict(reader, batch.inputs, FEW, 3) - batch.query_target).square().mean())
        for reader in READERS
    }
    assert errors.pop("functions of training") < 0.9 * min(errors.values())


def test_readers_solve_what_they_know_and_nothing_else() -> None:
    config = FuzzyLogicConfig(examples=31)
    assert mean_r2(config, "functions of training", "train") > 0.999
    assert mean_r2(config, "functions of training", "held_out") < 0.5
    assert mean_r2(config, "known terms", "held_out") > 0.999
    assert mean_r2(config, "known terms", "unknown") < 0
    assert 0.5 < mean_r2(config, "regression", "unknown") < 0.95


@pytest.mark.parametrize("reader", READERS)
def test_readers_do_not_see_the_masked_target(reader: str) -> None:
    batch = FuzzyLogic(FEW, seed=3).batch("train", COUNT)
    spoiled = batch.inputs.clone()
    spoiled[:, -1, -1] = torch.rand(COUNT)
    assert predict(reader, batch.inputs, FEW, 3).equal(predict(reader, spoiled, FEW, 3))


@pytest.mark.parametrize("reader", READERS)
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
def test_rows_are_of_their_place_and_have_the_measures_of_trained_models(reader: str) -> None:
    experiment, scale = EXPERIMENTS["readers"], "smoke"
    for point in points_at(experiment, scale):
        if point.axes["reader"] != reader:
            continue
        (row,) = experiment.make(point, (), scale)
        config = FuzzyLogicConfig(examples=row["examples"], held_out=row["held_out"])
        found = {}
        for name, split in SPLIT_OF.items():
            found[name] = []
            for seed in range(3):
                batch = FuzzyLogic(config, seed).batch(split, range(2**40, 2**40 + 64))
                r2s = r2(predict(reader, batch.inputs, config, seed), batch)
                found[name].append(100 * float(r2s.mean()))
            assert row["measures"][name]["per_seed"] == pytest.approx(found[name], abs=1e-3)
        assert row["per_seed"] == row["measures"]["held out"]["per_seed"]
        assert row["instances"] == 64


def test_a_row_of_the_results_comes_again() -> None:
    rows = json.loads((ROOT / "results/readers.json").read_text())
    place = {"reader": "known terms", "examples": 16, "held_out": 0.7}
    row = find(rows, **place)
    assert row is not None
    config = FuzzyLogicConfig(examples=16, held_out=0.7)
    batch = FuzzyLogic(config, seed=2).batch("unknown", range(2**40, 2**40 + row["instances"]))
    again = r2(predict("known terms", batch.inputs, config, 2), batch).double().mean()
    assert row["measures"]["unknown terms"]["per_seed"][2] == pytest.approx(100 * float(again))


def test_a_yardstick_is_drawn_beside_the_models(tmp_path: Path) -> None:
    def lines(names: tuple[str, ...], change: Callable[[Row], Row] = dict) -> list[list[str]]:
        results, runs = write_results(tmp_path / "-".join(names), change, names)
        (one,) = (one for one in load(results, runs) if one.experiment.name == "fuzzy")
        drawn = [draw(f, one.rows_for(f), one.experiment.axes)[0] for f in one.experiment.figures]
        return [[key.name for key in figure.legend] for figure in drawn]

    kinds = ["softmax", "linear", "hyla"]
    yardstick = [*kinds, "regression, no model"]
    assert lines(("fuzzy",)) == [kinds] * 4
    assert lines(("fuzzy", "readers")) == [yardstick] * 3 + [kinds]  # it has no training loss
    odd = lambda row: {**row, "measures": None} if "reader" in row else row  # noqa: E731
    assert lines(("fuzzy", "readers"), odd) == [kinds] * 4
