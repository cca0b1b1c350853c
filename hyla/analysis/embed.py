"""Embed latent codes in two dimensions by t-SNE."""

from collections.abc import Sequence

import numpy as np

from hyla.analysis.codes import CONSTANT, Array, Codes
from hyla.errors import bad_value

MIN_POINTS = 4
START = 1e-4  # deviation of the initial points, as usual for t-SNE


def embed(
    codes: Codes,
    layers: Sequence[int] | None = None,
    *,
    perplexity: float = 30.0,
    seed: int = 0,
) -> dict[int, Array]:
    """Embed the codes of some layers (None: all) by t-SNE; return `[instances, 2]` by layer number.

    scikit-learn's Barnes-Hut t-SNE, initialised with the first two principal components and
    bit-identical for the same seed. The perplexity is limited to (instances - 1) / 3, because t-SNE
    uses three times as many neighbours. Codes that are equal up to rounding stay at the origin.
    """
    chosen = codes.layers if layers is None else [_number(codes, layer) for layer in layers]
    return {layer: _tsne(codes.layer(layer), layer, perplexity, seed) for layer in chosen}


def _number(codes: Codes, layer: int) -> int:
    codes.layer(layer)  # rejects unknown layers
    return codes.layers[layer] if layer < 0 else layer


def _tsne(points: Array, layer: int, perplexity: float, seed: int) -> Array:
    from sklearn.manifold import TSNE  # type: ignore[import-untyped]
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if len(points) < MIN_POINTS:
        raise bad_value("codes", f"{len(points)} instances", f"at least {MIN_POINTS}")
    if not perplexity >= 1:
        raise bad_value("perplexity", perplexity, "a number of at least 1")
    if not np.isfinite(points).all():
        raise bad_value("codes", f"NaN or infinity in layer {layer}", "finite numbers")
    centred = points - points.mean(axis=0, dtype=np.float64)
    scale = centred.std()
    if scale <= CONSTANT * np.abs(points).max():
        return np.zeros((len(points), 2))
    # t-SNE is scale-invariant, but its search for kernel widths is not.
    centred /= scale
    # One thread, because sums depend on the number of threads.
    with threadpool_limits(limits=1):
        start = _principal(centred)
        # Noise breaks ties, such as in codes of a single head.
        noise = np.random.default_rng(seed).normal(size=start.shape)
        start = START * (start / start[:, 0].std() + 0.01 * noise)
        found = TSNE(
            perplexity=min(perplexity, (len(points) - 1) / 3),
            init=start.astype(np.float32), random_state=seed, n_jobs=1,
        ).fit_transform(centred)  # fmt: skip
    return np.asarray(found, dtype=np.float64)


def _principal(centred: Array) -> Array:
    """Project onto the first two principal components, with signs that do not depend on LAPACK."""
    axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    found = centred @ axes
    return np.pad(found, ((0, 0), (0, 2 - found.shape[1])))
