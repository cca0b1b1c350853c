"""Whether claims hold: every contrast with its 95 % interval, and one rule for all claims.

supported: the interval of every contrast lies on the claimed side
contradicted: that of any lies wholly on the other side
not tested: else, if a row is missing or has fewer than three seeds
inconclusive: else
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, variance

from hyla.experiments.spec import SEEDS, Claim, Contrast, Row, Term
from hyla.statistics import Sample, t_quantile

SUPPORTED, CONTRADICTED = "supported", "contradicted"
INCONCLUSIVE, NOT_TESTED = "inconclusive", "not tested"
OUTCOMES = (SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_TESTED)


@dataclass(frozen=True)
class Comparison:
    """A contrast as measured: the value that is claimed to be above the threshold, and where it is.

    paired: whether the difference was taken seed by seed. seeds: of the term that has fewest.
    """

    contrast: Contrast
    value: float
    interval: tuple[float, float]
    seeds: int
    paired: bool

    @property
    def outcome(self) -> str:
        """Of this contrast alone."""
        low, high = self.interval
        if low > self.contrast.threshold:
            return SUPPORTED
        return CONTRADICTED if high < self.contrast.threshold else INCONCLUSIVE


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds. untested: the contrasts that could not be measured."""

    outcome: str
    comparisons: tuple[Comparison, ...] = ()
    untested: tuple[Contrast, ...] = ()


def judge(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """The verdict on a claim."""
    found = claim.contrasts(rows) if callable(claim.contrasts) else claim.contrasts
    measured = [(contrast, compare(contrast, rows)) for contrast in found]
    comparisons = tuple(one for _, one in measured if one is not None)
    untested = tuple(contrast for contrast, one in measured if one is None)
    outcomes = {one.outcome for one in comparisons}
    if CONTRADICTED in outcomes:
        outcome = CONTRADICTED
    elif untested or not comparisons:
        outcome = NOT_TESTED
    else:
        outcome = INCONCLUSIVE if INCONCLUSIVE in outcomes else SUPPORTED
    return Verdict(outcome, comparisons, untested)


def compare(contrast: Contrast, rows: Sequence[Row]) -> Comparison | None:
    """A contrast with its interval; None if a row is missing or has too few seeds.

    Seeds that all terms have are paired, if there are enough; else the terms are independent, with
    the degrees of freedom of Welch and Satterthwaite.
    """
    parts = [_find(term, rows) for term in contrast.terms]
    there = [part for part in parts if part is not None]
    if len(there) < len(parts):
        return None
    weights = [term.weight for term in contrast.terms]
    by_seed = [_by_seed(row, sample) for row, sample in there]
    shared = set.intersection(*map(set, by_seed))
    if len(shared) >= SEEDS:
        sums = [
            sum(weight * values[seed] for weight, values in zip(weights, by_seed, strict=True))
            for seed in sorted(shared)
        ]
        value, error, freedom = mean(sums), math.sqrt(variance(sums) / len(sums)), len(sums) - 1.0
    else:
        value = sum(w * _mean(sample) for w, (_, sample) in zip(weights, there, strict=True))
        error, freedom = _independent(weights, [sample for _, sample in there])
    half = t_quantile(freedom) * error
    seeds = min(len(sample.values) for _, sample in there)
    paired = len(contrast.terms) > 1 and len(shared) >= SEEDS
    return Comparison(contrast, value, (value - half, value + half), seeds, paired)


def _find(term: Term, rows: Sequence[Row]) -> tuple[Row, Sample] | None:
    for row in rows:
        sample = row.measures.get(term.measure)
        if sample is not None and row.is_at(term.axes):
            enough = len(sample.values) >= SEEDS or sample.error is not None
            return (row, sample) if enough else None
    return None


def _by_seed(row: Row, sample: Sample) -> dict[int, float]:
    pairs = zip(row.seeds, sample.per_seed, strict=False)
    return {seed: value for seed, value in pairs if value is not None}


def _mean(sample: Sample) -> float:
    assert sample.mean is not None
    return sample.mean


def _independent(weights: Sequence[float], samples: Sequence[Sample]) -> tuple[float, float]:
    """The standard error of a sum, and its degrees of freedom."""
    pairs = zip(weights, samples, strict=True)
    errors = [weight * (one.standard_error or 0.0) for weight, one in pairs]
    total = sum(error**2 for error in errors)
    repeated = [
        error**4 / (len(one.values) - 1)
        for error, one in zip(errors, samples, strict=True)
        if one.error is None
    ]
    return math.sqrt(total), total**2 / sum(repeated) if sum(repeated) else math.inf
