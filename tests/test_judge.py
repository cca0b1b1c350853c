"""Whether claims hold: differences against standard errors, and what is missing."""

import math
from typing import Any

import pytest

from hyla.experiments import EXPERIMENTS
from hyla.experiments.ablation import ABLATION
from hyla.experiments.declare import HELD_OUT, Verdict
from hyla.experiments.judge import Judge, above, all_above, difference


def row(mean: float, error: float | None) -> dict[str, Any]:
    return {"mean": mean, "measures": {HELD_OUT: {"mean": mean, "standard_error": error}}}


def test_differences_are_counted_in_standard_errors() -> None:
    gap, errors = difference(row(10.0, 3.0), row(0.0, 4.0))
    assert (gap, errors) == (10.0, 2.0)
    assert difference(row(10.0, None), row(0.0, 4.0)) == (10.0, None)
    assert difference(row(1.0, 0.0), row(0.0, 0.0))[1] == math.inf
    assert difference(row(0.0, 0.0), row(0.0, 0.0)) == (0.0, 0.0)


@pytest.mark.parametrize(
    "pairs, outcome",
    [
        ([(9.0, 0.0), (9.0, 0.0)], "reproduced"),
        ([(9.0, 0.0), (1.0, 0.0)], "in part"),
        ([(2.0, 0.0), (2.0, 0.0)], "in part"),
        ([(1.0, 0.0), (1.0, 0.0)], "not reproduced"),  # 0.7 standard errors are nothing
        ([(1.0, 0.0), (0.0, 1.0)], "not reproduced"),
        ([(9.0, 0.0), (0.0, 9.0)], "in part"),
        ([(0.0, 9.0)], "not reproduced"),
    ],
)
def test_outcomes(pairs: list[tuple[float, float]], outcome: str) -> None:
    assert all_above([(row(a, 1.0), row(b, 1.0), "") for a, b in pairs]).outcome == outcome


def test_a_single_seed_is_told_and_not_judged() -> None:
    alone, pair = (row(90.0, None), row(0.0, 1.0), "one"), (row(9.0, 1.0), row(0.0, 1.0), "two")
    alone[0]["measures"][HELD_OUT]["per_seed"] = [90.0]
    assert all_above([alone]).outcome == "open"
    assert all_above([alone]).summary.startswith("no comparison can be judged (1 with")
    found = all_above([alone, pair])
    assert found.outcome == "in part"
    assert found.summary == (
        "1 of 1 hold (1 with a single seed not judged), a difference of 9.0 ± 1.4"
    )
    assert found.comparisons[0] == (
        "one: 90.0 (1 seed) against 0.0 ± 1.0, a difference of 90.0 (1 seed), "
        "not judged: a single seed has no error"
    )
    assert all_above([alone]).summary.endswith("a difference of 90.0 (1 seed)")


@pytest.mark.parametrize("turned", [False, True])
def test_a_single_seed_is_compared_in_that_seed(turned: bool) -> None:
    rows = [row(5.0, None), row(20.0, 10.0)]
    for one, seeds in zip(rows, ([5.0], [10.0, None, 30.0]), strict=True):
        one["measures"][HELD_OUT]["per_seed"] = seeds
    told = ["5.0 (1 seed)", "10.0 (1 seed)"]
    if turned:
        rows.reverse(), told.reverse()
    found = all_above([(*rows, "a")])
    assert found.comparisons[0].startswith(f"a: {told[0]} against {told[1]}, a difference of ")
    assert rows[not turned]["measures"][HELD_OUT]["mean"] == 20.0  # as it was
    rows[not turned]["measures"][HELD_OUT]["per_seed"][0] = None  # a first seed that diverged
    assert "20.0 ± 10.0 (1 of 3 seeds)" in all_above([(*rows, "a")]).comparisons[0]


def place(attention: str, heads: int, mean: float) -> dict[str, Any]:
    return {"kind": attention, "heads": heads, **row(mean, 1.0)}


def test_ends_of_an_axis_are_compared_in_every_group() -> None:
    judge = above("heads", 16, 1, [{"kind": "hyla"}, {"kind": "linear"}])
    rows = [place("hyla", 16, 9.0), place("hyla", 1, 0.0), place("hyla", 4, 50.0)]
    assert judge(rows).outcome == "in part"  # of linear attention nothing is known
    assert "1 of 2 comparisons" in judge(rows).evidence
    rows += [place("linear", 1, 0.0), place("linear", 16, 9.0)]
    assert judge(rows[::-1]).outcome == "reproduced"
    rows[-1] = place("linear", 16, -9.0)
    assert judge(rows).outcome == "in part"


def unknown(number: int, unknown_r2: float, known_r2: float) -> dict[str, Any]:
    axes = dict(EXPERIMENTS["fuzzy"].points()[number].axes)
    values = {"unknown terms": unknown_r2, "in distribution": known_r2}
    seeds = {k: [v - 1.0, v, v + 1.0, None] for k, v in values.items()}  # the last has diverged
    return axes | {"measures": {k: {"mean": v[1], "per_seed": v} for k, v in seeds.items()}}


def claim(experiment: str, words: str) -> Judge:
    """The judge of the only claim with these words."""
    (found,) = (one for one in EXPERIMENTS[experiment].claims if words in one.text)
    return found.judge


def test_unknown_terms_must_be_unsolved_everywhere() -> None:
    judge = claim("fuzzy", "unknown terms")
    rows = [unknown(i, -5.0, 99.0) for i in range(36)]
    assert judge(rows).outcome == "reproduced"
    assert judge(rows[:3]).outcome == "in part"
    rows[7] = unknown(7, 40.0, 50.0)
    assert judge(rows).outcome == "in part"
    assert judge([unknown(i, 90.0, 99.0) for i in range(36)]).outcome == "not reproduced"
    assert judge([unknown(0, 90.0, 99.0)]).outcome == "open"
    assert judge([unknown(0, -5.0, -20.0)]).outcome == "in part"
    rows[7] = unknown(7, -50.0, 90.0)
    assert judge(rows).outcome == "reproduced"
    rows[7]["measures"]["unknown terms"]["per_seed"][0] = 60.0  # one seed is enough
    assert judge(rows).outcome == "in part"
    assert "107 of 108 models" in judge(rows).evidence
    for odd in (None, [], [1.0]):
        rows[8]["measures"]["unknown terms"]["per_seed"] = odd
        assert "104 of 105 models (35 of 36 points)" in judge(rows).evidence


def test_trainings_that_were_not_chosen_are_told_of_but_not_judged() -> None:
    judge = claim("fuzzy", "unknown terms")
    rows = [unknown(i, -5.0, 99.0) for i in range(36)]
    assert judge(rows).evidence.endswith("where the mean over seeds is -5.0 (3 of 4 seeds))")
    setting = {"learning_rate": 1e-3, "weight_decay": 0.03}
    rows[5]["grid"] = [setting, setting | {"unknown terms": [0.0, None, 96.0, 95.0]}]
    rows[23]["grid"] = [
        setting | {"unknown terms": [94.9]},
        {"learning_rate": 3e-3, "weight_decay": 0.1, "unknown terms": [1.0, 97.26]},
    ]
    assert judge(rows).outcome == "reproduced"
    assert judge(rows).evidence.endswith(
        "; of 6 trainings of the searches, chosen or not, 3 have an R2 of 95 or more, the most "
        "97.3 (hyla, 96 examples, 50 % held out, learning rate 0.003, weight decay 0.1)"
    )


KINDS = ("softmax", "linear", "hyla")


def fuzzy(kind: str, examples: int, held_out: float, mean: float, known: float) -> dict[str, Any]:
    values = row(mean, 1.0)
    values["measures"]["in distribution"] = {"mean": known, "standard_error": 1.0}
    return {"kind": kind, "examples": examples, "held_out": held_out, **values}


def test_in_some_setting_every_kind_must_solve_the_task() -> None:
    judge = claim("fuzzy", "Given enough examples")
    enough = [fuzzy(kind, 64, 0.5, 95.0, 99.0) for kind in KINDS]
    assert judge(enough).outcome == "reproduced"  # whatever other settings give
    more = [fuzzy(kind, 96, 0.7, 40.0, 99.0) for kind in KINDS]
    assert judge(more + enough + more).outcome == "reproduced"
    less = [fuzzy(kind, 32, 0.3, 94.9, 99.0) for kind in KINDS]
    assert judge(less).outcome == "open"
    assert "hyla, 32 examples, 30 % held out: 94.9 ± 1.0" in judge(less).evidence
    assert judge(enough[:2] + less).outcome == "in part"
    assert judge(enough[:2]).outcome == "in part"  # of HYLA nothing is known
    settings = [(n, f) for n in (16, 32, 64, 96) for f in (0.3, 0.5, 0.7)]
    every = [fuzzy(kind, *setting, 50.0, 99.0) for kind in KINDS for setting in settings]
    assert judge(every).outcome == "not reproduced"
    assert judge([{"kind": "hyla"}]).outcome == "not measured"


def test_falls_are_compared_with_the_errors_of_both_ends() -> None:
    judge = claim("fuzzy", "falls less")

    def ends(kind: str, examples: int, fall: float) -> list[dict[str, Any]]:
        below = [(0.3, 90.0), (0.5, 1.0), (0.7, 90.0 - fall)]
        return [fuzzy(kind, examples, held_out, mean, 99.0) for held_out, mean in below]

    def judged(others: float, hyla: float) -> tuple[list[dict[str, Any]], Verdict]:
        falls = {"softmax": others, "linear": others, "hyla": hyla}
        every = [(kind, n) for kind in KINDS for n in (16, 32, 64, 96)]
        rows = [row for kind, n in every for row in ends(kind, n, falls[kind])]
        return rows, judge(rows)

    _, verdict = judged(10.1, 6.0)  # 4.1 points, of which the standard error is 2
    assert verdict.outcome == "reproduced"
    told = "16 examples, softmax against HYLA: 10.1 ± 1.4 against 6.0 ± 1.4, "
    told += "a difference of 4.1 ± 2.0, holds"
    assert told in verdict.evidence
    _, verdict = judged(9.9, 6.0)
    assert verdict.outcome == "in part"
    assert "0 of 8 hold" in verdict.evidence
    rows, verdict = judged(9.0, 50.0)
    assert verdict.outcome == "not reproduced"
    assert judge([one for one in rows if one["held_out"] < 0.7]).outcome == "not measured"
    rows, _ = judged(50.0, 6.0)
    rows[0] |= {"search": "0.001,0.1,100"}
    rows[0]["measures"][HELD_OUT]["per_seed"] = [90.0, None, None]
    assert "(without a search of hyperparameters)" in judge(rows).evidence
    assert "50.0 ± 1.4 (1 of 3 seeds) against 6.0 ± 1.4" in judge(rows).evidence
    for one in rows:
        one["measures"][HELD_OUT]["standard_error"] = None  # one seed tells nothing
    assert judge(rows).outcome == "open"


def test_differences_in_distribution_are_set_beside_those_held_out() -> None:
    judge = claim("fuzzy", "In distribution")

    def kinds(held_out: float, *means: tuple[float, float]) -> list[dict[str, Any]]:
        return [fuzzy(k, 32, held_out, *mean) for k, mean in zip(KINDS, means, strict=True)]

    smaller = kinds(0.7, (50.0, 98.0), (60.0, 99.0), (80.0, 97.0))
    told = "32 examples, 70 % held out: 30.0 ± 1.4 against 2.0 ± 1.4, "
    told += "a difference of 28.0 ± 2.0, holds"
    assert told in judge(smaller).evidence
    assert judge(smaller).outcome == "in part"  # 11 of 12 settings are not measured
    larger = kinds(0.3, (90.0, 98.0), (91.0, 80.0), (90.5, 97.0))
    assert judge(larger).outcome == "open"
    assert "1 of 2 hold (10 of 12 comparisons" in judge([*smaller, *larger]).evidence
    noise = kinds(0.5, (50.0, 98.0), (52.0, 98.5), (53.9, 98.2))  # 3.4 points, of which 2 are noise
    assert "0 of 1 hold" in judge(noise).evidence
    assert judge(smaller[1:]).outcome == "not measured"
    smaller[0]["measures"]["in distribution"]["mean"] = None
    assert judge(smaller).outcome == "not measured"


def test_a_comparison_that_is_missing_leaves_a_claim_open() -> None:
    missing = (None, row(0.0, 1.0), "b")
    verdict = all_above([(row(9.0, 1.0), row(0.0, 1.0), "a"), missing])
    assert verdict.outcome == "in part"
    told, _, _ = verdict.evidence.partition(": ")  # all that is seen before it is unfolded
    assert told == "1 of 1 hold (1 of 2 comparisons not measured), a difference of 9.0 ± 1.4"
    assert all_above([(row(0.0, 1.0), row(9.0, 1.0), "a"), missing]).outcome == "open"
    assert all_above([missing]).outcome == "not measured"


def test_the_least_and_the_largest_difference_are_told_first() -> None:
    pairs = [(row(mean, 3.0), row(1.0, 4.0), f"label {mean}") for mean in (7.0, -2.0, 21.0, 4.0)]
    verdict = all_above(pairs)
    assert verdict.summary == "1 of 4 hold, differences of -3.0 ± 5.0 to 20.0 ± 5.0"
    assert len(verdict.comparisons) == 4
    missing = (None, row(5.0, 3.0), "f")
    assert all_above([*pairs[:2], missing]).summary == (
        "0 of 2 hold (1 of 3 comparisons not measured), differences of -3.0 ± 5.0 to 6.0 ± 5.0"
    )


def test_seeds_that_diverged_or_are_fewer_are_told() -> None:
    values = {"mean": 90.5, "standard_error": 0.5, "per_seed": [90.0, 91.0, None]}
    verdict = all_above([({"measures": {HELD_OUT: values}}, row(80.0, 1.0), "a")])
    assert "90.5 ± 0.5 (2 of 3 seeds) against 80.0 ± 1.0" in verdict.evidence
    for seeds, told in (([90.0, 91.0], " (2 seeds)"), ([90.0, 90.5, 91.0], "")):
        values = values | {"per_seed": seeds}
        verdict = all_above([({"measures": {HELD_OUT: values}}, row(80.0, 1.0), "a")])
        assert f"90.5 ± 0.5{told} against 80.0 ± 1.0" in verdict.evidence


@pytest.mark.parametrize(
    "means, outcome",
    [
        ({"softmax": 60.0}, "open"),
        ({"softmax": 90.0}, "in part"),
        ({"softmax": 90.0, "linear": 90.0, "hyla": 90.0}, "reproduced"),
        ({"softmax": 60.0, "linear": 60.0, "hyla": 60.0}, "not reproduced"),
    ],
)
def test_all_kinds_are_asked_for_the_largest_models(means: dict[str, float], outcome: str) -> None:
    place = {"millions": 40, "width": 4}
    rows = [{"kind": kind, **place, **row(mean, 1.0)} for kind, mean in means.items()]
    verdict = claim("scaling-width", "80 %")(rows)
    assert verdict.outcome == outcome
    assert ("2 of 3 not measured" in verdict.evidence) == (len(means) == 1)


@pytest.mark.parametrize("mean, outcome", [(90.0, "in part"), (60.0, "open")])
def test_largest_models_of_a_single_seed_do_not_settle_it(mean: float, outcome: str) -> None:
    place = {"millions": 40, "width": 4}
    errors = {"softmax": 1.0, "linear": 1.0, "hyla": None}
    rows = [{"kind": kind, **place, **row(mean, error)} for kind, error in errors.items()]
    verdict = claim("scaling-width", "80 %")(rows)
    assert verdict.outcome == outcome
    assert "1 with a single seed" in verdict.evidence
    assert "without a search" not in verdict.evidence
    given = claim("scaling-width", "80 %")([one | {"search": "0.0003,0.3,1000"} for one in rows])
    assert "without a search of hyperparameters" in given.evidence


def test_the_papers_own_table_by_the_same_criterion() -> None:
    """Not all that the paper says of its table is more than two of its standard errors."""
    rows = [dict(point.axes) | row(*point.paper) for point in ABLATION.points() if point.paper]
    outcomes = [(claim.text[:25], claim.judge(rows).outcome) for claim in ABLATION.claims]
    assert outcomes == [
        ("HYLA generalises better t", "reproduced"),
        ("RMSHead and the nonlinear", "in part"),
        ("The full HYLA model gener", "in part"),
        ("RMSHead, alone or with we", "in part"),
        ("A deeper value network ge", "reproduced"),
        ("With softmax in the place", "in part"),
        ("A mixture of experts give", "not reproduced"),
    ]
    compared = [
        [
            comparison.split(": ")[0].removeprefix("SRAVEN, ")
            for comparison in claim.judge(rows).evidence.split("; ")
            if comparison.startswith("SRAVEN, ")
        ]
        for claim in ABLATION.claims
    ]
    assert compared == [
        ["HYLA and Softmax attention", "HYLA and Linear attention"],
        ["HYLA and HYLA - RMSHead", "HYLA and HYLA - nonlinearity"],
        ["HYLA and Linear attention + RMSHead", "HYLA and HYLA - nonlinearity"],
        [
            "Linear attention + RMSHead and Linear attention",
            "HYLA - nonlinearity and Linear attention",
        ],
        [
            "HYLA + deep value network and Softmax attention",
            "HYLA + deep value network and Linear attention",
        ],
        ["HYLA and HYLA - RMSHead + softmax"],
        [f"{kind} + MoE and {kind}" for kind in ("Softmax attention", "Linear attention", "HYLA")],
    ]


def test_the_numbers_of_the_paper_are_told_beside_ours_if_it_has_both() -> None:
    one, other = row(9.0, 1.0) | {"paper_mean": 8.04}, row(0.0, 1.0) | {"paper_mean": 1.0}
    assert all_above([(one, other, "a")]).evidence.endswith(
        "0.0 ± 1.0 (paper: 8.0 against 1.0), a difference of 9.0 ± 1.4, holds"
    )
    for odd in (None, "1.0", math.nan, True):
        verdict = all_above([(one, other | {"paper_mean": odd}, "a")])
        assert verdict.outcome == "reproduced"
        assert "paper" not in verdict.evidence
    measures = {"F1": {"mean": 1.0, "standard_error": 1.0}}
    pair = (one | {"measures": measures}, other | {"measures": measures}, "a")
    assert "paper" not in all_above([pair], "F1").evidence
