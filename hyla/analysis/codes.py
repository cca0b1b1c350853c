"""Latent codes with labels of the instances they come from.

The paper analyses one latent code per instance and layer: the scores, over all heads, of the last
token attending to itself. `collect` gathers them for a task, `collect_run` for a member of a run
folder, `collect_inputs` for any tokens, and `attention_codes` from the scores of any other model.

Shapes: L layers, I instances, H heads, B batch, Q queries, N keys, K features or terms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hyla.errors import bad_value, unknown_name

Array = NDArray[Any]
# Relative variation below this is float32 rounding error.
CONSTANT = 1e-6
LABEL, NAMES = "label ", "names "  # prefixes of array names in a file


@dataclass(frozen=True, eq=False)
class Codes:
    """Latent codes by layer and instance, with labels of the instances.

    codes: float32 `[layers, instances, heads]`. layers: their numbers in the model, from 0.
    labels: arrays by name, with the instances along the first axis.
    names: by label, the names of its values 0, 1, 2 .. if it has any.
    uses: what each label is good for, see `hyla.tasks.base.Label`; not saved.

    >>> codes = Codes(np.zeros((2, 5, 3)), (0, 1), {"rule": np.array([0, 1, 1, 0, 1])})
    >>> codes.layer(-1).shape, codes.take(codes.labels["rule"] == 1).codes.shape
    ((5, 3), (2, 3, 3))
    """

    codes: Array
    layers: tuple[int, ...]
    labels: Mapping[str, Array] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codes", to_numpy(self.codes))
        labels = {name: to_numpy(values) for name, values in self.labels.items()}
        object.__setattr__(self, "labels", labels)
        if self.codes.ndim != 3 or self.codes.shape[0] != len(self.layers):
            expected = f"[{len(self.layers)} layers, instances, heads]"
            raise bad_value("codes", list(self.codes.shape), expected)
        for name, values in self.labels.items():
            if values.shape[:1] != (self.instances,):
                expected = f"one for each of the {self.instances} instances"
                raise bad_value(f"labels[{name!r}]", list(values.shape), expected)
            if values.dtype == object:  # could only be saved by pickling
                expected = "numbers or text, such as values.astype(str)"
                raise bad_value(f"labels[{name!r}]", "Python objects", expected)
            count = len(self.names.get(name, ()))
            odd = values[~np.isin(values, np.arange(count))] if count else values[:0]
            if odd.size:
                expected = f"numbers of its {count} names, from 0"
                raise bad_value(f"labels[{name!r}]", odd[0], expected)
        object.__setattr__(self, "codes", self.codes.astype(np.float32, copy=False))

    @property
    def instances(self) -> int:
        """The number of instances."""
        return int(self.codes.shape[1])

    def layer(self, number: int) -> Array:
        """Return the codes of one layer, `[instances, heads]`; -1 is the last one collected."""
        if number < 0 and -len(self.layers) <= number:
            return self.codes[number]
        if number not in self.layers:
            expected = f"one of {', '.join(map(str, self.layers))}, or -1 for the last"
            raise bad_value("layer", number, expected)
        return self.codes[self.layers.index(number)]

    def label(self, name: str) -> Array:
        """Return the label of this name; ValueError if unknown."""
        if name not in self.labels:
            raise unknown_name("label", name, self.labels)
        return self.labels[name]

    def classes(self, name: str) -> tuple[tuple[str, ...], Array]:
        """Return a label's classes as text, and the index of each instance's class.

        The classes are the label's names or else its distinct values, sorted. The indices have the
        shape of the label.
        """
        values = self.label(name)
        if name in self.names:
            return self.names[name], values
        if values.dtype.kind == "f":
            raise bad_value("label", f"{name!r}, a real number", "one with a few values")
        found, numbers = np.unique(values, return_inverse=True)
        return tuple(map(str, found)), numbers.reshape(values.shape)

    def labels_to(self, use: str) -> list[str]:
        """Return the labels to "decode", to "explain" the codes with, or to "colour" a map with."""
        return [name for name in self.labels if use in self.uses.get(name, ())]

    def take(self, index: Array | Sequence[int]) -> "Codes":
        """Select instances by number or by a boolean mask."""
        index = np.asarray(index)
        index = index if index.size else index.astype(np.intp)  # an empty list becomes float
        labels = {name: values[index] for name, values in self.labels.items()}
        return Codes(self.codes[:, index], self.layers, labels, self.names, self.uses)

    def save(self, file: IO[bytes] | Path | str) -> None:
        """Write a NumPy `.npz` file: `codes`, `layers`, and every label as `label NAME`."""
        arrays = {f"{LABEL}{name}": values for name, values in self.labels.items()}
        arrays |= {f"{NAMES}{name}": np.array(values) for name, values in self.names.items()}
        if isinstance(file, Path | str):  # given a path, NumPy might append .npz
            with open(file, "wb") as handle:
                self.save(handle)
            return
        np.savez(file, codes=self.codes, layers=np.array(self.layers), **arrays)  # type: ignore[arg-type]


def load_codes(file: IO[bytes] | Path | str) -> Codes:
    """Load codes written by `Codes.save`; ValueError for any other or damaged file."""
    if isinstance(file, Path | str):
        with open(file, "rb") as handle:
            return load_codes(handle)
    expected, start = "latent codes written by Codes.save", file.tell()
    if not is_zipfile(file):
        raise bad_value("file", "an incomplete file or one of another kind", expected)
    file.seek(start)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays}
    except (BadZipFile, EOFError, RuntimeError, ValueError) as error:
        raise bad_value("file", "a damaged file", expected) from error
    if "codes" not in found or "layers" not in found:
        raise bad_value("file", f"the arrays {', '.join(found) or 'none'}", expected)
    labels = {n.removeprefix(LABEL): found[n] for n in found if n.startswith(LABEL)}
    names = {n.removeprefix(NAMES): tuple(found[n].tolist()) for n in found if n.startswith(NAMES)}
    return Codes(found["codes"], tuple(found["layers"].tolist()), labels, names)


def to_numpy(x: Tensor | Array | Sequence[Any]) -> Array:
    """Convert a tensor of any device to an array; 16-bit floats become float32."""
    if not isinstance(x, Tensor):
        return np.asarray(x)
    x = x.detach().cpu()
    return x.float().numpy() if x.dtype.itemsize == 2 and x.is_floating_point() else x.numpy()


def attention_codes(
    scores: Sequence[Tensor | Array], pairs: Sequence[tuple[int, int]] = ((-1, -1),)
) -> Codes:
    """Collect the codes of given (query, key) pairs from attention scores of any model.

    scores: for each layer `[batch, heads, queries, keys]`, as returned by Hugging Face models with
    `output_attentions=True` and eager attention. (`layer.codes` has the heads last: pass
    `codes.movedim(-1, 1)`.) Labels: `sequence`, and `query` and `key` as positions from 0. Pairs of
    the same sequence are adjacent.

    >>> attention_codes([np.zeros((2, 3, 5, 5))] * 4, [(-1, -1), (-1, 0)]).codes.shape
    (4, 4, 3)
    """
    arrays = [to_numpy(layer) for layer in scores]
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1 or arrays[0].ndim != 4:
        given = ", ".join(str(list(shape)) for shape in sorted(shapes)) or "none"
        expected = "[batch, heads, queries, keys], the same for every layer"
        expected += "" if arrays else ' (Hugging Face: attn_implementation="eager")'
        raise bad_value("scores", given, expected)
    batch, heads, *tokens = arrays[0].shape
    chosen = to_numpy(pairs)
    if chosen.ndim != 2 or chosen.shape[-1] != 2 or not len(chosen) or chosen.dtype.kind != "i":
        given = chosen.tolist() if chosen.size else "none"
        raise bad_value("pairs", given, "at least one (query, key) pair of whole numbers")
    for pair in chosen.tolist():
        if any(not -count <= at < count for at, count in zip(pair, tokens, strict=True)):
            expected = f"a query below {tokens[0]} and a key below {tokens[1]}"
            raise bad_value("pairs", tuple(pair), expected)
    query, key = chosen.T % np.array(tokens)[:, None]
    chosen_LBHP = np.stack([array[:, :, query, key] for array in arrays])
    codes = np.moveaxis(chosen_LBHP, -1, 2).reshape(len(arrays), batch * len(pairs), heads)
    labels = {
        "sequence": np.repeat(np.arange(batch), len(pairs)),
        "query": np.tile(query, batch),
        "key": np.tile(key, batch),
    }
    return Codes(codes, tuple(range(len(arrays))), labels)
