"""Latent codes of trained models: maps, decoding, mean codes and how alike they are."""

from collections.abc import Sequence
from dataclasses import replace

from hyla.experiments.ablation import FUZZY_GRID, SRAVEN_GRID
from hyla.experiments.code_rows import (
    ABOVE,
    ALL_PAIRS,
    CONTROL,
    EXPLAINED,
    F1,
    FIXED,
    KEYS,
    RELATED,
    UNTRAINED,
    Way,
    analysed,
    analysed_by_layer,
)
from hyla.experiments.declare import Axes, Claim, Experiment, Figure, Point, Row, Verdict
from hyla.experiments.judge import IN_PART, REPRODUCED, Judge, all_above, in_words
from hyla.experiments.results import is_at
from hyla.experiments.sraven import ATTENTIONS, MILLION, MILLIONS, depth_run
from hyla.train.config import fuzzy_logic_run, sraven_run

DECODED_F1 = 50.0  # percent, from which on something is decoded
SHALLOW: list[Axes] = [{"kind": attention} for attention in ATTENTIONS]  # 4 layers
DEEP: list[Axes] = [{"kind": "softmax", "millions": n} for n in MILLIONS]  # 16 layers
EARLY = "Early layers tell more of the answer's value"
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
        for model in SHALLOW:
            for way in ways:
                last = _last(rows, {"what": "decoding", **model, **way, "label": "all"})
                # The control as a row of its own, under the same name.
                control = last and {"measures": {F1: last["measures"][CONTROL]}}
                pairs.append((last, control, f"{in_words(model)}, {_told(way)}"))
        there = [row for row, _, _ in pairs if row is not None]
        well = sum(row["mean"] >= DECODED_F1 for row in there)
        told = f"{well} of {len(there)} have an F1 of {DECODED_F1:.0f} or more in the last layer"
        verdict = all_above(pairs, F1, f"{told}; against shuffled labels")
        only_above = verdict.outcome == REPRODUCED and well < len(there)
        return replace(verdict, outcome=IN_PART) if only_above else verdict

    return judge


def _layers(rows: Sequence[Row], what: str, place: Axes) -> list[Row]:
    """What is decoded of all classes in each layer, from the first to the last."""
    place = {"what": what, **place, "label": "all"}
    return sorted((row for row in rows if is_at(row, place)), key=lambda row: row["layer"])


def across_layers(what: str, models: Sequence[Axes], *, later: bool) -> Judge:
    """Judges which half of the layers tells more, each by the layer that tells most."""

    def judge(rows: Sequence[Row]) -> Verdict:
        pairs: list[tuple[Row | None, Row | None, str]] = []
        for model in models:
            for way in KEYS:
                layers = _layers(rows, what, {**model, **way})
                middle = (len(layers) + 1) // 2
                halves = _most(layers[:middle]), _most(layers[middle:])
                more, less = halves[::-1] if later else halves
                pairs.append((more, less, f"{in_words(model)}, {_told(way)}"))
        names = ("second", "first") if later else ("first", "second")
        order = "the best layer of the {} half against that of the {}".format(*names)
        return all_above(pairs, F1, f"F1 in {order}")

    return judge


def early_with_most_data(rows: Sequence[Row]) -> Verdict:
    """Judges the deep model with most data; those of a single seed, which have no error, are told.

    If there are only such, all of them, and none can be judged.
    """
    several: list[Axes] = []
    single: list[Axes] = []
    for model in DEEP:
        best = [_most(_layers(rows, "answers", {**model, **way})) for way in KEYS]
        found = [row["measures"][F1]["standard_error"] for row in best if row]
        if found:
            (single if all(error is None for error in found) else several).append(model)
    told = across_layers("answers", single or DEEP[-1:], later=False)(rows)
    if not several:
        return told
    judged = across_layers("answers", several[-1:], later=False)(rows)
    if not single:
        return judged
    summary = f"{judged.summary}; also {len(told.comparisons)} with a single seed, not judged"
    return replace(judged, summary=summary, comparisons=judged.comparisons + told.comparisons)


def _most(rows: Sequence[Row]) -> Row | None:
    there = [row for row in rows if row.get("mean") is not None]
    return max(there, key=lambda row: row["mean"], default=None)


def _told(way: Way) -> str:
    return ", ".join(IN_WORDS[place] for place in way.items())


def explain_more(one: str, other: str, ways: Sequence[Way]) -> Judge:
    """Judges which of two labels explains more of the codes of the last layer."""

    def judge(rows: Sequence[Row]) -> Verdict:
        pairs = []
        for model in SHALLOW:
            for way in ways:
                place = {"what": "explained", **model, **way}
                more, less = (_last(rows, {**place, "label": label}) for label in (one, other))
                pairs.append((more, less, f"{in_words(model)}, {_told(way)}"))
        about = f"Percent of the variance of codes that {one} and {other} explain, last layer"
        return all_above(pairs, EXPLAINED, about)

    return judge


def _last(rows: Sequence[Row], place: Axes) -> Row | None:
    """The row of the last layer, if it has a number."""
    there = [row for row in rows if is_at(row, place)]
    last = max(there, key=lambda row: row["layer"], default=None)
    return last if last and last.get("mean") is not None else None


def related_are_similar(rows: Sequence[Row]) -> Verdict:
    """Addition and subtraction against all pairs of rules, for HYLA; and more so than untrained."""
    place = {"kind": "hyla", "what": "similarity"}
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


def explained_figure(way: Way) -> Figure:
    """How much of the codes each label explains, in each layer."""
    title = f"Percent of the variance of codes that a label explains, {_told(way)}"
    where = {"what": "explained", **way}
    caption = "On held-out tasks; undefined where the codes do not vary."
    return Figure(
        "bars", title, "label", EXPLAINED, "attention", "layer", where=where, caption=caption
    )


def term_figures() -> list[Figure]:
    """Decoding of terms, both ways, and maps."""
    title = "F1 of decoding terms, fitted to functions of training, on held-out ones; "
    caption = (
        '"all" is the mean over terms. In term n, variable j is negated unless bit j of n is set, '
        "counted from 0."
    )
    found = [decoding_figure(title + _told(way), way, caption) for way in FIXED]
    found += [explained_figure(way) for way in FIXED]
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
        explained_figure(way),
        *maps_of(("rule", "target"), way),
        *(
            Figure(
                "matrix", f"{text}; {_told(way)}", facet="attention", where={"what": what, **way}
            )
            for what, text in matrices.items()
        ),
    ]


def layer_figures(way: Way, keys: str) -> list[Figure]:
    """F1 of all classes in each layer, and what explains the codes. keys: in few words."""

    def bars(title: str, x: str, y: str, facet: str, **where: str) -> Figure:
        caption = f"On held-out tasks; {_told(way)}."
        return Figure("bars", title, x, y, "millions", facet, {**where, **way}, caption=caption)

    return [
        bars(f"Rules decoded, {keys}", "layer", F1, "", what="decoding", label="all"),
        bars(f"Answer decoded, {keys}", "layer", F1, "", what="answers", label="all"),
        bars(f"Variance explained, {keys}", "layer", EXPLAINED, "label", what="explained"),
    ]


AXES = ("attention", "what", "fixed", "layer", "label")
SRAVEN_AXES = ("attention", "what", "keys", "layer", "label")
CODES_FUZZY = Experiment(
    name="codes-fuzzy",
    title="Fuzzy logic: latent codes",
    where="figures 2B, 2D and 8",
    points=lambda: [
        Point({"kind": attention}, fuzzy_logic_run(FUZZY_GRID, kind=attention))
        for attention in ATTENTIONS
    ],
    make=analysed,
    axes=AXES,
    keep=True,
    needs=("sklearn",),
    figures=tuple(term_figures()),
    claims=(
        Claim("Latent codes decode the terms of held-out functions", decodable(*FIXED)),
        Claim(
            "The function explains more of the codes than the output's value",
            explain_more("function", "value", FIXED[:1]),  # else the value follows from it
        ),
    ),
)
CODES_SRAVEN = Experiment(
    name="codes-sraven",
    title="SRAVEN: latent codes",
    where="figures 5A, 5B, 5E, 5F, 12 and 14",
    points=lambda: [
        Point({"kind": attention}, sraven_run(SRAVEN_GRID, kind=attention))
        for attention in ATTENTIONS
    ],
    make=analysed,
    axes=SRAVEN_AXES,
    keep=True,
    needs=("sklearn",),
    figures=tuple(figure for way in KEYS for figure in rule_figures(way)),
    claims=(
        Claim("Latent codes decode the rules of held-out tasks", decodable(*KEYS)),
        Claim(
            "The rule explains more of the last layer's codes than the answer's value",
            explain_more("rule", "value", KEYS),
        ),
        Claim("Later layers tell more of the rule", across_layers("decoding", SHALLOW, later=True)),
        Claim(EARLY, across_layers("answers", SHALLOW, later=False)),
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
        Point(model, depth_run(model["kind"], model["millions"] * MILLION, 16))
        for model in DEEP
    ],
    make=analysed_by_layer,
    axes=("attention", "millions", *SRAVEN_AXES[1:]),
    keep=True,
    needs=("sklearn",),
    figures=(
        *layer_figures(KEYS[0], "last token alone"),
        *layer_figures(KEYS[1], "with the panels"),
        *maps_of(("rule", "target"), KEYS[0]),
    ),
    smoke={"millions": MILLIONS[-1:]},
    claims=(Claim(EARLY, early_with_most_data),),
    note="The deepest softmax models of the scaling figure; the paper's has 40 million instances.",
)
