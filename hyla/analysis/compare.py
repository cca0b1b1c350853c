"""Codes compared: their means by label, how alike these are, how far a label explains clusters."""

from dataclasses import dataclass

import numpy as np

from hyla.analysis.codes import Array, Codes
from hyla.errors import bad_value

MAX_PAIRWISE = 2000  # instances of a silhouette, which takes all their distances


@dataclass(frozen=True, eq=False)
class MeanCodes:
    """The mean code of each class of a label that occurs, in float64.

    names: of the classes. counts: of their instances. means: `[classes, heads]`.
    cosine: their pairwise cosine similarities, `[classes, classes]`.
    """

    names: tuple[str, ...]
    counts: Array
    means: Array
    cosine: Array


def mean_codes(codes: Codes, label: str, layer: int = -1) -> MeanCodes:
    """The mean code of each class in a layer, and how alike the classes are.

    >>> codes = Codes(np.array([[[3, 4], [6, 8], [4, 3]]]), (0,), {"rule": np.array([0, 0, 1])})
    >>> mean_codes(codes, "rule").cosine.round(3).tolist()
    [[1.0, 0.96], [0.96, 1.0]]
    """
    names, classes = codes.classes(label)
    if classes.ndim != 1:
        raise bad_value("label", f"{label!r} with several values", "one with one value")
    points = codes.layer(layer).astype(np.float64)
    counts = np.bincount(classes, minlength=len(names))
    there = np.flatnonzero(counts)
    means = np.stack([points[classes == c].mean(axis=0) for c in there])
    return MeanCodes(tuple(names[c] for c in there), counts[there], means, cosine_similarity(means))


def cosine_similarity(vectors: Array) -> Array:
    """Pairwise cosines of vectors `[n, size]` in float64; NaN with a vector of zeros.

    >>> cosine_similarity(np.array([[1, 0], [1, 1], [-2, 0]])).round(3)[0].tolist()
    [1.0, 0.707, -1.0]
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, np.nan)
    return np.clip(unit @ unit.T, -1, 1)


def sample(codes: Codes, count: int, *, seed: int = 0) -> Codes:
    """A random sample of the instances, without replacement, in their order.

    >>> codes = Codes(np.zeros((2, 7, 3)), (0, 1), {"at": np.arange(7)})
    >>> sample(codes, 3).labels["at"].shape
    (3,)
    """
    if not 1 <= count <= codes.instances:
        raise bad_value("count", count, f"a whole number from 1 to {codes.instances}")
    return codes.take(
        np.sort(np.random.default_rng(seed).choice(codes.instances, count, replace=False))
    )


def silhouette(codes: Codes, label: str, *, seed: int = 0) -> Array:
    """How far a label explains the clusters of the codes of each layer, from -1 to 1.

    The mean silhouette: 1 if every code is far closer to those of its class than to any others, 0
    if the label says nothing; 0 also for a layer whose codes are all the same, NaN if there is
    only one class. Beyond 2000 instances, of a random sample.
    """
    from sklearn.metrics import silhouette_score  # type: ignore[import-untyped]
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if codes.label(label).ndim != 1:
        raise bad_value("label", f"{label!r} with several values", "one with one value")
    if codes.instances > MAX_PAIRWISE:
        codes = sample(codes, MAX_PAIRWISE, seed=seed)
    classes = codes.classes(label)[1]
    if not 2 <= len(np.unique(classes)) < codes.instances:
        return np.full(len(codes.layers), np.nan)
    points = codes.codes.astype(np.float64)
    with threadpool_limits(limits=1):
        return np.array([silhouette_score(layer, classes) for layer in points])
