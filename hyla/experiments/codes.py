"""Latent codes of trained models: maps, decoding, mean codes and how alike they are."""

from collections.abc import Sequence
from dataclasses import replace

from hyla.experiments.ablation import FUZZY_GRID, SRAVEN_GRID
from hyla.experiments.code_rows import (
    ABOVE,
    ALL_PAIRS,
    CONTROL,
    F1,
    FIXED,
    KEYS,
    RELATED,
    UNTRAINED,
    Way,
    analysed,
    mapped,
)
from hyla.experiments.declare import Claim, Experiment, Figure, Point, Row, Verdict
from hyla.experiments.judge import IN_PART, REPRODUCED, Judge, all_above
from hyla.experiments.results import is_at
from hyla.experiments.sraven import ATTENTIONS, FULL_GRID, MILLION, MILLIONS
from hyla.train.config import fuzzy_logic_run, sraven_run

DECODED_F1 = 50.0  # percent, from which on something is decoded
IN_WORDS = {
    ("fixed", "context"): "inputs of the context fixed, query varied",
    ("fixed", "query"): "query fixed, context varied",
    ("keys", "self"): "last token to itself",
    ("keys", "row"): "last token to itself and the two panels before",
}


def decodable(*ways: Way) -> Judge:
    """Judges macro F1 of the last layer, for each kind and way.

    It must be above its control, and for more than a part of the claim as high as `DECODED_F1`:
    what is merely more than chance does not say which term or rule it is.
    """

    def judge(rows: Sequence[Row]) -> Verdict:
        pairs: list[tuple[Row | None, Row | None, str]] = []
        for attention in ATTENTIONS:
            for way in ways:
                last = next(reversed(_layers(rows, "decoding", attention, way)), None)
                last = last if last and last.get("mean") is not None else None
                # The control as a row of its own, under the same name.
                control = last and {"measures": {F1: last["measures"][CONTROL]}}
                pairs.append((last, control, f"{attention}, {_told(way)}"))
        there = [row for row, _, _ in pairs if row is not None]
        well = sum(row["mean"] >= DECODED_F1 for row in there)
        told = f"{well} of {len(there)} have an F1 of {DECODED_F1:.0f} or more in the last layer"
        verdict = all_above(pairs, F1, f"{told}; against shuffled labels")
        only_above = verdict.outcome == REPRODUCED and well < len(there)
        return replace(verdict, outcome=IN_PART) if only_above else verdict

    return judge


def _layers(rows: Sequence[Row], what: str, attention: str, way: Way) -> list[Row]:
    """What is decoded of all classes in each layer, from the first to the last."""
    place = {"attention": attention, "what": what, **way, "label": "all"}
    return sorted((row for row in rows if is_at(row, place)), key=lambda row: row["layer"])


def across_layers(what: str, *, later: bool) -> Judge:
    """Judges which half of the layers tells more, each by the layer that tells most."""

    def judge(rows: Sequence[Row]) -> Verdict:
        pairs: list[tuple[Row | None, Row | None, str]] = []
        for attention in ATTENTIONS:
            for way in KEYS:
                layers = _layers(rows, what, attention, way)
                middle = (len(layers) + 1) // 2
                halves = _most(layers[:middle]), _most(layers[middle:])
                more, less = halves[::-1] if later else halves
                pairs.append((more, less, f"{attention}, {_told(way)}"))
        names = ("second", "first") if later else ("first", "second")
        order = "the best layer of the {} half against that of the {}".format(*names)
        return all_above(pairs, F1, f"F1 in {order}")

    return judge


def _most(rows: Sequence[Row]) -> Row | None:
    there = [row for row in rows if row.get("mean") is not None]
    return max(there, key=lambda row: row["mean"], default=None)


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
    return all_above(pairs, F1, "HYLA, last layer, cosine in percent")


def _measure(row: Row | None, name: str) -> Row | None:
    """A measure of a row as what is compared; None if there is none."""
    measure = row and row["measures"].get(name)
    return {"measures": {F1: measure}} if measure and measure["mean"] is not None else None


def maps_of(colours: Sequence[str], way: Way) -> list[Figure]:
    """A map of the codes for each of these labels."""
    title = f"t-SNE of the codes, {_told(way)}, by"
    where = {"what": "map", **way}
    return [Figure("scatter", f"{title} {name}", y=name, where=where) for name in colours]


def decoding_figure(title: str, way: Way, caption: str, what: str = "decoding") -> Figure:
    """F1 of each class and layer, beside its control."""
    where = {"what": what, **way}
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
    title = f"fitted to tasks of training, on held-out ones; {_told(way)}"
    caption = (
        '"all" is the mean over rules. The last slot shows the last of its sorted rules, so '
        "constant only where all are: without such a held-out task it has no F1."
    )
    numbered = "head" if way == {"keys": "self"} else "head, of one key after the other"
    matrices = {
        "similarity": "Cosine similarity of the mean codes of rules, last layer",
        "mean codes": f"Mean code of each rule, by {numbered}",
        "samples": f"Random codes on held-out tasks, by {numbered}",
    }
    return [
        decoding_figure(f"F1 of decoding rules, {title}", way, caption),
        decoding_figure(
            f"F1 of decoding the answer, {title}", way, '"all" is the mean over values.', "answers"
        ),
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
        Claim("Later layers tell more of the rule", across_layers("decoding", later=True)),
        Claim(
            "Early layers tell more of the answer's value", across_layers("answers", later=False)
        ),
        Claim("Related rules have similar codes", related_are_similar),
    ),
    note="The models of the ablation table, trained on 20 million instances (the paper's on 40). "
    "Instances without permutation, as in the paper: the last slot shows the last of its sorted "
    "rules. In layer 0 the code of the last token with itself is always the same, but for softmax "
    "attention, and what others tell there is in the inputs.",
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
