"""From trained models to rows about their latent codes.

Rows say by `what` they are: "decoding" of terms or rules and "answers" decoded (mean: F1 in percent
over seeds, with the shuffled control among the measures), "explained" (mean: the share of the
codes' variance in percent, by label), "map" (t-SNE of the first seed), "mean codes", "similarity",
"samples".

Codes are collected in two ways. Fuzzy logic: with the inputs of the context `fixed`, as in the
paper, and with the query fixed. SRAVEN: with the `keys` "self", the last token attending to itself,
as in the paper's text, and "row", which adds the two panels before it, as in the authors' code.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

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
from hyla.experiments.declare import Point, Row
from hyla.experiments.rows import FinishedRun, Trained, chosen_models, hyperparameters, spread
from hyla.model import build
from hyla.tasks.sraven import RULES, Sraven, SravenConfig
from hyla.train.population import FIRST_EVALUATION_INSTANCE

F1, CONTROL = "F1", "F1, labels shuffled"
EXPLAINED = "variance explained"
LEAST_SPREAD = 1e-4  # of codes: those of a dead layer are all alike
RELATED, ALL_PAIRS = "addition and subtraction", "all pairs of rules"
ABOVE, UNTRAINED = "addition and subtraction above all pairs", "the same before training"
DECODED = {"paper": 8192, "small": 4096, "demo": 4096, "smoke": 256}  # instances of each split
MAPPED = {"paper": 800, "small": 500, "demo": 500, "smoke": 40}
SHUFFLES = {"paper": 10, "small": 10, "demo": 10, "smoke": 1}  # that the control is a mean of
SAMPLES = 32
LOOKED_THROUGH = 65_536  # instances at a time
Say = Callable[[str], None]
Way = dict[str, str]  # an axis of the rows, which is an option of `collect_run` too
FIXED: tuple[Way, ...] = ({"fixed": "context"}, {"fixed": "query"})
KEYS: tuple[Way, ...] = ({"keys": "self"}, {"keys": "row"})
FUZZY_COLOURS = ("target", "formula", "term 1", "term 2")
SRAVEN_COLOURS = ("target", "rule")
# What is decoded: what its rows are, and how its classes are named.
LABELS = {
    "terms": ("decoding", "term {}"),
    "rule": ("decoding", "{}"),
    "target": ("answers", "value {}"),
}
EXPLAINING = {"rule": "rule", "function": "function", "target": "value"}  # labels, in words


def silent(text: str) -> None:
    """Says nothing."""


def _codes(member: Trained, split: str, instances: int | Tensor, **options: Any) -> Codes:
    return collect_run(member.run.path, member.number, split, instances, **options)


def analysed(point: Point, runs: Sequence[FinishedRun], scale: str, say: Say = silent) -> list[Row]:
    """All rows of one kind of attention: decoding over seeds, the rest of the first seed."""
    chosen = chosen_models(runs)
    if not chosen:
        return []
    is_sraven = isinstance(runs[0].config.task, SravenConfig)
    rows: list[Row] = []
    for way in KEYS if is_sraven else FIXED:
        rows += _decoding(chosen, ["rule", "target"] if is_sraven else ["terms"], scale, way, say)
        if way != FIXED[1]:
            rows += _maps(chosen[0], MAPPED[scale], way)
        if is_sraven:
            rows += _rules(chosen, DECODED[scale], way)
    return _placed(point, chosen, rows)


def analysed_by_layer(
    point: Point, runs: Sequence[FinishedRun], scale: str, say: Say = silent
) -> list[Row]:
    """Of SRAVEN what is decoded and explained in each layer; maps of the last token with itself."""
    chosen = chosen_models(runs)
    if not chosen:
        return []
    rows = [row for way in KEYS for row in _decoding(chosen, ["rule", "target"], scale, way, say)]
    return _placed(point, chosen, [*rows, *_maps(chosen[0], MAPPED[scale], KEYS[0])])


def _placed(point: Point, chosen: Sequence[Trained], rows: Sequence[Row]) -> list[Row]:
    settings = {"hyperparameters": hyperparameters(chosen[0])}
    return [{**point.axes, **row, **settings} for row in rows]


def _decoding(
    members: Sequence[Trained], labels: Sequence[str], scale: str, way: Way, say: Say
) -> Iterator[Row]:
    """Fitted to tasks of training, measured on held-out ones, in every layer, and `_explained`."""
    found: dict[str, list[Decoding]] = {label: [] for label in labels}
    held_out = []
    words = ", ".join(f"{axis} {value}" for axis, value in way.items())
    for number, member in enumerate(members, start=1):
        say(f"decoding the codes of model {number}/{len(members)}, {words}")
        train, test = (_codes(member, s, DECODED[scale], **way) for s in ("train", "held_out"))
        for label, those in found.items():
            those.append(decode(train, test, label, shuffles=SHUFFLES[scale]))
        held_out.append(test)
    for label, those in found.items():
        yield from _decoded(those, *LABELS[label], way)
    yield from _explained(held_out, way)


def _explained(codes: Sequence[Codes], way: Way) -> Iterator[Row]:
    """How much each label explains of the codes of every layer, over seeds."""
    for label, name in EXPLAINING.items():
        if label not in codes[0].labels:
            continue
        shares = np.stack([explained(one, label) for one in codes])
        for layer, by_seed in zip(codes[0].layers, shares.T.tolist(), strict=True):
            share = _percent(by_seed)
            place = {"what": "explained", **way, "layer": layer, "label": name}
            yield {**place, **share, "measures": {EXPLAINED: share}}


def _decoded(found: Sequence[Decoding], what: str, names: str, way: Way) -> Iterator[Row]:
    """Of all classes and of each, over seeds."""
    for layer in range(len(found[0].layers)):

        def row(name: str, f1: list[float], control: list[float], layer: int = layer) -> Row:
            measures = {F1: _percent(f1), CONTROL: _percent(control)}
            place = {"what": what, **way, "layer": found[0].layers[layer], "label": name}
            return {**place, **measures[F1], "measures": measures}

        controls = [one.control for one in found]
        yield row(
            "all",
            [float(one.measured.macro_f1[layer]) for one in found],
            [float(c.macro_f1[layer]) for c in controls if c is not None],
        )
        for name in dict.fromkeys(name for one in found for name in one.names):
            yield row(
                names.format(name),
                [_of(one.measured.f1, one.names, layer, name) for one in found],
                [
                    _of(c.f1, o.names, layer, name)
                    for c, o in zip(controls, found, strict=True)
                    if c is not None
                ],
            )


def _of(f1: Any, names: tuple[str, ...], layer: int, name: str) -> float:
    return float(f1[layer, names.index(name)]) if name in names else float("nan")


def _percent(values: Sequence[float]) -> dict[str, Any]:
    return spread([None if np.isnan(value) else 100 * value for value in values])


def _maps(member: Trained, instances: int, way: Way) -> Iterator[Row]:
    """t-SNE of every layer, on held-out tasks."""
    codes = _codes(member, "held_out", instances, **way)
    labels = {}
    for name in SRAVEN_COLOURS if "keys" in way else FUZZY_COLOURS:
        values = codes.label(name)
        if name in codes.names:
            values = np.array(codes.names[name])[values]
        labels["function" if name == "formula" else name] = [
            round(value, 3) if isinstance(value, float) else value for value in values.tolist()
        ]
    for layer, place in embed(codes).items():
        x, y = (np.round(place[:, i], 2).tolist() for i in range(2))
        at = {"what": "map", **way, "layer": layer, "label": ""}
        yield {**at, "x": x, "y": y, "colours": labels}


def _rules(members: Sequence[Trained], instances: int, way: Way) -> Iterator[Row]:
    """Mean codes of rules in the last layer and their similarity, over all tasks; samples."""
    each = [(member, _with_each_rule(member, instances // len(RULES))) for member in members]
    codes = [_codes(member, "all", numbers, **way) for member, numbers in each]
    related, pairs = zip(*map(_alike, codes), strict=True)
    before = [_alike(_untrained(member, numbers, way)) for member, numbers in each]
    first = mean_codes(codes[0], "rule")
    layer = {**way, "layer": members[0].run.config.model.layers - 1, "label": ""}
    measures = {
        RELATED: _percent(related),
        ALL_PAIRS: _percent(pairs),
        ABOVE: _percent([one - other for one, other in zip(related, pairs, strict=True)]),
        UNTRAINED: _percent([one - other for one, other in before]),
    }
    labels = list(first.names)
    cosine, means = np.round(first.cosine, 4).tolist(), np.round(first.means, 4).tolist()
    yield {"what": "similarity", **layer, "labels": labels, "matrix": cosine, "measures": measures}
    yield {"what": "mean codes", **layer, "labels": labels, "matrix": means}
    some = sample(_codes(members[0], "held_out", max(SAMPLES, 64), **way), SAMPLES)
    rules = [some.names["rule"][rule] for rule in some.label("rule").tolist()]
    matrix = np.round(some.layer(-1), 4).tolist()
    yield {"what": "samples", **layer, "labels": rules, "matrix": matrix}


def _with_each_rule(member: Trained, count: int) -> Tensor:
    """Numbers of instances that have each rule in the last slot, so many times.

    Without permutation the last slot has the highest of the rules: of 330 instances one has the
    first rule there. A mean of few codes is mostly noise where they say little, and the cosine of
    noise with anything is low.
    """
    task = cast(SravenConfig, member.run.config.task)
    sraven = Sraven(replace(task, permute=False), member.seed)
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


def _untrained(member: Trained, instances: Tensor, way: Way) -> Codes:
    """The codes of a member before its first step, on the same instances."""
    config = member.run.config
    model = build(config.model, member.seed)
    return collect(model, config.task, "all", instances, seed=member.seed, keys=way["keys"])
