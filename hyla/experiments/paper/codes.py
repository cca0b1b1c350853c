"""Latent codes of trained models: maps, decoding, mean codes and how alike they are."""

from collections.abc import Callable, Sequence
from typing import Any

from hyla.experiments.paper.latent_codes import (
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
    analyse,
)
from hyla.experiments.paper.runs import FUZZY_GRID, SRAVEN_GRID, fuzzy_logic_run, sraven_run
from hyla.experiments.paper.sraven import MILLION, MILLIONS, THREE, depth_run
from hyla.experiments.spec import (
    Analysis,
    Axes,
    Claim,
    Contrast,
    Experiment,
    Figure,
    Point,
    Row,
    above,
    at_least,
)

Contrasts = Callable[[Sequence[Row]], Sequence[Contrast]]
DECODED_F1 = 50.0  # percent, from which on something is decoded
SHALLOW: list[Axes] = [{"kind": kind} for kind in THREE]
LAST = {"fuzzy": 1, "sraven": 3}  # layers
DEEP: list[Axes] = [{"kind": "softmax", "millions": millions} for millions in MILLIONS]
LAYERS, DEEP_LAYERS = 4, 16
SELF = KEYS[:1]  # what the paper's text speaks of, and its claims are judged by
EARLY = "Early layers tell more of the answer's value"
IN_WORDS = {
    "context": "inputs of the context fixed, query varied",
    "query": "query fixed, context varied",
    "self": "last token to itself",
    "panels": "last token to the two panels before",
}


def _in_words(way: Way) -> str:
    (choice,) = way.values()
    return IN_WORDS[choice]


def _analysis(way: Way) -> Analysis:
    settings = {**way, "instances": 8192, "mapped": 800, "shuffles": 10}
    return Analysis("codes", "weights", settings, analyse, needs=("sklearn",))


def decodable(layer: int, *ways: Way) -> tuple[Contrast, ...]:
    """In the last layer an F1 of at least `DECODED_F1`, and above that with shuffled labels."""
    places = [
        {**kind, "what": "decoding", **way, "layer": layer, "label": "all"}
        for kind in SHALLOW
        for way in ways
    ]
    over_control = [above(place, place, F1, than=CONTROL) for place in places]
    return (*over_control, *(at_least(DECODED_F1, place, F1) for place in places))


def across_layers(what: str, kinds: Sequence[Axes], layers: int, *, later: bool) -> Contrasts:
    """One half of the layers tells more than the other, each by the layer that tells most."""
    first, second = range(layers // 2), range(layers // 2, layers)
    more, less = (second, first) if later else (first, second)

    def contrasts(rows: Sequence[Row]) -> list[Contrast]:
        places = [{**kind, "what": what, **way, "label": "all"} for kind in kinds for way in SELF]
        return [above(_most(rows, p, more), _most(rows, p, less), F1) for p in places]

    return contrasts


def _most(rows: Sequence[Row], place: Axes, layers: range) -> Axes:
    """The place of the layer with the largest mean; the first layer if there are no rows."""
    best = {"layer": layers[0]}, float("-inf")
    for row in rows:
        if row.is_at(place) and row.axes["layer"] in layers and row.main.mean is not None:
            best = max(best, ({"layer": row.axes["layer"]}, row.main.mean), key=lambda one: one[1])
    return {**place, **best[0]}


def explain_more(one: str, other: str, layer: int, ways: Sequence[Way]) -> tuple[Contrast, ...]:
    """One label explains more of the codes of the last layer than another."""
    return tuple(
        above({**place, "label": one}, {**place, "label": other}, EXPLAINED)
        for kind in SHALLOW
        for way in ways
        for place in [{**kind, "what": "explained", **way, "layer": layer}]
    )


RELATED_ARE_SIMILAR = tuple(
    above(place, place, measure, than=other)
    for way in SELF
    for place in [{"kind": "hyla", "what": "similarity", **way}]
    for measure, other in ((RELATED, ALL_PAIRS), (ABOVE, UNTRAINED))
)


def maps_of(colours: Sequence[str], way: Way) -> list[Figure]:
    """A map of the codes for each of these labels."""
    title = f"t-SNE of the codes, {_in_words(way)}, by"
    where = {"what": "map", **way}
    return [Figure("scatter", f"{title} {name}", y=name, where=where) for name in colours]


def decoding_figure(title: str, way: Way, caption: str, what: str = "decoding") -> Figure:
    """F1 of each class and layer, beside its control."""
    where = {"what": what, **way}
    return Figure("bars", title, "label", F1, "kind", "layer", where=where, caption=caption)


def explained_figure(way: Way) -> Figure:
    """How much of the codes each label explains, in each layer."""
    title = f"Percent of the variance of codes that a label explains, {_in_words(way)}"
    where = {"what": "explained", **way}
    caption = "On held-out tasks; undefined where the codes do not vary."
    return Figure("bars", title, "label", EXPLAINED, "kind", "layer", where=where, caption=caption)


def term_figures() -> list[Figure]:
    """Decoding of terms, both ways, and maps."""
    title = "F1 of decoding terms, fitted to functions of training, on held-out ones; "
    caption = (
        '"all" is the mean over terms. In term n, variable j is negated unless bit j of n is set, '
        "counted from 0."
    )
    found = [decoding_figure(title + _in_words(way), way, caption) for way in FIXED]
    found += [explained_figure(way) for way in FIXED]
    return [*found, *maps_of(("target", "function", "term 1", "term 2"), FIXED[0])]


def rule_figures(way: Way) -> list[Figure]:
    """Decoding of rules, maps and matrices, for some keys."""
    title = f"fitted to tasks of training, on held-out ones; {_in_words(way)}"
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
            Figure("matrix", f"{text}; {_in_words(way)}", facet="kind", where={"what": what, **way})
            for what, text in matrices.items()
        ),
    ]


def layer_figures(way: Way, keys: str) -> list[Figure]:
    """F1 of all classes in each layer, and what explains the codes. keys: in few words."""

    def bars(title: str, x: str, y: str, facet: str, **where: str) -> Figure:
        caption = f"On held-out tasks; {_in_words(way)}."
        return Figure("bars", title, x, y, "millions", facet, {**where, **way}, caption=caption)

    return [
        bars(f"Rules decoded, {keys}", "layer", F1, "", what="decoding", label="all"),
        bars(f"Answer decoded, {keys}", "layer", F1, "", what="answers", label="all"),
        bars(f"Variance explained, {keys}", "layer", EXPLAINED, "label", what="explained"),
    ]


AXES = ("kind", "what", "fixed", "layer", "label")
SRAVEN_AXES = ("kind", "what", "keys", "layer", "label")
OF_TERMS = tuple(_analysis(way) for way in FIXED)
OF_RULES = tuple(_analysis(way) for way in KEYS)
CODES_FUZZY = Experiment(
    name="codes-fuzzy",
    title="Fuzzy logic: latent codes",
    where="figures 2B, 2D and 8",
    question="Do latent codes reveal which function a model computes?",
    points=lambda: [
        Point({"kind": kind}, fuzzy_logic_run(FUZZY_GRID, kind=kind), OF_TERMS) for kind in THREE
    ],
    axes=AXES,
    figures=tuple(term_figures()),
    claims=(
        Claim(
            "Latent codes decode the terms of held-out functions",
            decodable(LAST["fuzzy"], *FIXED),
        ),
        Claim(
            "The function explains more of the codes than the output's value",
            # With the query fixed the value follows from the function.
            explain_more("function", "value", LAST["fuzzy"], FIXED[:1]),
        ),
    ),
)
CODES_SRAVEN = Experiment(
    name="codes-sraven",
    title="SRAVEN: latent codes",
    where="figures 5A, 5B, 5E, 5F, 12 and 14",
    question="Do latent codes reveal which rule a model applies?",
    points=lambda: [
        Point({"kind": kind}, sraven_run(SRAVEN_GRID, kind=kind), OF_RULES) for kind in THREE
    ],
    axes=SRAVEN_AXES,
    figures=tuple(figure for way in KEYS for figure in rule_figures(way)),
    claims=(
        Claim("Latent codes decode the rules of held-out tasks", decodable(LAST["sraven"], *SELF)),
        Claim(
            "The rule explains more of the last layer's codes than the answer's value",
            explain_more("rule", "value", LAST["sraven"], SELF),
        ),
        Claim(
            "Later layers tell more of the rule",
            across_layers("decoding", SHALLOW, LAYERS, later=True),
        ),
        Claim(EARLY, across_layers("answers", SHALLOW, LAYERS, later=False)),
        Claim("Related rules have similar codes", RELATED_ARE_SIMILAR),
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
    question="Which layers tell of the rule, and which of the answer?",
    points=lambda: [
        Point(place, depth_run(place["kind"], place["millions"] * MILLION, DEEP_LAYERS), OF_RULES)
        for place in DEEP
    ],
    axes=("kind", "millions", *SRAVEN_AXES[1:]),
    figures=(
        *layer_figures(KEYS[0], "last token alone"),
        *layer_figures(KEYS[1], "panels before"),
        *maps_of(("rule", "target"), KEYS[0]),
    ),
    tiny={"millions": MILLIONS[-1:]},
    claims=(Claim(EARLY, across_layers("answers", DEEP[-1:], DEEP_LAYERS, later=False)),),
    note="The deepest softmax models of the scaling figure; the paper's has 40 million instances.",
)


def demo_codes(points: Callable[[], list[Point]], layer: int, **options: Any) -> Experiment:
    """Declare the same figures and claims for other models of fuzzy logic."""
    text = "Latent codes decode the terms of held-out functions (reduced)"
    claims = (Claim(text, decodable(layer, *FIXED)),)
    figures = tuple(term_figures())
    return Experiment(points=points, axes=AXES, figures=figures, claims=claims, **options)
