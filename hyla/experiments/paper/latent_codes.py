"""Everything that is measured on the latent codes of one trained model.

The field `what` of an entry says what it is: "decoding" of terms or rules and "answers" decoded
(F1 in percent, with the shuffled control), "explained" (the percentage of the codes' variance that
a label explains), "similarity" of the mean codes of rules; for seed 0 also "map" (t-SNE), "mean
codes" and "samples".

Codes are collected in two ways. Fuzzy logic: with the inputs of the context `fixed`, as in the
paper, and with the query fixed. SRAVEN: with the `keys` "self" (the last token attending to itself,
as in the paper's text) and "panels" (to the two panels before it, as in the authors' code).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hyla.analysis import (
    Codes,
    Decoding,
    collect,
    collect_run,
    decode,
    embed,
    explained,
    mean_codes,
    sample,
)
from hyla.model import build
from hyla.tasks.base import FIRST_EVALUATION_INSTANCE
from hyla.tasks.sraven import RULES, Sraven, SravenConfig
from hyla.train.config import RunConfig
from hyla.train.store import Entry, Trained
from hyla.train.trained import load_run

F1, CONTROL = "F1", "F1, labels shuffled"
EXPLAINED = "variance explained"
LEAST_SPREAD = 1e-4  # of codes: those of a dead layer are all alike
RELATED, ALL_PAIRS = "addition and subtraction", "all pairs of rules"
ABOVE, UNTRAINED = "addition and subtraction above all pairs", "the same before training"
SAMPLES = 32
LOOKED_THROUGH = 65_536  # instances at a time
Way = dict[str, str]  # an axis of the rows, which is an option of `collect_run` too
FIXED: tuple[Way, ...] = ({"fixed": "context"}, {"fixed": "query"})
KEYS: tuple[Way, ...] = ({"keys": "self"}, {"keys": "panels"})
COLOURS = {"fixed": ("target", "formula", "term 1", "term 2"), "keys": ("target", "rule")}
# What is decoded: what its entries are, and how its classes are named.
LABELS = {
    "terms": ("decoding", "term {}"),
    "rule": ("decoding", "{}"),
    "target": ("answers", "value {}"),
}
DECODED = {"fixed": ("terms",), "keys": ("rule", "target")}
EXPLAINING = {"rule": "rule", "function": "function", "target": "value"}  # labels, in words


def analyse(
    trained: Trained, instances: int, mapped: int, shuffles: int, **way: str
) -> Iterator[Entry]:
    """All entries of one model."""
    assert trained.path is not None
    config, number = load_run(trained.path)[0], trained.member
    (axis,) = way

    def get(split: str, chosen: int | Tensor) -> Codes:
        return collect_run(trained.path or "", number, split, chosen, **way)  # type: ignore[arg-type]

    fitted, held_out = get("train", instances), get("held_out", instances)
    for label in DECODED[axis]:
        yield from _decoded(decode(fitted, held_out, label, shuffles=shuffles), *LABELS[label], way)
    yield from _explained(held_out, way)
    is_first = config.members[number].seed == 0
    if is_first and way != FIXED[1]:
        yield from _maps(get("held_out", mapped), axis, way)
    if axis == "keys":
        chosen = _with_each_rule(config, number, instances // len(RULES))
        before = _untrained(config, number, chosen, way)
        last = {**way, "layer": config.model.layers - 1, "label": ""}
        yield from _rules(get("all", chosen), before, last, pictures=is_first)
        if is_first:
            yield _samples(get("held_out", max(SAMPLES, 64)), last)


def _percent(value: Any) -> float | None:
    return None if np.isnan(value) else 100 * float(value)


def _decoded(found: Decoding, what: str, names: str, way: Way) -> Iterator[Entry]:
    """Of all classes and of each, in every layer."""
    control = found.control
    assert control is not None
    for i, layer in enumerate(found.layers):
        scores = {"all": (found.measured.macro_f1[i], control.macro_f1[i])}
        scores |= {
            names.format(name): (found.measured.f1[i, c], control.f1[i, c])
            for c, name in enumerate(found.names)
        }
        for label, (f1, shuffled) in scores.items():
            axes = {"what": what, **way, "layer": layer, "label": label}
            yield Entry(axes, {F1: _percent(f1), CONTROL: _percent(shuffled)})


def _explained(codes: Codes, way: Way) -> Iterator[Entry]:
    """How much each label explains of the codes of every layer."""
    for label, name in EXPLAINING.items():
        if label in codes.labels:
            for layer, share in zip(codes.layers, explained(codes, label).tolist(), strict=True):
                axes = {"what": "explained", **way, "layer": layer, "label": name}
                yield Entry(axes, {EXPLAINED: _percent(share)})


def _maps(codes: Codes, axis: str, way: Way) -> Iterator[Entry]:
    """t-SNE of every layer, on held-out tasks."""
    labels = {}
    for name in COLOURS[axis]:
        values = codes.label(name)
        if name in codes.names:
            values = np.array(codes.names[name])[values]
        labels["function" if name == "formula" else name] = [
            round(value, 3) if isinstance(value, float) else value for value in values.tolist()
        ]
    for layer, place in embed(codes).items():
        x, y = (np.round(place[:, i], 2).tolist() for i in range(2))
        axes = {"what": "map", **way, "layer": layer, "label": ""}
        yield Entry(axes, picture={"x": x, "y": y, "colours": labels})


def _rules(codes: Codes, before: Codes, axes: dict[str, Any], *, pictures: bool) -> Iterator[Entry]:
    """Mean codes of rules in the last layer and their similarity, over all tasks."""
    related, pairs = _alike(codes)
    related_before, pairs_before = _alike(before)
    measures = {
        RELATED: _percent(related),
        ALL_PAIRS: _percent(pairs),
        ABOVE: _percent(related - pairs),
        UNTRAINED: _percent(related_before - pairs_before),
    }
    found = mean_codes(codes, "rule")
    cosine, means = (
        {"labels": list(found.names), "matrix": np.round(matrix, 4).tolist()} if pictures else {}
        for matrix in (found.cosine, found.means)
    )
    yield Entry({"what": "similarity", **axes}, measures, picture=cosine)
    if pictures:
        yield Entry({"what": "mean codes", **axes}, picture=means)


def _samples(codes: Codes, axes: dict[str, Any]) -> Entry:
    some = sample(codes, SAMPLES)
    rules = [some.names["rule"][rule] for rule in some.label("rule").tolist()]
    picture = {"labels": rules, "matrix": np.round(some.layer(-1), 4).tolist()}
    return Entry({"what": "samples", **axes}, picture=picture)


def _with_each_rule(config: RunConfig, number: int, count: int) -> Tensor:
    """Numbers of instances that have each rule in the last slot, so many times.

    Without permutation the last slot has the highest of the rules: of 330 instances one has the
    first rule there. A mean of few codes is mostly noise where they say little, and the cosine of
    noise with anything is low.
    """
    assert isinstance(config.task, SravenConfig)
    sraven = Sraven(replace(config.task, permute=False), config.members[number].seed)
    rules_N = torch.empty(0, dtype=torch.long)
    while rules_N.bincount(minlength=len(RULES)).min() < count:
        start = FIRST_EVALUATION_INSTANCE + len(rules_N)
        batch = sraven.batch("all", range(start, start + LOOKED_THROUGH))
        rules_N = torch.cat([rules_N, batch.target_rules[:, -1]])
    found = [(rules_N == rule).nonzero()[:count, 0] for rule in range(len(RULES))]
    return FIRST_EVALUATION_INSTANCE + torch.cat(found).sort().values


def _alike(codes: Codes) -> tuple[float, float]:
    """Cosine of the mean codes of addition and subtraction, and of all pairs; NaN if dead."""
    if np.ptp(codes.layer(-1), axis=0).max() < LEAST_SPREAD:
        return float("nan"), float("nan")
    found = mean_codes(codes, "rule")
    others = found.cosine[~np.eye(len(found.names), dtype=bool)]
    names = ("addition", "subtraction")
    known = all(name in found.names for name in names)
    related = found.cosine[tuple(map(found.names.index, names))] if known else float("nan")
    return float(related), float(np.nanmean(others)) if len(others) else float("nan")


def _untrained(config: RunConfig, number: int, instances: Tensor, way: Way) -> Codes:
    """The codes of a member before its first step, on the same instances."""
    seed = config.members[number].seed
    model = build(config.model, seed)
    return collect(model, config.task, "all", instances, seed=seed, keys=way["keys"])
