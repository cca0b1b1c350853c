"""Latent codes and their labels, as they are collected."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import run, tiny_run
from torch import Tensor

from hyla import ModelConfig, Transformer, build, member, stack, value_networks
from hyla.analysis import (
    Codes,
    Decoding,
    active_units,
    attention_codes,
    collect,
    collect_inputs,
    collect_run,
    decode,
    load_codes,
)
from hyla.experiments.paper.latent_codes import CONTROL, _with_each_rule, analyse
from hyla.tasks.base import FIRST_EVALUATION_INSTANCE as FIRST
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig, describe, split_combinations
from hyla.tasks.sraven import RULES, Sraven, SravenConfig
from hyla.tasks.sraven import split_combinations as rule_combinations
from hyla.train import load_run, train
from hyla.train.store import read_run

FUZZY = FuzzyLogicConfig(variables=3, examples=7, held_out=0.3)
SRAVEN = SravenConfig(features=2, values=5)
INSTANCES = 23


def model(task: FuzzyLogicConfig | SravenConfig, attention: str = "hyla") -> Transformer:
    sizes = (5, 5) if isinstance(task, SravenConfig) else (4, 1)
    config = ModelConfig(
        *sizes, layers=3, width=12, heads=7, head_size=2, hidden_size=17, kind=attention,
        buckets=19,
    )  # fmt: skip
    return build(config, seed=1)


def test_chosen_instances_have_each_rule_equally_often() -> None:
    config = tiny_run("sraven")
    assert (config.task, config.members[0].seed) == (SRAVEN, 3)
    numbers = _with_each_rule(config, 0, 5)
    assert len(set(numbers.tolist())) == 5 * len(RULES)
    one = model(SRAVEN)
    chosen = collect(one, SRAVEN, "all", numbers, seed=3, batch=7)
    assert np.array_equal(np.bincount(chosen.label("rule")), [5] * len(RULES))
    everything = collect(one, SRAVEN, "all", int(numbers.max()) - FIRST + 1, seed=3)
    places = (numbers - FIRST).numpy()
    np.testing.assert_allclose(chosen.codes, everything.codes[:, places], atol=1e-6)
    # They are the first that there are.
    for rule in range(len(RULES)):
        first = np.flatnonzero(everything.label("rule") == rule)[:5]
        assert set(first) <= set(places)


def test_rules_and_answers_are_decoded_each_by_its_own_labels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Codes that hold the answer in the first layer and the rule in the last."""

    def planted(path: Path, number: int, split: str, chosen: int | Tensor, keys: str) -> Codes:
        assert (path, keys) == (tmp_path, "self")
        instances = chosen if isinstance(chosen, int) else len(chosen)
        generator = np.random.default_rng([number, split == "train"])
        rule, target = generator.integers(3, size=instances), generator.integers(5, size=instances)
        noise = 0.1 * generator.standard_normal((2, instances, 7))
        noise[0, np.arange(instances), target] += 1.0
        noise[1, np.arange(instances), rule] += 1.0
        splits = np.full(instances, split)
        labels = {"rule": rule, "target": target, "split": splits}
        return Codes(noise, (0, 1), labels, {"rule": ("a", "b", "c")})

    def checked(train: Codes, test: Codes, label: str, **options: int) -> Decoding:
        assert (train.labels["split"][0], test.labels["split"][0]) == ("train", "held_out")
        return decode(train, test, label, **options)

    run(tiny_run("sraven", steps=7), tmp_path)
    monkeypatch.setattr("hyla.experiments.paper.latent_codes.collect_run", planted)
    monkeypatch.setattr("hyla.experiments.paper.latent_codes.decode", checked)
    found: dict[tuple[str, int, str], list[dict[str, float | None]]] = {}
    for trained in read_run(tmp_path)[:2]:
        for entry in analyse(trained, instances=256, mapped=40, shuffles=1, keys="self"):
            assert entry.axes["keys"] == "self"
            what, layer, label = (entry.axes[name] for name in ("what", "layer", "label"))
            if what in ("decoding", "answers", "explained"):
                found.setdefault((what, layer, label), []).append(entry.measures)
    assert {len(entries) for entries in found.values()} == {2}

    def mean(entries: list[dict[str, float | None]], name: str) -> float:
        return float(np.mean([entry[name] for entry in entries]))

    f1 = {place: mean(entries, next(iter(entries[0]))) for place, entries in found.items()}
    assert {label for what, _, label in f1 if what == "decoding"} == {"all", "a", "b", "c"}
    assert {label for what, _, label in f1 if what == "answers"} == {
        "all", *(f"value {value}" for value in range(5))
    }  # fmt: skip
    assert f1["decoding", 1, "all"] == f1["answers", 0, "all"] == 100.0
    assert f1["decoding", 0, "all"] < 50.0
    assert f1["answers", 1, "value 4"] < 50.0
    assert f1["explained", 1, "rule"] > 80.0 > 10.0 > f1["explained", 1, "value"]
    assert f1["explained", 0, "value"] > 80.0 > 10.0 > f1["explained", 0, "rule"]
    controls = [mean(entries, CONTROL) for entries in found.values() if CONTROL in entries[0]]
    assert len(controls) == len(found) - 4
    assert max(controls) < 60.0


@pytest.mark.parametrize("fixed", [None, "context", "query"])
def test_codes_of_fuzzy_logic_are_those_of_the_model(fixed: str | None) -> None:
    one = model(FUZZY, "softmax")
    codes = collect(one, FUZZY, "held_out", INSTANCES, seed=3, fixed=fixed, batch=5)
    batch = FuzzyLogic(FUZZY, 3).batch("held_out", range(FIRST, FIRST + INSTANCES), fixed=fixed)
    expected = one.latent_codes(batch.inputs, queries=[-1], keys=[-1])
    assert codes.codes.shape == (3, INSTANCES, 7)
    assert codes.codes.dtype == np.float32
    for layer in range(3):
        exact = expected[layer][:, 0, 0].detach().numpy()
        np.testing.assert_allclose(codes.layer(layer), exact, atol=1e-6)  # batches of other sizes
    predictions = one(batch.inputs)[:, -1, 0].detach().numpy()
    np.testing.assert_allclose(codes.labels["prediction"], predictions, atol=1e-6)
    assert np.array_equal(codes.labels["target"], batch.query_target.numpy())
    assert np.array_equal(codes.labels["terms"], batch.terms.numpy())
    assert np.array_equal(codes.labels["term 2"], batch.terms[:, 1].numpy())


def test_functions_are_numbered_alike_in_all_splits() -> None:
    numbers: dict[int, str] = {}
    for split in ("train", "held_out", "unknown"):
        labels = collect(model(FUZZY), FUZZY, split, 101, seed=3).labels
        assert set(map(tuple, labels["terms"].tolist())) == set(split_combinations(FUZZY, split, 3))
        for number, formula, terms in zip(
            labels["function"].tolist(), labels["formula"].tolist(), labels["terms"], strict=True
        ):
            assert formula == describe(terms, 3) == numbers.setdefault(number, formula)
    assert len(numbers) == len(set(numbers.values())) == 16  # 15 of 6 known terms, 1 of 2 others


def test_the_first_code_of_a_token_depends_on_nothing_else_but_for_softmax() -> None:
    """In layer 0 nothing has been in context yet: where a decoder must find nothing."""
    for attention, constant in (("hyla", True), ("linear", True), ("softmax", False)):
        one = model(FUZZY, attention)
        codes = collect(one, FUZZY, "held_out", INSTANCES, seed=3, fixed="query")
        assert (np.ptp(codes.layer(0), axis=0).max() < 1e-6) == constant
        assert np.ptp(codes.layer(1), axis=0).max() > 1e-4


def test_sraven_codes_are_of_held_out_combinations_in_the_order_of_their_rules() -> None:
    one, plain = model(SRAVEN), replace(SRAVEN, permute=False)
    held_out = set(rule_combinations(SRAVEN, "held_out", 3))
    assert held_out == set(rule_combinations(plain, "held_out", 3))
    codes = collect(one, SRAVEN, "held_out", INSTANCES, seed=3)
    batch = Sraven(plain, 3).batch("held_out", range(FIRST, FIRST + INSTANCES))
    assert set(map(tuple, batch.rules.tolist())) <= held_out
    expected = one.latent_codes(batch.inputs, queries=[-1], keys=[-1])[2][:, 0, 0]
    np.testing.assert_allclose(codes.layer(-1), expected.detach().numpy(), atol=1e-6)
    assert np.array_equal(codes.labels["rule"], batch.rules.max(dim=-1).values.numpy())
    assert np.array_equal(codes.labels["target"], batch.panels[:, 2, 2, -1].numpy())
    assert np.array_equal(codes.labels["inputs"], batch.panels[:, 2, :2, -1].numpy())
    prediction = one(batch.inputs)[:, -1].argmax(dim=-1).numpy()
    assert np.array_equal(codes.labels["prediction"], prediction)
    assert np.array_equal(codes.labels["right"], prediction == codes.labels["target"])
    assert codes.classes("rule")[0] == RULES


@pytest.mark.parametrize("permute", [False, True])
def test_panels_are_the_two_before_at_the_same_feature(permute: bool) -> None:
    one, task = model(SRAVEN), replace(SRAVEN, permute=permute)
    found = collect(one, SRAVEN, "train", INSTANCES, seed=3, keys="panels", permute=permute)
    batch = Sraven(task, 3).batch("train", range(FIRST, FIRST + INSTANCES))
    every = one.latent_codes(batch.inputs, queries=[-1])[1][:, 0].detach().numpy()
    for i in range(INSTANCES):
        feature = batch.orders[i, 2].tolist()[-1]
        slots = [batch.orders[i, column].tolist().index(feature) for column in range(2)]
        tokens = [12 + 2 * column + slot for column, slot in enumerate(slots)]
        np.testing.assert_allclose(found.layer(1)[i], every[i, tokens].ravel(), atol=1e-6)
        before = [int(batch.panels[i, 2, column, slots[column]]) for column in range(2)]
        assert found.labels["inputs"][i].tolist() == before
        assert found.labels["rule"][i] == batch.rules[i, feature]


@pytest.mark.parametrize("task", ["sraven", "fuzzy_logic"])
def test_a_member_of_a_run_has_the_codes_of_the_model_alone(task: str, tmp_path: Path) -> None:
    config = tiny_run(task)
    train(config, tmp_path, device="cpu", compiled=False, stop_at=3)
    alone = member(load_run(tmp_path)[1], 1)
    found = collect_run(tmp_path, 1, "held_out", INSTANCES)
    seed = config.members[1].seed
    expected = collect(alone, config.task, "held_out", INSTANCES, seed=seed)
    assert np.array_equal(found.codes, expected.codes)
    assert found.labels.keys() == expected.labels.keys()
    for name in found.labels:
        assert np.array_equal(found.labels[name], expected.labels[name])
    other = collect_run(tmp_path, 1, "held_out", INSTANCES, first_instance=0)
    assert not np.array_equal(found.labels["target"], other.labels["target"])
    later = collect_run(tmp_path, 1, "held_out", 3, first_instance=FIRST + 2)
    np.testing.assert_allclose(later.codes, found.codes[:, 2:5], atol=1e-6)
    with pytest.raises(ValueError, match="member: expected a whole number from 0 to 2, got 3"):
        collect_run(tmp_path, 3, "held_out", INSTANCES)


def test_any_scores_become_codes_by_their_pairs() -> None:
    scores = [torch.randn(5, 3, 7, 11, dtype=torch.bfloat16) for _ in range(2)]
    pairs = [(-1, -1), (2, 0), (0, 10)]
    codes = attention_codes(scores, pairs)
    assert codes.codes.shape == (2, 15, 3)
    labels = zip(*(codes.labels[name] for name in ("sequence", "query", "key")), strict=True)
    for i, (sequence, query, key) in enumerate(labels):
        assert (query, key) == [(6, 10), (2, 0), (0, 10)][i % 3]
        for layer in range(2):
            exact = scores[layer][sequence, :, query, key].float().numpy()
            assert np.array_equal(codes.layer(layer)[i], exact)


def test_pairs_and_labels_may_be_lists_arrays_or_tensors() -> None:
    weights, pairs = torch.rand(3, 4, 5, 5), [(-1, 0), (2, 1)]
    expected = attention_codes([weights], pairs)
    for same in (np.array(pairs), torch.tensor(pairs)):
        assert np.array_equal(attention_codes([weights], same).codes, expected.codes)
    for odd in ([], (-1, -1), [(-1, 0, 1)], [(-1, -1.0)], np.zeros((0, 2), dtype=int)):
        with pytest.raises(ValueError, match=r"pairs: expected at least one \(query, key\)"):
            attention_codes([weights], odd)
    with pytest.raises(ValueError, match=r'scores: .*attn_implementation="eager"'):
        attention_codes([])
    for labels in ([0, 1, 1], torch.tensor([0, 1, 1])):
        codes = Codes(torch.zeros(1, 3, 2), (0,), {"y": labels})
        assert codes.take(codes.label("y") == 1).instances == 2
    with pytest.raises(ValueError, match=r"model: expected a hyla\.Transformer; for others take"):
        collect_inputs(torch.nn.TransformerEncoderLayer(4, 2), torch.zeros(2, 3, 4))


def test_the_codes_of_a_layer_in_a_model_of_ones_own() -> None:
    one = model(SRAVEN)
    x = torch.randn(3, 5, one.config.input_size)
    layer, normed = one.blocks[0].attention, one.blocks[0].attention_norm(one.embed(x))
    found = attention_codes([layer.codes(normed).movedim(-1, 1)], [(-1, 2), (0, 1)])
    for queries, keys, row in (([-1], [2], 0), (torch.tensor([0]), torch.tensor([1]), 1)):
        exact = collect_inputs(one, x, queries, keys).codes[:1]
        np.testing.assert_allclose(found.codes[:, row::2], exact, atol=1e-6)


def test_the_codes_of_any_tokens() -> None:
    one, tokens = model(FUZZY), torch.randn(5, 7, 4)
    codes = collect_inputs(one, tokens, queries=[-1, 2], keys=[0, -2, 3])
    expected = one.latent_codes(tokens)[1].detach().numpy()
    assert codes.instances == 5 * 2 * 3
    for i in range(codes.instances):
        sequence, query, key = (codes.labels[name][i] for name in ("sequence", "query", "key"))
        np.testing.assert_allclose(codes.layer(1)[i], expected[sequence, query, key], atol=1e-6)
    assert codes.labels["key"][:6].tolist() == [0, 5, 3] * 2
    assert codes.labels["query"][:6].tolist() == [6] * 3 + [2] * 3


def test_a_file_of_codes_gives_them_back(tmp_path: Path) -> None:
    codes = collect(model(SRAVEN), SRAVEN, "train", INSTANCES, seed=3)
    with (tmp_path / "codes.npz").open("wb") as handle:
        codes.save(handle)
    again = load_codes(tmp_path / "codes.npz")
    assert np.array_equal(again.codes, codes.codes)
    assert (again.layers, again.names) == (codes.layers, codes.names)
    assert again.labels.keys() == codes.labels.keys()
    assert all(np.array_equal(again.labels[n], codes.labels[n]) for n in codes.labels)
    np.savez(tmp_path / "other.npz", something=np.zeros(3))
    with pytest.raises(ValueError, match=r"file: expected .*something"):
        load_codes(tmp_path / "other.npz")


def test_wrong_arguments_are_named() -> None:
    one, population = model(SRAVEN), stack([model(SRAVEN), model(SRAVEN)])
    for arguments, message in (
        ({"keys": "column"}, "keys: unknown name 'column'"),
        ({"fixed": "query"}, "probe of sraven: unknown name 'fixed'"),
        ({"batch": 0}, "batch: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            collect(one, SRAVEN, "train", 5, seed=0, **arguments)
    with pytest.raises(ValueError, match="model: expected one model, such as"):
        collect(population, SRAVEN, "train", 5, seed=0)
    with pytest.raises(ValueError, match="instances: expected"):
        collect(one, SRAVEN, "train", 0, seed=0)
    with pytest.raises(ValueError, match="probe of fuzzy_logic: unknown name 'permute'"):
        collect(model(FUZZY), FUZZY, "train", 5, seed=0, permute=True)
    with pytest.raises(ValueError, match=r"split: unknown name"):
        collect(one, SRAVEN, "held-out", 5, seed=0)
    with pytest.raises(ValueError, match="pairs: expected a query below 7"):
        attention_codes([np.zeros((2, 3, 7, 5))], [(7, 0)])
    with pytest.raises(ValueError, match=r"scores: expected .* got \[2, 3, 5\]"):
        attention_codes([np.zeros((2, 3, 5))])
    codes = Codes(np.zeros((2, 5, 3)), (0, 4), {"rule": np.arange(5)})
    with pytest.raises(ValueError, match="layer: expected one of 0, 4"):
        codes.layer(1)
    with pytest.raises(ValueError, match=r"label: unknown name 'rules'\. Did you mean 'rule'"):
        codes.label("rules")
    with pytest.raises(ValueError, match="one for each of the 5 instances"):
        Codes(np.zeros((2, 5, 3)), (0, 4), {"rule": np.arange(3)})


def test_importing_the_analysis_loads_neither_learning_nor_drawing() -> None:
    code = (
        "import sys, hyla.analysis;"
        "print(*{name.split('.')[0] for name in sys.modules} & {'sklearn', 'matplotlib'})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not result.stdout.strip()


def test_active_units_are_those_of_the_value_networks() -> None:
    config = ModelConfig(5, 3, layers=2, width=7, heads=3, head_size=4, buckets=11)
    one, tokens = build(config, seed=1), torch.randn(5, 11, 5)
    block = one.blocks[0]
    with torch.no_grad():
        block.attention.value.bias.view(3, 4)[:, 2] = 0
        block.attention.value.weight.view(3, 4, 7)[:, 2] = 0  # never above 0
    found = active_units(one, tokens)
    normed = block.attention_norm(one.embed(tokens))
    networks = value_networks(block.attention, normed)
    hidden = torch.einsum("bqkvd,bkd->bqkv", networks.weights[0], normed) + networks.bias
    expected = (hidden > 0).float().mean(dim=(0, 1, 2))
    assert found[0] == pytest.approx(expected.numpy())
    assert found[0][2] == 0
    assert (found[1] > 0).all()
    half = active_units(one.bfloat16(), tokens.bfloat16())
    assert half[1] == pytest.approx(found[1], abs=0.05)


@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla-nonlinearity"])
def test_there_are_no_units_without_a_value_network_that_has_them(attention: str) -> None:
    one = build(ModelConfig(5, 3, layers=1, heads=3, kind=attention), seed=0)
    with pytest.raises(ValueError, match="model: expected "):
        active_units(one, torch.randn(2, 11, 5))
