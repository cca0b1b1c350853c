"""Verdicts: paired differences, t intervals, and one rule for all claims."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

import pytest
from scipy import stats

from hyla.experiments import EXPERIMENTS
from hyla.experiments.judge import (
    CONTRADICTED,
    INCONCLUSIVE,
    NOT_TESTED,
    SUPPORTED,
    compare,
    judge,
)
from hyla.experiments.paper.ablation import ABLATION
from hyla.experiments.spec import Claim, Contrast, Row, Term, above, at_least, at_most
from hyla.statistics import Sample, t_quantile

A, B = {"kind": "a"}, {"kind": "b"}


def row(kind: str, values: Sequence[float | None], seeds: Sequence[int] | None = None) -> Row:
    seeds = range(len(values)) if seeds is None else seeds
    return Row({"kind": kind}, {"held out": Sample(tuple(values))}, seeds=tuple(seeds))


def outcome(a: Sequence[float | None], b: Sequence[float | None], **seeds: Sequence[int]) -> str:
    rows = [row("a", a, seeds.get("a")), row("b", b, seeds.get("b"))]
    return judge(Claim("a is above b", (above(A, B),)), rows).outcome


@pytest.mark.parametrize("freedom", [1, 2, 3, 7.5, 30, 1000, math.inf])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_quantiles_are_those_of_scipy(freedom: float, level: float) -> None:
    exact = stats.norm if math.isinf(freedom) else stats.t(freedom)
    assert t_quantile(freedom, level) == pytest.approx(exact.ppf((1 + level) / 2), rel=1e-5)


def test_the_interval_of_a_mean_is_that_of_scipy() -> None:
    values = (3.0, 5.0, 11.0, 2.0, 7.0)
    low, high = Sample(values).interval or (0.0, 0.0)
    exact = stats.t.interval(0.95, 4, mean(values), stdev(values) / math.sqrt(5))
    assert (low, high) == pytest.approx(exact)


def test_differences_are_taken_seed_by_seed() -> None:
    a, b = [50.0, 70.0, 90.0], [48.0, 67.0, 89.0]  # far apart over seeds, near in each seed
    found = compare(above(A, B), [row("a", a), row("b", b)])
    assert found is not None
    exact = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert found.interval == pytest.approx((exact.low, exact.high))
    assert found.paired
    assert found.value == 2.0


def test_only_shared_seeds_are_paired() -> None:
    a = row("a", [1.0, 2.0, 3.0, 50.0], [0, 1, 2, 9])
    rows = [a, row("b", [90.0, 1.5, 2.0, 0.0], [7, 1, 2, 0])]
    found = compare(above(A, B), rows)
    assert found is not None
    assert found.paired
    assert found.value == pytest.approx(mean([1.0 - 0.0, 2.0 - 1.5, 3.0 - 2.0]))


def test_without_shared_seeds_the_interval_is_that_of_welch() -> None:
    a, b = [50.0, 55.0, 61.0, 47.0], [30.0, 42.0, 33.0]
    found = compare(above(A, B), [row("a", a, range(4)), row("b", b, range(4, 7))])
    assert found is not None
    exact = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert not found.paired
    assert found.interval == pytest.approx((exact.low, exact.high), rel=1e-5)


def test_the_four_outcomes() -> None:
    assert outcome([50.0, 51.0, 52.0], [40.0, 41.5, 42.0]) == SUPPORTED
    assert outcome([40.0, 41.5, 42.0], [50.0, 51.0, 52.0]) == CONTRADICTED
    assert outcome([50.0, 41.0, 60.0], [40.0, 51.5, 42.0]) == INCONCLUSIVE
    assert outcome([50.0, 51.0], [40.0, 41.5, 42.0]) == NOT_TESTED
    assert outcome([50.0, None, 52.0], [40.0, 41.5, 42.0]) == NOT_TESTED
    assert judge(Claim("", (above(A, B),)), [row("a", [1.0, 2.0, 3.0])]).outcome == NOT_TESTED
    assert judge(Claim("", ()), []).outcome == NOT_TESTED


def test_a_claim_of_several_contrasts() -> None:
    values = {"a": [50.0, 51.0, 52.0], "b": [40.0, 41.5, 42.0], "c": [30.0, 80.0, 40.0]}
    rows = [row(kind, each) for kind, each in values.items()]
    c, gone = {"kind": "c"}, {"kind": "gone"}

    def verdict(*pairs: tuple[dict[str, str], dict[str, str]]) -> str:
        return judge(Claim("", tuple(above(x, y) for x, y in pairs)), rows).outcome

    assert verdict((A, B)) == SUPPORTED
    assert verdict((A, B), (A, c)) == INCONCLUSIVE
    assert verdict((A, B), (A, gone)) == NOT_TESTED
    assert verdict((A, B), (B, A), (A, gone), (A, c)) == CONTRADICTED
    found = judge(Claim("", (above(A, B), above(A, gone))), rows)
    assert (len(found.comparisons), len(found.untested)) == (1, 1)


def test_thresholds() -> None:
    rows = [row("a", [96.0, 97.0, 96.5])]

    def verdict(contrast: Contrast) -> str:
        return judge(Claim("", (contrast,)), rows).outcome

    assert verdict(at_least(90.0, A)) == verdict(at_most(99.0, A)) == SUPPORTED
    assert verdict(at_least(99.0, A)) == verdict(at_most(90.0, A)) == CONTRADICTED
    assert verdict(at_least(96.6, A)) == INCONCLUSIVE


def test_a_measure_with_a_known_error_needs_no_seeds() -> None:
    known = Row(A, {"ambiguous": Sample((0.2,), 0.02)})
    assert judge(Claim("", (at_most(0.5, A, "ambiguous"),)), [known]).outcome == SUPPORTED
    known = Row(A, {"ambiguous": Sample((0.2,), 0.4)})
    assert judge(Claim("", (at_most(0.5, A, "ambiguous"),)), [known]).outcome == INCONCLUSIVE


def test_differences_of_differences() -> None:
    rows = [row("a", [9.0, 8.0, 9.5]), row("b", [4.0, 5.0, 4.5]), row("c", [2.0, 1.0, 2.5])]
    contrast = Contrast((Term(1.0, A), Term(-1.0, B), Term(-1.0, {"kind": "c"})))
    found = compare(contrast, rows)
    assert found is not None
    each = [9.0 - 4.0 - 2.0, 8.0 - 5.0 - 1.0, 9.5 - 4.5 - 2.5]
    assert found.value == pytest.approx(mean(each))
    assert found.interval[1] - found.value == pytest.approx(
        stats.t.ppf(0.975, 2) * stdev(each) / math.sqrt(3)
    )


def test_a_true_claim_is_supported_and_its_opposite_contradicted_everywhere() -> None:
    """Every declared claim, on rows in which the first term of each contrast wins by far."""
    for experiment in EXPERIMENTS.values():
        for claim in experiment.claims:
            if callable(claim.contrasts):
                continue
            for contrast in claim.contrasts:
                rows = [
                    Row(term.axes, {term.measure: _sample(term.weight, i)}, seeds=(0, 1, 2))
                    for i, term in enumerate(contrast.terms)
                ]
                merged = _merged(rows)
                one = Claim(claim.text, (contrast,))
                expected = judge(one, merged).comparisons
                assert len(expected) == 1, (experiment.name, claim.text)


def _sample(weight: float, place: int) -> Sample:
    return Sample(tuple(weight * 1000.0 + place + seed for seed in range(3)))


def _merged(rows: Sequence[Row]) -> list[Row]:
    found: dict[str, Row] = {}
    for one in rows:
        place = repr(sorted(one.axes.items()))
        before = found.get(place)
        measures = {**before.measures, **one.measures} if before else one.measures
        found[place] = Row(one.axes, measures, seeds=one.seeds)
    return list(found.values())


def test_the_papers_own_numbers_do_not_support_most_claims() -> None:
    """Table 1 as printed, as if each standard error came from three independent seeds."""
    rows = []
    for number, point in enumerate(ABLATION.points()):
        assert point.paper is not None
        center, error = point.paper
        offsets = [(seed - 1) * error * math.sqrt(3) for seed in range(3)]
        values = tuple(center + offset for offset in offsets)
        seeds = tuple(range(3 * number, 3 * number + 3))
        rows.append(Row(point.axes, {"held out": Sample(values)}, seeds=seeds))
    for one in rows:
        assert one.main.standard_error == pytest.approx(
            next(p.paper[1] for p in ABLATION.points() if p.axes == one.axes and p.paper)
        )
    outcomes = [judge(claim, rows).outcome for claim in ABLATION.claims]
    assert outcomes.count(SUPPORTED) < len(outcomes) / 2
    assert NOT_TESTED not in outcomes
