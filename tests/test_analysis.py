"""Codes decoded, embedded and compared: codes are planted, so that the answers are known."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from hyla.analysis import (
    Codes,
    cosine_similarity,
    decode,
    draw_embedding,
    embed,
    explained,
    load_codes,
    mean_codes,
    sample,
)
from hyla.tasks.sraven import RULES

HEADS, CLASSES = 11, 7


def planted(instances: int, seed: int, noise: float = 0.1, classes: int = CLASSES) -> Codes:
    """Layer 0 is noise; layer 1 is the class, one-hot over the heads, with noise."""
    generator = np.random.default_rng(seed)
    rule = generator.integers(0, classes, instances)
    codes = generator.normal(size=(2, instances, HEADS))
    codes[1] = np.eye(HEADS)[rule] + noise * codes[1]
    target = generator.integers(0, 5, instances)
    return Codes(codes, (0, 1), {"rule": rule, "target": target}, {"rule": RULES})


def planted_terms(instances: int, seed: int) -> Codes:
    """Layer 1 has the two terms of a function, of 7, with noise; layer 0 is noise."""
    generator = np.random.default_rng(seed)
    pairs = np.array(list(itertools.combinations(range(7), 2)))
    terms = pairs[generator.integers(0, len(pairs), instances)]
    codes = generator.normal(size=(2, instances, HEADS))
    codes[1] = np.eye(HEADS)[terms].sum(axis=1) + 0.1 * codes[1]
    return Codes(codes, (0, 1), {"terms": terms})


def test_planted_rules_are_decoded_and_noise_and_shuffled_labels_are_not() -> None:
    found = decode(planted(500, seed=0), planted(401, seed=1), "rule")
    assert found.names == RULES
    assert found.measured.accuracy[1] == 1
    assert found.measured.f1[1, :CLASSES].tolist() == [1] * CLASSES
    assert np.isnan(found.measured.f1[:, CLASSES:]).all()  # a rule that does not occur
    assert found.measured.macro_f1[1] == 1
    # Layer 0 is noise: five deviations of 401 guesses, and of the labels' imbalance.
    assert abs(found.measured.accuracy[0] - 1 / CLASSES) < 0.1
    # A shuffle gives each of the 7 clusters a random class: the deviation is 0.13 / sqrt(10).
    assert found.control is not None
    assert abs(found.control.accuracy - 1 / CLASSES).max() < 5 * 0.13 / 10**0.5
    assert found.control.macro_f1.max() < 0.3
    counts = np.bincount(planted(500, seed=0).labels["rule"], minlength=8)
    assert found.train_counts.tolist() == counts.tolist()
    most = planted(401, seed=1).labels["rule"] == counts.argmax()
    assert found.majority_accuracy == most.mean()


def test_planted_terms_are_decoded_one_by_one() -> None:
    found = decode(planted_terms(400, seed=0), planted_terms(301, seed=1), "terms")
    assert found.names == tuple("0123456")
    assert found.measured.f1[1].min() > 0.98
    assert found.measured.accuracy[1] > 0.99
    assert found.control is not None
    # A classifier that knows nothing guesses: F1 is p / (p + 1/2), for 2 of 7 terms.
    guessed = [found.measured.macro_f1[0], *found.control.macro_f1]
    assert guessed == pytest.approx([4 / 11] * 3, abs=0.03)
    assert found.majority_accuracy == pytest.approx(5 / 7)


def test_scores_are_those_of_scikit_learn() -> None:
    train, test = planted(300, seed=0, noise=0.5), planted(211, seed=1, noise=0.5)
    found = decode(train, test, "rule", shuffles=0)
    assert found.control is None
    assert 0.3 < found.measured.accuracy[1] < 0.95
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=10_000, class_weight="balanced")
    )
    rules = test.labels["rule"]
    predictions = pipeline.fit(train.layer(1), train.labels["rule"]).predict(test.layer(1))
    expected = f1_score(rules, predictions, average=None, labels=range(CLASSES))
    np.testing.assert_allclose(found.measured.f1[1, :CLASSES], expected, atol=0.02)
    assert found.measured.accuracy[1] == pytest.approx((rules == predictions).mean(), abs=0.01)


def test_decoding_is_deterministic_and_does_not_look_at_order_or_scale() -> None:
    train, test = planted(300, seed=0, noise=0.5), planted(211, seed=1, noise=0.5)
    first, again = decode(train, test, "rule", seed=3), decode(train, test, "rule", seed=3)
    assert np.array_equal(first.measured.f1, again.measured.f1, equal_nan=True)
    assert np.array_equal(first.control.f1, again.control.f1, equal_nan=True)
    other = decode(train, test, "rule", seed=4)
    assert np.array_equal(first.measured.f1, other.measured.f1, equal_nan=True)
    assert not np.array_equal(first.control.f1, other.control.f1, equal_nan=True)

    generator = np.random.default_rng(5)
    order, heads = generator.permutation(211), generator.permutation(HEADS)
    scale = np.exp(generator.normal(size=HEADS))

    def moved(codes: Codes) -> Codes:
        return Codes(codes.codes[..., heads] * scale + 2, codes.layers, codes.labels, codes.names)

    for changed in (
        decode(train, test.take(order), "rule", shuffles=0),
        decode(moved(train), moved(test), "rule", shuffles=0),
    ):
        np.testing.assert_allclose(changed.measured.f1, first.measured.f1, atol=0.02)
    # Test codes are standardised like training codes, not by themselves.
    shifted = decode(train, moved(test), "rule", shuffles=0)
    assert shifted.measured.accuracy[1] < first.measured.accuracy[1] - 0.1


def test_renaming_the_classes_renames_the_scores() -> None:
    train, test = planted(300, seed=0, noise=0.5), planted(211, seed=1, noise=0.5)
    new = np.random.default_rng(0).permutation(8)

    def renamed(codes: Codes) -> Codes:
        return Codes(codes.codes, codes.layers, {"rule": new[codes.labels["rule"]]}, codes.names)

    found = decode(renamed(train), renamed(test), "rule", shuffles=0)
    expected = decode(train, test, "rule", shuffles=0).measured.f1
    np.testing.assert_allclose(found.measured.f1[:, new], expected, atol=0.02)


def test_constant_codes_are_all_decoded_as_the_same() -> None:
    train, test = planted(100, seed=0), planted(83, seed=1)
    for value, rounding in ((0.0, 0.0), (1 / 7, 0.0), (1 / 7, 2e-8)):
        for codes in (train, test):  # only rounding depends on the rule
            codes.codes[0] = value + rounding * np.eye(HEADS)[codes.labels["rule"]]
        assert (np.ptp(train.layer(0)) > 0) == (rounding > 0)
        found = decode(train, test, "rule", shuffles=0)
        shares = np.bincount(test.labels["rule"]) / test.instances
        assert found.measured.accuracy[0] in shares
        assert found.measured.accuracy[1] == 1


def test_what_cannot_be_decoded_is_refused() -> None:
    train, test = planted(100, seed=0), planted(83, seed=1)
    with pytest.raises(ValueError, match="label: unknown name 'rules'"):
        decode(train, test, "rules")
    with pytest.raises(ValueError, match="train: expected at least 10, got 9 instances"):
        decode(planted(9, seed=0), test, "rule")
    with pytest.raises(ValueError, match="at least 2 classes in train"):
        decode(train.take(train.labels["rule"] == 3), test, "rule")
    unseen = Codes(np.zeros((2, 50, HEADS)), (0, 1), {"terms": np.full((50, 2), 9)})
    with pytest.raises(ValueError, match="at least 2 classes in train, one of them in test"):
        decode(planted_terms(50, seed=0), unseen, "terms")
    real = [Codes(c.codes, c.layers, {"x": c.codes[0, :, 0]}) for c in (train, test)]
    with pytest.raises(ValueError, match="label: expected one with a few values, got 'x'"):
        decode(*real, "x")
    broken = planted(83, seed=1)
    broken.codes[1, 5, 3] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity in layer 1 of test"):
        decode(train, broken, "rule")
    others = {"rule": test.names["rule"][::-1]}
    for names in (others, {}):
        with pytest.raises(ValueError, match=r"names\['rule'\]: expected the same names"):
            decode(train, Codes(test.codes, test.layers, test.labels, names), "rule")
    fewer = Codes(test.codes[..., :5], test.layers, test.labels, test.names)
    with pytest.raises(ValueError, match="test: expected "):
        decode(train, fewer, "rule")


def test_cosine_similarity_by_hand() -> None:
    codes = np.array([[[1.0, 2, 2], [3, 0, 4], [-1, -2, -2], [1, 0, 4]]])
    labels = {"rule": np.array([5, 0, 3, 0])}
    found = mean_codes(Codes(codes, (2,), labels, {"rule": RULES}), "rule", layer=2)
    assert found.names == ("constant", "progression -1", "addition")
    assert found.counts.tolist() == [2, 1, 1]
    assert found.means.tolist() == [[2, 0, 4], [-1, -2, -2], [1, 2, 2]]
    with_first = 10 / (20**0.5 * 3)
    expected = [[1, -with_first, with_first], [-with_first, 1, -1], [with_first, -1, 1]]
    np.testing.assert_allclose(found.cosine, expected, atol=1e-15)
    zero = cosine_similarity(np.array([[0.0, 0], [1, 1]]))
    assert np.isnan(zero[0]).all()
    assert zero[1, 1] == pytest.approx(1)
    with pytest.raises(ValueError, match="'terms' with several values"):
        mean_codes(planted_terms(20, 0), "terms")


def test_a_sample_keeps_codes_and_labels_together() -> None:
    codes = planted(101, seed=0)
    some = sample(codes, 13, seed=2)
    assert some.codes.shape == (2, 13, HEADS)
    rows = [int(np.flatnonzero((codes.layer(1) == row).all(axis=1))[0]) for row in some.layer(1)]
    assert rows == sorted(set(rows))
    assert np.array_equal(some.labels["rule"], codes.labels["rule"][rows])
    assert np.array_equal(sample(codes, 13, seed=2).codes, some.codes)
    assert not np.array_equal(sample(codes, 13, seed=3).codes, some.codes)
    with pytest.raises(ValueError, match="count: expected a whole number from 1 to 101"):
        sample(codes, 102)


def test_a_label_explains_the_codes_that_it_makes() -> None:
    codes = planted(2003, seed=0)
    by_rule, by_target = explained(codes, "rule"), explained(codes, "target")
    assert by_rule[1] > 0.5
    assert abs(by_rule[0]) < 0.01
    assert abs(by_target).max() < 0.01
    moved = replace(codes, codes=codes.codes * -3 + 5)  # neither unit nor origin matters
    np.testing.assert_allclose(explained(moved, "rule"), by_rule, atol=1e-6)  # in float32


def test_explaining_is_a_share_of_variance() -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(5, size=97)
    layers = rng.normal(size=(3, 97, 3))
    layers[1] = rng.normal(size=(5, 3))[label]
    layers[1, :, 2] = 3.0  # one head that says nothing
    layers[2] = 7.1 * (1 + 1e-8 * rng.normal(size=(97, 3)))  # but for rounding
    codes = Codes(layers, (0, 1, 2), {"rule": label, "own": np.arange(97)})
    found = explained(codes, "rule")
    # As a regression on the classes, with its adjusted R2 over all heads together.
    classes = np.eye(5)[label]
    residual = layers[0] - classes @ np.linalg.lstsq(classes, layers[0], rcond=None)[0]
    assert found[0] == pytest.approx(
        1 - (residual**2).sum() / 92 / (layers[0].var(0).sum() * 97 / 96)
    )
    assert found[1] == pytest.approx(1)
    assert np.isnan(found[2])
    assert np.isnan(explained(codes, "own")).all()  # every instance a class


def test_a_real_number_explains_in_parts() -> None:
    rng = np.random.default_rng(0)
    value = rng.random(4001)
    noise = rng.normal(size=(4001, 2))
    layers = np.stack([np.outer(value, [1, -2]), noise, np.outer(value**2, [1, -2]) + noise / 4])
    found = explained(Codes(layers, (0, 1, 2), {"target": value}), "target")
    assert found[0] > 0.99
    assert abs(found[1]) < 0.01
    signal = 5 * np.var(value**2)
    assert found[2] == pytest.approx(signal / (signal + 2 / 16), abs=0.02)
    skewed = Codes(layers[:1], (0,), {"target": value**9})  # the same parts, of very unequal width
    assert explained(skewed, "target")[0] == pytest.approx(found[0])
    few = np.where(value < 0.02, -1.0, np.where(value > 0.98, 1.0, 0.0))
    rare = Codes(np.outer(few, [1, 3])[None], (0,), {"target": few})
    assert explained(rare, "target")[0] == pytest.approx(1)  # few values are classes of their own
    tied = Codes(noise[None], (0,), {"target": np.zeros(4001)})
    assert np.isnan(explained(tied, "target")[0])  # one class
    value[7] = np.nan
    with pytest.raises(ValueError, match="label: expected finite numbers, got 'target' with NaN"):
        explained(Codes(layers, (0, 1, 2), {"target": value}), "target")
    terms = Codes(layers, (0, 1, 2), {"terms": np.zeros((4001, 2), int)})
    with pytest.raises(ValueError, match="label: expected one with one value"):
        explained(terms, "terms")


def neighbours_alike(points: NDArray[np.float64], label: NDArray[np.int64]) -> float:
    """How many points have a nearest neighbour with their own label."""
    distance = np.linalg.norm(points[:, None] - points, axis=-1)
    np.fill_diagonal(distance, np.inf)
    return float((label[distance.argmin(axis=1)] == label).mean())


def test_tsne_separates_planted_clusters_and_is_deterministic() -> None:
    codes = planted(127, seed=0)
    found = embed(codes, seed=1)
    assert list(found) == [0, 1]
    assert found[1].shape == (127, 2)
    rule = codes.labels["rule"]
    assert neighbours_alike(found[1], rule) > 0.99
    assert neighbours_alike(found[0], rule) < 0.4  # noise has no clusters to separate
    again = embed(codes, [-1], seed=1)
    assert list(again) == [1]
    assert np.array_equal(again[1], found[1])
    assert not np.array_equal(embed(codes, [1], seed=2)[1], found[1])
    smaller = Codes(codes.codes * 2.0**-40, codes.layers)  # as exact as the codes themselves
    assert np.array_equal(embed(smaller, [1], seed=1)[1], found[1])


def test_tsne_of_odd_codes() -> None:
    generator = np.random.default_rng(0)
    odd = {
        "constant": np.full((23, 5), 1 / 7),
        "rounding": 1 / 7 + 1e-9 * generator.normal(size=(23, 5)),
        "copies": np.repeat(generator.normal(size=(3, 5)), 11, axis=0),
        "one head": generator.normal(size=(23, 1)),
        "tiny": 1e-20 * generator.normal(size=(23, 5)),
        "few": generator.normal(size=(4, 5)),
    }
    for name, points in odd.items():
        found = embed(Codes(points[None], (0,)))[0]
        assert found.shape == (len(points), 2), name
        assert np.isfinite(found).all(), name
        assert (not found.any()) == (name in ("constant", "rounding")), name
    for points, options, message in (
        (odd["few"][:3], {}, "codes: expected at least 4, got 3 instances"),
        (odd["few"], {"perplexity": 0.5}, "perplexity: expected"),
        (odd["few"] * np.nan, {}, "NaN or infinity in layer 0"),
    ):
        with pytest.raises(ValueError, match=message):
            embed(Codes(points[None], (0,)), **options)


def test_a_figure_has_a_panel_for_each_label() -> None:
    codes = planted(53, seed=0)
    labels = dict(codes.labels) | {"real": codes.codes[0, :, 0], "many": np.arange(53)}
    codes = Codes(codes.codes, codes.layers, labels, codes.names)
    points = codes.codes[1, :, :2].astype(np.float64)
    figure = draw_embedding(points, codes, ["rule", "target", "real", "many"], "planted")
    titles = [axes.get_title() for axes in figure.axes]
    assert [title for title in titles if title] == ["rule", "target", "real", "many"]
    drawn = sum(len(dots.get_offsets()) for dots in figure.axes[0].collections)
    assert drawn == 53
    with pytest.raises(ValueError, match=r"points: expected \[53, 2\], got \[5, 2\]"):
        draw_embedding(points[:5], codes, ["rule"])
    codes = Codes(codes.codes, codes.layers, labels | {"pair": np.zeros((53, 2))}, codes.names)
    with pytest.raises(ValueError, match="'pair' of 2 columns"):
        draw_embedding(points, codes, ["pair"])


def test_a_label_with_names_has_numbers_of_them() -> None:
    codes = planted(53, seed=0)
    for odd in (-1, 99, 0.5):
        labels = dict(codes.labels) | {"rule": np.full(53, odd)}
        with pytest.raises(ValueError, match=rf"labels\['rule'\]: expected numbers .* got {odd}"):
            Codes(codes.codes, codes.layers, labels, codes.names)


def test_labels_that_a_file_cannot_have_are_refused() -> None:
    codes, words = np.zeros((1, 2, 3)), np.array(["a", "b"], dtype=object)
    with pytest.raises(ValueError, match=r"labels\['word'\]: expected numbers or text, such as"):
        Codes(codes, (0,), {"word": words})
    assert Codes(codes, (0,), {"word": words.astype(str)}).label("word").tolist() == ["a", "b"]


def test_no_instances_can_be_taken() -> None:
    codes = planted(53, seed=0)
    for none in ([], np.zeros(53, dtype=bool), range(0)):
        taken = codes.take(none)
        assert taken.codes.shape == (len(codes.layers), 0, HEADS)
        assert all(len(values) == 0 for values in taken.labels.values())


def test_damaged_files_of_codes_are_refused(tmp_path: Path) -> None:
    codes, file = planted(53, seed=0), tmp_path / "codes.npz"
    codes.save(file)
    whole = file.read_bytes()
    middle = whole.index(b"\x93NUMPY") + 150
    flipped = whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :]
    np.save(tmp_path / "array.npy", codes.codes)
    array = (tmp_path / "array.npy").read_bytes()
    for damaged in (b"", b"text", whole[:1000], whole[:-1], flipped, array):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="file: expected latent codes"):
            load_codes(file)
    with pytest.raises(FileNotFoundError):
        load_codes(tmp_path / "none.npz")


def test_codes_are_saved_under_the_name_that_is_given(tmp_path: Path) -> None:
    codes = planted(53, seed=0)
    codes.save(tmp_path / "codes.bin")
    assert [file.name for file in tmp_path.iterdir()] == ["codes.bin"]
    assert np.array_equal(load_codes(tmp_path / "codes.bin").codes, codes.codes)


def test_codes_are_standardised_with_those_of_training_alone() -> None:
    train, test = planted(300, seed=0), planted(211, seed=1)
    assert decode(train, test, "rule", shuffles=0).measured.accuracy[1] == 1
    shifted = Codes(test.codes + 100, test.layers, test.labels, test.names)
    # If standardised by themselves, they would be decoded as before.
    assert decode(train, shifted, "rule", shuffles=0).measured.accuracy[1] < 0.5
