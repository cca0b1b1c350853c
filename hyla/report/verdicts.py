"""Claims with their verdicts: as HTML, as counts and as JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hyla.experiments.judge import (
    CONTRADICTED,
    INCONCLUSIVE,
    NOT_TESTED,
    OUTCOMES,
    SUPPORTED,
    Comparison,
    Verdict,
)
from hyla.experiments.spec import Claim, Contrast
from hyla.report.drawn import Grid
from hyla.report.found import Found
from hyla.report.parts import folded, table
from hyla.report.text import escape, places, rounded

LOOKS = {
    SUPPORTED: ("good", "✓"),
    CONTRADICTED: ("bad", "✗"),
    INCONCLUSIVE: ("part", "?"),
    NOT_TESTED: ("none", "·"),
}
METHOD = (
    "Each claim consists of contrasts, such as the mean of one model minus the mean of another. "
    "Every contrast has a 95 % interval with the t quantile for its number of seeds. Differences "
    "are paired by seed where all sides share at least three seeds; otherwise the interval is "
    "Welch's. The contrasts decide the verdict:"
)
MEANINGS = {
    SUPPORTED: "the interval of every contrast lies on the claimed side",
    CONTRADICTED: "the interval of at least one contrast lies wholly on the other side",
    NOT_TESTED: "otherwise, if a result is missing or has fewer than three seeds",
    INCONCLUSIVE: "in all other cases",
}
MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"
HEAD = ("contrast", "claimed", "value", "95 % interval", "seeds", "paired", "outcome")


def counts(found: Sequence[Found]) -> dict[str, int]:
    """How many of the paper's claims have each outcome; demonstrations are not counted."""
    there = [one for one in found if not one.experiment.is_demo]
    counted = Counter(judged.outcome for one in there for _, judged in one.verdicts)
    return {outcome: counted[outcome] for outcome in OUTCOMES}


def contrast_counts(judged: Verdict) -> dict[str, int]:
    """How many contrasts of a claim have each outcome."""
    counted = Counter(one.outcome for one in judged.comparisons)
    counted[NOT_TESTED] += len(judged.untested)
    return {outcome: counted[outcome] for outcome in OUTCOMES}


def item(claim: Claim, judged: Verdict, after: str = "") -> str:
    """A claim as an item of a list: outcome, text and number of contrasts."""
    look, symbol = LOOKS[judged.outcome]
    number = sum(contrast_counts(judged).values())
    return (
        f'<li class="{look}"><span class="outcome">{symbol} {escape(judged.outcome)}</span>: '
        f'{escape(claim.text)} <span class="soft">({number} contrast{"s" * (number != 1)})</span>'
        f"{after}</li>"
    )


def with_evidence(claim: Claim, judged: Verdict) -> str:
    """A claim as an item of a list, with a folded table of its contrasts."""
    body = [_measured(one) for one in judged.comparisons]
    body += [[*_claimed(one)[:2], "", "", "", "", NOT_TESTED] for one in judged.untested]
    return item(claim, judged, folded("Contrasts", table(Grid(HEAD, body, 2), claim.text)))


def as_json(claim: Claim, judged: Verdict) -> dict[str, Any]:
    """A claim with its verdict as plain values."""
    measured = [asdict(one) | {"outcome": one.outcome} for one in judged.comparisons]
    untested = [{"contrast": asdict(one), "outcome": NOT_TESTED} for one in judged.untested]
    return {
        "claim": claim.text,
        "outcome": judged.outcome,
        "comparisons": [*measured, *untested],
    }


def _measured(one: Comparison) -> list[str]:
    text, claimed, sign = _claimed(one.contrast)
    low, high = sorted(sign * end for end in one.interval)
    numbers = [rounded(sign * one.value), f"{rounded(low)} to {rounded(high)}", str(one.seeds)]
    paired = ("yes" if one.paired else "no") if len(one.contrast.terms) > 1 else ""
    return [text, claimed, *numbers, paired, one.outcome]


def _claimed(contrast: Contrast) -> tuple[str, str, int]:
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
