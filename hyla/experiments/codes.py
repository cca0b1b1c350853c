"""Latent codes of trained models: maps, decoding, mean codes and how alike they are.

Rows say by `what` they are: "decoding" (mean: F1 in percent over seeds, with the shuffled control
among the measures), "map" (t-SNE of the first seed), "mean codes", "similarity", "samples".

Each is made in two ways. Fuzzy logic: with the inputs of the context `fixed`, as the paper collects
codes, and with the query fixed. SRAVEN: with the `keys` "self", the last token attending to itself,
as in the paper's text, and "row", which adds the two panels before it, as in the authors' code.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hyla.analysis import Codes, collect, collect_run, decode, embed, mean_codes, sample
from hyla.experiments.ablation import FUZZY_GRID, SRAVEN_GRID
from hyla.experiments.declare import Claim, Experiment, Figure, Point, Row, Verdict
from hyla.experiments.judge import IN_PART, NOT_MEASURED, REPRODUCED, Judge, all_above
from hyla.experiments.results import is_at
from hyla.experiments.rows import FinishedRun, Trained, choose, hyperparameters, members_of, spread
from hyla.experiments.sraven import ATTENTIONS, FULL_GRID, MILLION, MILLIONS
from hyla.model import build
from hyla.tasks.sraven import RULES, Sraven, SravenConfig
from hyla.train.config import fuzzy_logic_run, sraven_run
from hyla.train.population import FIRST_EVALUATION_INSTANCE

F1, CONTROL = "F1", "F1, labels shuffled"
DECODED_F1 = 50.0  # percent, from which on something is decoded
LEAST_SPREAD = 1e-4  # of codes: those of a dead layer are all alike
RELATED, ALL_PAIRS = "addition and subtraction", "all pairs of rules"
ABOVE, UNTRAINED = "addition and subtraction above all pairs", "the same before training"
DECODED = {"paper": 8192, "small": 4096, "demo": 4096, "smoke": 256}  # instances of each split
MAPPED = {"paper": 800, "small": 500, "demo": 500, "smoke": 40}
SHUFFLES = {"paper": 10, "small": 10, "demo": 10, "smoke": 1}  # that the control is a mean of
SAMPLES = 32
LOOKED_THROUGH = 65_536  # instances at a time
Way = dict[str, str]  # an axis of the rows, which is an option of `collect_run` too
FIXED: tuple[Way, ...] = ({"fixed": "context"}, {"fixed": "query"})
KEYS: tuple[Way, ...] = ({"keys": "self"}, {"keys": "row"})
IN_WORDS = {
    ("fixed", "context"): "inputs of the context fixed, query varied",
    ("fixed", "query"): "query fixed, context varied",
    ("keys", "self"): "last token to itself",
    ("keys", "row"): "last token to itself and the two panels before",
}
FUZZY_COLOURS = ("target", "formula", "term 1", "term 2")
SRAVEN_COLOURS = ("target", "rule")


def _codes(member: Trained, split: str, instances: int | Tensor, **options: Any) -> Codes:
    return collect_run(member.run.path, member.number, split, instances, **options)


def analysed(point: Point, runs: Sequence[FinishedRun], scale: str) -> list[Row]:
    """All rows of one kind of attention: decoding over seeds, the rest of the first seed."""
    chosen = [m for m in choose(members_of(runs)) if m.result["evaluation"] is not None]
    if not chosen:
        return []
    is_sraven = isinstance(runs[0].config.task, SravenConfig)
    settings = {"hyperparameters": hyperparameters(chosen[0])}
    rows: list[Row] = []
    for way in KEYS if is_sraven else FIXED:
        rows += _decoding(chosen, "rule" if is_sraven else "terms", scale, way)
        if way != {"fixed": "query"}:
            rows += _maps(chosen[0], MAPPED[scale], way)
        if is_sraven:
            rows += _rules(chosen, DECODED[scale], way)
    return [{**point.axes, **row, **settings} for row in rows]


def mapped(point: Point, runs: Sequence[FinishedRun], scale: str) -> list[Row]:
    """The maps alone."""
    chosen = [m for m in choose(members_of(runs)) if m.result["evaluation"] is not None]
    return [{**point.axes, **row} for m in chosen[:1] for row in _maps(m, MAPPED[scale], KEYS[0])]


def _decoding(members: Sequence[Trained], label: str, scale: str, way: Way) -> Iterator[Row]:
    """Fitted to tasks of training, measured on held-out ones, in every layer."""
    found = []
    for member in members:
        train, test = (_codes(member, s, DECODED[scale], **way) for s in ("train", "held_out"))
        found.append(decode(train, test, label, shuffles=SHUFFLES[scale]))
    names = {"rule": "{}", "terms": "term {}"}[label]
    for layer in range(len(found[0].layers)):

        def row(name: str, f1: list[float], control: list[float], layer: int = layer) -> Row:
            measures = {F1: _percent(f1), CONTROL: _percent(control)}
            place = {"what": "decoding", **way, "layer": found[0].layers[layer], "label": name}
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
                    if c
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


def decodable(*ways: Way) -> Judge:
    """Judges macro F1 of the last layer, for each kind and way.

    It must be above its control, and for more than a part of the claim as high as `DECODED_F1`:
    what is merely more than chance does not say which term or rule it is.
    """

    def judge(rows: Sequence[Row]) -> Verdict:
        pairs = []
        for attention in ATTENTIONS:
            for way in ways:
                place = {"attention": attention, "what": "decoding", **way, "label": "all"}
                found = [row for row in rows if is_at(row, place)]
                found = [row for row in found if row.get("mean") is not None]
                last = max(found, key=lambda row: row["layer"], default=None)
                # The control as a row of its own, under the same name.
                control = last and {"measures": {F1: last["measures"][CONTROL]}}
                pairs.append((last, control, f"{attention}, {_told(way)}"))
        verdict = all_above(pairs, F1)
        if verdict is NOT_MEASURED:
            return verdict
        well = all(row is None or row["mean"] >= DECODED_F1 for row, _, _ in pairs)
        judged = IN_PART if verdict.outcome == REPRODUCED and not well else verdict.outcome
        told = "" if well else f" (reproduced from an F1 of {DECODED_F1:.0f} on)"
        evidence = f"F1 in the last layer against shuffled labels{told}, {verdict.evidence}"
        return Verdict(judged, evidence)

    return judge


def _told(way: Way) -> str:
    return ", ".join(IN_WORDS[place] for place in way.items())


def related_are_similar(rows: Sequence[Row]) -> Verdict:
    """Addition and subtraction against all pairs of rules, for HYLA; and more so than untrained."""
    place = {"attention": "hyla", "what": "similarity"}
    pairs = []
    for way in KEYS:
        row = next((row for row in rows if is_at(row, {**place, **way})), None)
        for one, other in ((RELATED, ALL_PAIRS), (ABOVE, UNTRAINED)):
            label = f"{_told(way)}, {one} against {other}"
            pairs.append((_measure(row, one), _measure(row, other), label))
    verdict = all_above(pairs, F1)
    if verdict is NOT_MEASURED:
        return verdict
    return Verdict(verdict.outcome, f"HYLA, last layer, cosine in percent, {verdict.evidence}")


def _measure(row: Row | None, name: str) -> Row | None:
    """A measure of a row as what is compared; None if there is none."""
    measure = row and row["measures"].get(name)
    return {"measures": {F1: measure}} if measure and measure["mean"] is not None else None


def maps_of(colours: Sequence[str], way: Way) -> list[Figure]:
    """A map of the codes for each of these labels."""
    title = f"t-SNE of the codes, {_told(way)}, by"
    where = {"what": "map", **way}
    return [Figure("scatter", f"{title} {name}", y=name, where=where) for name in colours]


def decoding_figure(title: str, way: Way, caption: str = "") -> Figure:
    """F1 of each class and layer, beside its control."""
    where = {"what": "decoding", **way}
    return Figure("bars", title, "label", F1, "attention", "layer", where=where, caption=caption)


def term_figures() -> list[Figure]:
    """Decoding of terms, both ways, and maps."""
    title = "F1 of decoding terms, fitted to functions of training, on held-out ones; "
    caption = (
        '"all" is the mean over terms. In term n, variable j is negated unless bit j of n is set, '
        "counted from 0."
    )
    found = [decoding_figure(title + _told(way), way, caption) for way in FIXED]
    return [*found, *maps_of(("target", "function", "term 1", "term 2"), FIXED[0])]


def rule_figures(way: Way) -> list[Figure]:
    """Decoding of rules, maps and matrices, for some keys."""
    title = f"F1 of decoding rules, fitted to tasks of training, on held-out ones; {_told(way)}"
    caption = (
        '"all" is the mean over rules. The last slot shows the last of its sorted rules, so '
        "constant only where all are: without such a held-out task it has no F1."
    )
    matrices = {
        "similarity": "Cosine similarity of the mean codes of rules, last layer",
        "mean codes": "Mean code of each rule, by head",
        "samples": "Random codes on held-out tasks, by head",
    }
    return [
        decoding_figure(title, way, caption),
        *maps_of(("rule", "target"), way),
        *(
            Figure(
                "matrix", f"{text}; {_told(way)}", facet="attention", where={"what": what, **way}
            )
            for what, text in matrices.items()
        ),
    ]


AXES = ("attention", "what", "fixed", "layer", "label")
SRAVEN_AXES = ("attention", "what", "keys", "layer", "label")
CODES_FUZZY = Experiment(
    name="codes-fuzzy",
    title="Fuzzy logic: latent codes",
    where="figures 2B, 2D and 8",
    points=lambda: [
        Point({"attention": attention}, fuzzy_logic_run(FUZZY_GRID, attention=attention))
        for attention in ATTENTIONS
    ],
    make=analysed,
    axes=AXES,
    keep=True,
    needs=("sklearn",),
    figures=tuple(term_figures()),
    claims=(Claim("Latent codes decode the terms of held-out functions", decodable(*FIXED)),),
)
CODES_SRAVEN = Experiment(
    name="codes-sraven",
    title="SRAVEN: latent codes",
    where="figures 5A, 5B, 5E, 5F, 12 and 14",
    points=lambda: [
        Point({"attention": attention}, sraven_run(SRAVEN_GRID, attention=attention))
        for attention in ATTENTIONS
    ],
    make=analysed,
    axes=SRAVEN_AXES,
    keep=True,
    needs=("sklearn",),
    figures=tuple(figure for way in KEYS for figure in rule_figures(way)),
    claims=(
        Claim("Latent codes decode the rules of held-out tasks", decodable(*KEYS)),
        Claim("Related rules have similar codes", related_are_similar),
    ),
    note="The models of the ablation table, trained on 20 million instances (the paper's on 40). "
    "Instances without permutation, as in the paper: the last slot shows the last of its sorted "
    "rules.",
)
CODES_DEPTH = Experiment(
    name="codes-depth",
    title="SRAVEN: latent codes of 16 layers of softmax attention",
    where="figure 13",
    points=lambda: [
        Point(
            {"attention": "softmax"},
            sraven_run(FULL_GRID, attention="softmax", layers=16, instances=MILLIONS[-1] * MILLION),
        )
    ],
    make=mapped,
    axes=SRAVEN_AXES,
    keep=True,
    needs=("sklearn",),
    figures=tuple(maps_of(("rule", "target"), KEYS[0])),
)
