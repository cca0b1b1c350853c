"""Whether claims about latent codes hold."""

from typing import Any

import pytest
from test_judge import KINDS, claim


@pytest.mark.parametrize(
    "f1, control, outcome",
    [
        (80.0, 20.0, "reproduced"),
        (28.0, 20.0, "in part"),  # more than chance, but not decoded
        (20.5, 20.0, "not reproduced"),
        (19.0, 20.0, "not reproduced"),
    ],
)
def test_more_than_chance_is_not_decoding(f1: float, control: float, outcome: str) -> None:
    measures = {"F1": f1, "F1, labels shuffled": control}
    rows = [
        {
            "kind": attention,
            "what": "decoding",
            "keys": keys,
            "label": "all",
            "layer": layer,
            "mean": f1 if layer else 0.0,
            "measures": {k: {"mean": v, "standard_error": 1.0} for k, v in measures.items()},
        }
        for attention in ("softmax", "linear", "hyla")
        for keys in ("self", "row")
        for layer in (0, 3)
    ]
    judge = claim("codes-sraven", "decode")
    assert judge(rows).outcome == outcome
    assert "not measured" in judge(rows[:-2]).evidence
    rows[-1] |= {"mean": None}  # of the last layer, in whose place no other is taken
    assert "1 of 6 comparisons not measured" in judge(rows).evidence


@pytest.mark.parametrize(
    "what, words, later",
    [("decoding", "Later layers", True), ("answers", "Early layers", False)],
)
def test_the_best_layers_of_both_halves_are_compared(what: str, words: str, later: bool) -> None:
    def decoded(kind: str, keys: str, *f1: float | None) -> list[dict[str, Any]]:
        """From the first layer to the last, or the other way round."""
        place = {"kind": kind, "what": what, "keys": keys, "label": "all"}
        values = f1 if later else f1[::-1]
        return [
            {**place, "layer": layer, "mean": one}
            | {"measures": {"F1": {"mean": one, "standard_error": 1.0}}}
            for layer, one in enumerate(values)
        ]

    judge = claim("codes-sraven", words)
    token = decoded("hyla", "self", 0.0, 5.0, 40.0, 20.0)
    verdict = judge(token[::-1])
    told = "hyla, last token to itself: 40.0 ± 1.0 against 5.0 ± 1.0, "
    told += "a difference of 35.0 ± 1.4, holds"
    assert told in verdict.evidence
    assert verdict.outcome == "in part"
    assert "5 of 6 comparisons not measured" in verdict.evidence
    against = decoded("linear", "row", 0.0, 40.0, 5.0, 5.0)
    assert judge(against).outcome == "open"
    assert "1 of 2 hold" in judge([*token, *against]).evidence
    every = [row for kind in KINDS for keys in ("self", "row") for row in decoded(kind, keys, 1, 9)]
    assert judge(every).outcome == "reproduced"
    assert judge(token[:1]).outcome == "not measured"  # one layer alone
    assert judge(decoded("hyla", "self", 5.0, 5.0, None, None)).outcome == "not measured"
    other = [row | {"what": "answers" if later else "decoding"} for row in token]
    assert judge(other).outcome == "not measured"
    odd = decoded("hyla", "self", 1.0, 2.0, 40.0)  # the layer in the middle is an early one
    assert ("40.0 ± 1.0 against 2.0" if later else "40.0 ± 1.0 against 1.0") in judge(odd).evidence


def test_of_the_deep_models_that_with_most_data_is_judged() -> None:
    def answers(millions: int, first: float, last: float) -> list[dict[str, Any]]:
        place = {"kind": "softmax", "what": "answers", "label": "all", "millions": millions}
        return [
            {**place, "keys": keys, "layer": layer, "mean": mean}
            | {"measures": {"F1": {"mean": mean, "standard_error": 1.0}}}
            for keys in ("self", "row")
            for layer, mean in enumerate((first, last))
        ]

    judge = claim("codes-depth", "Early layers")
    few, most = answers(10, 1.0, 9.0), answers(40, 9.0, 1.0)
    assert judge(few).outcome == "not reproduced"
    assert "softmax, 10 M instances, last token to itself: 1.0" in judge(few).evidence
    assert judge([*most, *few]).outcome == "reproduced"
    no_error = {"measures": {"F1": {"mean": 9.0, "standard_error": None}}}
    one_seed = [row | no_error for row in most]
    both = judge([*one_seed, *few])
    assert both.outcome == judge(few).outcome
    assert both.summary == judge(few).summary + "; also 2 with a single seed, not judged"
    assert both.comparisons == judge(few).comparisons + judge(one_seed).comparisons
    assert judge(one_seed).outcome == "open"
    between = [row | {"millions": 20} for row in one_seed]
    assert judge(between).outcome == "open"
    assert len(judge([*between, *one_seed, *few]).comparisons) == 6
    assert "40 M instances" in judge(one_seed).evidence
    unfinished = [row | {"mean": None} for row in most]
    assert judge([*unfinished, *few]) == judge(few)
    assert judge([]).outcome == "not measured"


@pytest.mark.parametrize(
    "name, axis, ways, label",
    [
        ("codes-fuzzy", "fixed", ("context",), "function"),
        ("codes-sraven", "keys", ("self", "row"), "rule"),
    ],
)
def test_what_explains_more_of_the_last_layer(
    name: str, axis: str, ways: tuple[str, ...], label: str
) -> None:
    def share(kind: str, way: str, layer: int, label: str, mean: float | None) -> dict[str, Any]:
        place = {"what": "explained", "kind": kind, axis: way, "layer": layer, "label": label}
        measures = {"variance explained": {"mean": mean, "standard_error": 1.0}}
        return {**place, "mean": mean, "measures": measures}

    rows = [
        share(kind, way, layer, one, 30.0 if (one == label) == (layer == 1) else 10.0)
        for kind in KINDS
        for way in ways
        for layer in (1, 0)  # where it is the other way round
        for one in ("value", label)
    ]
    judge = claim(name, "explains more")
    assert judge(rows).outcome == "reproduced"
    assert (
        "30.0 ± 1.0 against 10.0 ± 1.0, a difference of 20.0 ± 1.4, holds" in judge(rows).evidence
    )
    other = [row | {"label": "value" if row["label"] == label else label} for row in rows]
    assert judge(other).outcome == "not reproduced"
    missing = [row | {"mean": None} if row["layer"] else row for row in rows[:4]] + rows[4:]
    assert f"1 of {3 * len(ways)} comparisons not measured" in judge(missing).evidence
    decoys = [row | {"what": "decoding", "layer": 2, "mean": 0.0, "measures": {}} for row in rows]
    assert judge([*decoys, *rows]) == judge(rows)


@pytest.mark.parametrize(
    "above, untrained, outcome",
    [(40.0, 10.0, "reproduced"), (40.0, 40.0, "in part"), (40.0, None, "in part")],
)
def test_codes_must_be_more_alike_than_before_training(
    above: float, untrained: float | None, outcome: str
) -> None:
    values = {"addition and subtraction": 90.0, "all pairs of rules": 50.0}
    values["addition and subtraction above all pairs"] = above
    if untrained is not None:
        values["the same before training"] = untrained
    measures = {name: {"mean": mean, "standard_error": 1.0} for name, mean in values.items()}
    rows = [
        {"kind": "hyla", "what": "similarity", "keys": keys, "measures": measures}
        for keys in ("self", "row")
    ]
    judge = claim("codes-sraven", "similar")
    assert judge(rows).outcome == outcome
    dead = {name: {"mean": None} for name in measures}
    without = judge([rows[0], rows[1] | {"measures": dead}])
    assert without.outcome == "in part"
    assert "comparisons not measured" in without.evidence
