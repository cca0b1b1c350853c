"""Readers of fuzzy logic contexts against loops and scikit-learn."""

from itertools import combinations

import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from test_fuzzy_logic import by_loops

from hyla.experiments import EXPERIMENTS
from hyla.experiments.scales import points_at
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig, r2, split_combinations
from hyla.tasks.fuzzy_readers import KERNEL_WIDTH, RIDGE, best_fit, kernel_regression, readers

COUNT = 23
FEW = FuzzyLogicConfig(variables=3, terms=2, examples=3, held_out=0.3)  # many functions fit alike


def explained(config: FuzzyLogicConfig, reader: str, split: str, count: int = 211) -> float:
    batch = FuzzyLogic(config, seed=5).batch(split, count)
    return float(r2(readers(config, seed=5)[reader](batch.inputs), batch).mean())


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
    batch = FuzzyLogic(FuzzyLogicConfig(examples=17), seed=3).batch("train", COUNT)
    given = kernel_regression(batch.inputs)
    for tokens, ours in zip(batch.inputs.double().numpy(), given.tolist(), strict=True):
        x, y = tokens[:, :-1], tokens[:-1, -1]
        theirs = KernelRidge(alpha=RIDGE, kernel="rbf", gamma=0.5 / KERNEL_WIDTH**2)
        theirs.fit(x[:-1], y - y.mean())
        assert ours == pytest.approx(theirs.predict(x[-1:])[0] + y.mean(), abs=1e-6)


@pytest.mark.parametrize("split", ["train", "held_out", "unknown"])
def test_no_reader_is_above_the_one_that_knows_all_terms(split: str) -> None:
    config = FuzzyLogicConfig(examples=31)
    found = {name: explained(config, name, split) for name in readers(config, seed=5)}
    assert found["all terms"] == max(found.values()) == pytest.approx(1.0, abs=1e-3)


def test_readers_solve_what_they_know_and_nothing_else() -> None:
    config = FuzzyLogicConfig(examples=31)
    assert explained(config, "functions of training", "train") > 0.999
    assert explained(config, "functions of training", "held_out") < 0.5
    assert explained(config, "known terms", "held_out") > 0.999
    assert explained(config, "known terms", "unknown") < 0
    assert 0.5 < explained(config, "regression", "unknown") < 0.95


def test_readers_do_not_see_the_masked_target() -> None:
    batch = FuzzyLogic(FEW, seed=3).batch("train", COUNT)
    spoiled = batch.inputs.clone()
    spoiled[:, -1, -1] = torch.rand(COUNT)
    for name, reader in readers(FEW, seed=3).items():
        assert reader(batch.inputs).equal(reader(spoiled)), name


def test_the_functions_of_training_are_those_of_the_seed() -> None:
    config = FuzzyLogicConfig(examples=31)
    assert split_combinations(config, "train", 0) != split_combinations(config, "train", 1)
    batch = FuzzyLogic(config, seed=1).batch("train", 211)
    own, other = (readers(config, s)["functions of training"](batch.inputs) for s in (1, 0))
    assert r2(own, batch).mean() > 0.999
    assert r2(other, batch).mean() < 0.9


def test_rows_have_the_measures_of_trained_models() -> None:
    experiment = EXPERIMENTS["readers"]
    point = next(p for p in points_at(experiment, "smoke") if p.axes["reader"] == "known terms")
    (row,) = experiment.make(point, (), "smoke")
    assert row["mean"] == row["measures"]["held out"]["mean"] > 95
    assert set(row["measures"]) == {"held out", "in distribution", "unknown terms"}
    assert len(row["per_seed"]) == 3
    assert row["measures"]["unknown terms"]["mean"] < 0
