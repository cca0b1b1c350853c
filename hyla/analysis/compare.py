"""Compare latent codes: class means, their similarity, and the variance a label explains."""

from dataclasses import dataclass

import numpy as np

from hyla.analysis.codes import CONSTANT, Array, Codes
from hyla.errors import bad_value

PARTS = 32  # quantile bins for real-valued labels


@dataclass(frozen=True, eq=False)
class MeanCodes:
    """The mean code of each occurring class of a label, in float64.

    names: of the classes. counts: of their instances. means: `[classes, heads]`.
    cosine: their pairwise cosine similarities, `[classes, classes]`.
    """

    names: tuple[str, ...]
    counts: Array
    means: Array
    cosine: Array


def mean_codes(codes: Codes, label: str, layer: int = -1) -> MeanCodes:
    """Compute the mean code of each class in a layer, and their cosine similarities.

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
    """Compute pairwise cosines of vectors `[n, size]` in float64; NaN for zero vectors.

    >>> cosine_similarity(np.array([[1, 0], [1, 1], [-2, 0]])).round(3)[0].tolist()
    [1.0, 0.707, -1.0]
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, np.nan)
    return np.clip(unit @ unit.T, -1, 1)


def sample(codes: Codes, count: int, *, seed: int = 0) -> Codes:
    """Draw a random sample of instances without replacement, in their original order.

    >>> codes = Codes(np.zeros((2, 7, 3)), (0, 1), {"at": np.arange(7)})
    >>> sample(codes, 3).labels["at"].shape
    (3,)
    """
    if not 1 <= count <= codes.instances:
        raise bad_value("count", count, f"a whole number from 1 to {codes.instances}")
    return codes.take(
        np.sort(np.random.default_rng(seed).choice(codes.instances, count, replace=False))
    )


def explained(codes: Codes, label: str) -> Array:
    """Compute the fraction of the codes' variance that a label explains, for each layer.

    This is the variance between class means over all heads, adjusted for the number of classes like
    adjusted R2: 1 if all codes of a class are equal, about 0 for an uninformative label. NaN for
    constant codes, for a single class, and if every class has one instance. Real-valued labels with
    more than 32 distinct values are cut into 32 quantile bins.

    >>> rule = np.array([0, 0, 1, 1])
    >>> codes = Codes(np.array([[[0, 0], [0, 1], [8, 0], [8, 1]]]), (0,), {"rule": rule})
    >>> explained(codes, "rule").round(3).tolist()
    [0.977]
    """
    values = codes.label(label)
    if values.ndim != 1:
        raise bad_value("label", f"{label!r} with several values", "one with one value")
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise bad_value("label", f"{label!r} with NaN or infinity", "finite numbers")
        if len(np.unique(values)) > PARTS:
            cuts = np.quantile(values, np.linspace(0, 1, PARTS + 1)[1:-1])
            values = np.searchsorted(cuts, values)
    _, classes, counts = np.unique(values, return_inverse=True, return_counts=True)
    inside, between = codes.instances - len(counts), len(counts) - 1
    found = np.full(len(codes.layers), np.nan)
    if min(inside, between) < 1:
        return found
    for i, layer in enumerate(codes.codes.astype(np.float64)):
        if np.ptp(layer, axis=0).max() > CONSTANT * np.abs(layer).max():
            centred = layer - layer.mean(axis=0)
            sums = np.zeros((len(counts), layer.shape[1]))
            np.add.at(sums, classes, centred)
            total = (centred**2).sum()
            rest = total - (sums**2 / counts[:, None]).sum()
            found[i] = 1 - rest / inside * (inside + between) / total
    return found
