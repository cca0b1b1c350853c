"""Means over few seeds, with confidence intervals from Student's t distribution."""

import math
from dataclasses import dataclass
from functools import cache
from statistics import mean, stdev

LEVEL = 0.95  # confidence level of all intervals
PARTS = 2000  # steps of the numerical integral; errors are below 1e-9


@dataclass(frozen=True)
class Sample:
    """A measure for each seed; None where it is undefined, such as for a diverged seed.

    error: the standard error, if it is known without repetition over seeds.

    >>> sample = Sample((1.0, 3.0, 5.0))
    >>> sample.mean, round(sample.interval[1], 2)
    (3.0, 7.97)
    """

    per_seed: tuple[float | None, ...]
    error: float | None = None

    @property
    def values(self) -> list[float]:
        """The defined values."""
        return [value for value in self.per_seed if value is not None]

    @property
    def mean(self) -> float | None:
        """The mean of the defined values; None without any."""
        return mean(self.values) if self.values else None

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean; None for a single seed."""
        if self.error is not None:
            return self.error
        return stdev(self.values) / math.sqrt(len(self.values)) if len(self.values) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean, by the t distribution."""
        if self.mean is None or self.standard_error is None:
            return None
        freedom = math.inf if self.error is not None else len(self.values) - 1
        half = t_quantile(freedom) * self.standard_error
        return self.mean - half, self.mean + half


@cache
def t_quantile(freedom: float, level: float = LEVEL) -> float:
    """Return half the width of a mean's confidence interval, in standard errors.

    >>> round(t_quantile(2), 3), round(t_quantile(math.inf), 3)
    (4.303, 1.96)
    """
    freedom = min(freedom, 1e6)
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # bisection over the angle atan(t / sqrt(freedom))
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < level else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _inside(angle: float, freedom: float) -> float:
    """Integrate the density from -angle to angle."""
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    steps = [_power(math.cos(angle * i / PARTS), freedom - 1) for i in range(PARTS + 1)]
    simpson = steps[0] + steps[-1] + 4 * sum(steps[1:-1:2]) + 2 * sum(steps[2:-1:2])
    return 2 * math.exp(log) / math.sqrt(math.pi) * simpson * angle / PARTS / 3


def _power(base: float, exponent: float) -> float:
    return math.exp(exponent * math.log(base)) if base > 0 else 0.0
