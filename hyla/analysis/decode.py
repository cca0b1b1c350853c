"""Decode labels from latent codes by logistic regression, with a shuffled control.

Shapes: L layers, I instances, H heads, C classes (rules, or terms).
"""

from dataclasses import dataclass

import numpy as np

from hyla.analysis.codes import CONSTANT, Array, Codes
from hyla.errors import bad_value

MIN_INSTANCES = 10  # fewer make scores meaningless


@dataclass(frozen=True, eq=False)
class Scores:
    """Decoding quality in each layer.

    f1: `[layers, classes]`, NaN for classes that cannot be measured. accuracy: `[layers]`; for
    multi-label decoding, the mean of the terms' binary accuracies.
    """

    f1: Array
    accuracy: Array

    @property
    def macro_f1(self) -> Array:
        """The mean F1 of measurable classes, `[layers]`."""
        return np.nanmean(self.f1, axis=1)


@dataclass(frozen=True, eq=False)
class Decoding:
    """A label decoded from the codes of each layer, with a control.

    names: of the classes. train_counts, test_counts: instances of each class.
    measured: the scores. control: mean scores after shuffling the training labels, None without
    shuffles. majority_accuracy: that of always predicting the most frequent class in training.
    """

    label: str
    names: tuple[str, ...]
    layers: tuple[int, ...]
    train_counts: Array
    test_counts: Array
    measured: Scores
    control: Scores | None
    majority_accuracy: float


def decode(train: Codes, test: Codes, label: str, *, shuffles: int = 10, seed: int = 0) -> Decoding:
    """Decode a label by logistic regression, fitted to `train` and measured on `test`.

    A label with one value per instance, such as `rule`, gets a multinomial classifier. A label with
    several, such as `terms`, gets one binary classifier per term. Codes are standardised with mean
    and deviation of `train`; the L2 penalty is scikit-learn's C = 1. Classes are weighted equally,
    because otherwise rare ones would never be predicted.

    A class that is missing from `train` or `test` (or that all of `train` has) has no F1. Its
    instances still count as errors if predicted wrongly.

    shuffles: number of fits to shuffled labels of `train`, by `seed`. Their mean is the control,
        which estimates chance level. One is not enough: if codes form n tight clusters, each gets a
        random class, so the accuracy has mean 1 / n and a deviation about as large.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if shuffles < 0:
        raise bad_value("shuffles", shuffles, "a whole number of at least 0")
    names, train_IC, test_IC = _memberships(train, test, label)
    several = train.label(label).ndim == 2
    measurable: Array = np.asarray(train_IC.any(0) & ~train_IC.all(0) & test_IC.any(0))
    if not measurable.any():
        given = f"{label!r} with {int(train_IC.any(0).sum())} classes in train"
        expected = "a label with at least 2 classes in train, one of them in test"
        raise bad_value("label", given, expected)
    _check_codes(train, test)
    generator = np.random.default_rng(seed)
    inputs = [_standardised(*both) for both in zip(train.codes, test.codes, strict=True)]

    def scores(labels_IC: Array) -> Scores:
        predictions = [
            _predict_each(x, labels_IC, x_test, measurable)
            if several
            else _predict_one(x, labels_IC, x_test)
            for x, x_test in inputs
        ]
        return Scores(
            np.stack([_f1(found, test_IC, measurable) for found in predictions]),
            np.array([_accuracy(found, test_IC, measurable, several) for found in predictions]),
        )

    with threadpool_limits(limits=1):  # threads are slower here and change the rounding
        measured = scores(train_IC)
        shuffled = [scores(generator.permutation(train_IC)) for _ in range(shuffles)]
    rate_C = train_IC.mean(axis=0)
    majority_C = rate_C > 0.5 if several else np.arange(len(names)) == rate_C.argmax()
    majority_IC = np.broadcast_to(majority_C, test_IC.shape)
    return Decoding(
        label, names, train.layers, train_IC.sum(axis=0), test_IC.sum(axis=0),
        measured, _mean(shuffled) if shuffled else None,
        _accuracy(majority_IC, test_IC, measurable, several),
    )  # fmt: skip


def _memberships(train: Codes, test: Codes, label: str) -> tuple[tuple[str, ...], Array, Array]:
    """Return the class names and each instance's classes as masks, `[instances, classes]`."""
    values, test_values = train.label(label), test.label(label)
    if values.ndim > 2 or values.ndim != test_values.ndim:
        given = f"{list(values.shape)} in train, {list(test_values.shape)} in test"
        raise bad_value(f"labels[{label!r}]", given, "one or several values for each instance")
    if train.names.get(label) != test.names.get(label):
        given = f"{train.names.get(label)} in train, {test.names.get(label)} in test"
        raise bad_value(f"names[{label!r}]", given, "the same names, in the same order")
    if label in train.names:
        names, classes = train.names[label], np.arange(len(train.names[label]))
    else:
        train.classes(label)  # rejects real numbers
        classes = np.unique(np.concatenate([values.ravel(), test_values.ravel()]))
        names = tuple(map(str, classes))
    found = [(v.reshape(len(v), -1, 1) == classes).any(axis=1) for v in (values, test_values)]
    return names, found[0], found[1]


def _check_codes(train: Codes, test: Codes) -> None:
    for name, codes in (("train", train), ("test", test)):
        if codes.instances < MIN_INSTANCES:
            raise bad_value(name, f"{codes.instances} instances", f"at least {MIN_INSTANCES}")
        for number, layer in zip(codes.layers, codes.codes, strict=True):
            if not np.isfinite(layer).all():
                given = f"NaN or infinity in layer {number} of {name}"
                raise bad_value("codes", given, "finite numbers (did the member diverge?)")
    if train.layers != test.layers or train.codes.shape[2] != test.codes.shape[2]:
        given = f"layers {test.layers} of {test.codes.shape[2]} heads"
        expected = f"layers {train.layers} of {train.codes.shape[2]} heads, as in train"
        raise bad_value("test", given, expected)


def _standardised(train_IH: Array, test_IH: Array) -> tuple[Array, Array]:
    mean = train_IH.mean(axis=0, dtype=np.float64)
    deviation = train_IH.std(axis=0, dtype=np.float64)
    deviation = np.where(deviation > CONSTANT * np.abs(mean), deviation, np.inf)
    return (train_IH - mean) / deviation, (test_IH - mean) / deviation


def _fit_predict(x_IH: Array, classes_I: Array, test_IH: Array) -> Array:
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

    classifier = LogisticRegression(max_iter=10_000, class_weight="balanced")
    return np.asarray(classifier.fit(x_IH, classes_I).predict(test_IH))


def _predict_one(x_IH: Array, labels_IC: Array, test_IH: Array) -> Array:
    """Predict one class per instance with a multinomial classifier."""
    found = _fit_predict(x_IH, labels_IC.argmax(axis=1), test_IH)
    return found[:, None] == np.arange(labels_IC.shape[1])


def _predict_each(x_IH: Array, labels_IC: Array, test_IH: Array, measurable: Array) -> Array:
    """Predict each measurable class with a binary classifier."""
    found = np.zeros((len(test_IH), labels_IC.shape[1]), dtype=bool)
    for c in np.flatnonzero(measurable):
        found[:, c] = _fit_predict(x_IH, labels_IC[:, c], test_IH)
    return found


def _mean(scores: list[Scores]) -> Scores:
    f1, accuracy = ([s.f1 for s in scores], [s.accuracy for s in scores])
    return Scores(np.mean(f1, axis=0), np.mean(accuracy, axis=0))


def _f1(found_IC: Array, true_IC: Array, measurable: Array) -> Array:
    """Compute 2 TP / (2 TP + FP + FN) for each class; NaN where not measurable."""
    both, either = (found_IC & true_IC).sum(axis=0), found_IC.sum(axis=0) + true_IC.sum(axis=0)
    return np.where(measurable, 2 * both / np.maximum(either, 1), np.nan)


def _accuracy(found_IC: Array, true_IC: Array, measurable: Array, several: bool) -> float:
    right_IC = found_IC == true_IC
    return float(right_IC[:, measurable].mean() if several else right_IC.all(axis=1).mean())
