"""What the report shows: the results of every experiment, verdicts on its claims, and headlines."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hyla.experiments import EXPERIMENTS, HEADLINES
from hyla.experiments.judge import NOT_TESTED, OUTCOMES, Verdict, judge
from hyla.experiments.rows import (
    DEFAULT_PLAN,
    is_complete,
    points_of,
    rows,
    rows_as_published,
)
from hyla.experiments.run import RESULTS, RUNS
from hyla.experiments.spec import Axes, Claim, Contrast, Experiment, Headline, Row
from hyla.report.text import places
from hyla.train.store import Store

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Results:
    """The results of an experiment.

    as_published: rows of trainings that follow the authors' code. expected: the axes of every
    point with the paper's mean and standard error, if it gives them. measured: how many points
    have their row and all of their analyses.
    """

    experiment: Experiment
    rows: Sequence[Row]
    as_published: Sequence[Row]
    expected: Sequence[tuple[Axes, tuple[float, float] | None]]
    measured: int
    verdicts: Sequence[tuple[Claim, Verdict]]

    @property
    def local(self) -> Sequence[Row]:
        """The rows with trainings of local runs."""
        return [row for row in self.rows if row.is_local]


@dataclass(frozen=True)
class Content:
    """All experiments, the headlines that have results, and what could not be read."""

    results: Sequence[Results]
    headlines: Sequence[tuple[Headline, Sequence[Row], Verdict]]
    problems: Sequence[str]
    runs: Path


def load(runs: Path = RUNS, results: Path | None = RESULTS) -> Content:
    """Read all results; ValueError if a published file is damaged.

    Experiments with results come first. A demonstration without results is left out.
    """
    store = Store.open(runs, results)
    each = [collect(experiment, store) for experiment in EXPERIMENTS.values()]
    found = [one for one in each if one.rows or not one.experiment.is_demo]
    by_name = {one.experiment.name: one.rows for one in each}
    headlines = [
        (headline, there, judge(headline.claim, there))
        for headline in HEADLINES
        for there in [by_name[headline.experiment]]
        if any(row.is_at(place) for row in there for place in headline.places.values())
    ]
    problems = [*store.problems.values()]
    if results is not None and not results.is_dir():
        problems.append(f"No published results are shown: the folder {results} does not exist.")
    return Content(sorted(found, key=lambda one: not one.rows), headlines, problems, runs)


def collect(experiment: Experiment, store: Store) -> Results:
    """Collect the results of one experiment and judge its claims."""
    points = points_of(experiment)
    each = [
        [row for row in rows(point, DEFAULT_PLAN, store) if row.measures or row.picture]
        for point in points
    ]
    found = [row for mine in each for row in mine]
    return Results(
        experiment,
        found,
        [] if experiment.is_demo else rows_as_published(experiment, store),
        [(point.axes, point.paper) for point in points],
        sum(is_complete(point, DEFAULT_PLAN, store) for point in points),
        [(claim, judge(claim, found)) for claim in experiment.claims],
    )


def outcomes(verdicts: Sequence[tuple[Claim, Verdict]]) -> dict[str, int]:
    """Count the verdicts by outcome."""
    counted = Counter(verdict.outcome for _, verdict in verdicts)
    return {outcome: counted[outcome] for outcome in OUTCOMES}


def outcomes_of_paper(content: Content) -> dict[str, int]:
    """Count the verdicts on the paper's claims; those of demonstrations do not count."""
    paper = [one for one in content.results if not one.experiment.is_demo]
    return outcomes([verdict for one in paper for verdict in one.verdicts])


def contrast_outcomes(verdict: Verdict) -> dict[str, int]:
    """Count the contrasts of a claim by outcome."""
    counted = Counter(one.outcome for one in verdict.comparisons)
    counted[NOT_TESTED] += len(verdict.untested)
    return {outcome: counted[outcome] for outcome in OUTCOMES}


@dataclass(frozen=True)
class Evidence:
    """One contrast as the page shows it: positive where the claim says "above"."""

    text: str
    claimed: str
    outcome: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    seeds: int = 0
    paired: bool = False


def evidence(verdict: Verdict) -> list[Evidence]:
    """List the contrasts of a claim, those without results last."""
    found = []
    for one in verdict.comparisons:
        text, claimed, sign = _in_words(one.contrast)
        low, high = sorted(sign * end for end in one.interval)
        paired = one.paired and len(one.contrast.terms) > 1
        value = sign * one.value
        found.append(Evidence(text, claimed, one.outcome, value, (low, high), one.seeds, paired))
    return found + [Evidence(*_in_words(one)[:2], NOT_TESTED) for one in verdict.untested]


def _in_words(contrast: Contrast) -> tuple[str, str, int]:
    """A contrast, the side that is claimed, and -1 if both are shown with the opposite sign."""
    sign = -1 if all(term.weight < 0 for term in contrast.terms) else 1
    text = ""
    for term in contrast.terms:
        weight = sign * term.weight
        text += f" {MINUS if weight < 0 else '+'} "
        text += f"{abs(weight):g} {TIMES} " if abs(weight) != 1 else ""
        text += f"{places(list(term.axes), dict(term.axes))}: {term.measure}"
    text = text.removeprefix(" + ").strip()
    side = "above" if sign > 0 else "below"
    return text, f"{side} {sign * contrast.threshold + 0:g}", sign


def verdict_as_json(claim: Claim, verdict: Verdict) -> dict[str, Any]:
    """Return a claim with its verdict as plain values."""
    measured = [asdict(one) | {"outcome": one.outcome} for one in verdict.comparisons]
    untested = [{"contrast": asdict(one), "outcome": NOT_TESTED} for one in verdict.untested]
    return {
        "claim": claim.text,
        "outcome": verdict.outcome,
        "comparisons": [*measured, *untested],
    }
