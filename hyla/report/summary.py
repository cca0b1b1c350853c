"""The first screen: what reproduced and what did not, at what scale, when and at what cost."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from hyla.experiments.declare import Claim, Verdict
from hyla.experiments.judge import IN_PART, NOT_MEASURED, NOT_REPRODUCED, OPEN, REPRODUCED
from hyla.experiments.scales import SCALES
from hyla.report.found import Found
from hyla.report.parts import folded
from hyla.report.text import at, duration, escape, number, shown

MOST = 1e15  # of instances or seconds: more is a mistake, and should not spoil the sum
OUTCOMES = (REPRODUCED, IN_PART, NOT_REPRODUCED, OPEN)
LOOKS = {
    REPRODUCED: ("good", "✓"),
    IN_PART: ("part", "◐"),
    NOT_REPRODUCED: ("bad", "✗"),
    OPEN: ("part", "?"),
    NOT_MEASURED.outcome: ("none", "·"),
}
NAMES = {
    "paper": "the paper's scale",
    "small": "small scale",
    "demo": "the scale of the demonstration",
    "smoke": "smoke scale",
}
BADGES = {
    "paper": "the paper's scale",
    "small": "small scale: not comparable with the paper's numbers",
    "demo": "demonstration: a reduced task, not comparable with the paper's numbers",
    "smoke": "smoke: tiny models, shows only that it works",
    "": "not measured",
}


ABOUT = """
<a href="https://arxiv.org/abs/2406.05816">The paper</a> (Schug et al., ICLR 2025) sees multi-head
attention as a hypernetwork: for every pair of tokens the scores over the heads are a <em>latent
code</em> that configures a small <em>value network</em>. It proposes HYLA, which makes this network
nonlinear, and tests on two tasks whether models solve new combinations of known parts, which were
<em>held out</em> of training: <em>fuzzy logic</em> functions made of terms, to be learned from
examples (measured by R2, the share of variance explained), and <em>SRAVEN</em>, symbolic puzzles
made of rules (measured by the share solved; some fit more than one answer, and the <em>ceiling</em>
is the share that an exact solver gets right with the most probable one). F1 says how well terms or
rules can be read off the codes.
""".strip()

MEANINGS = {
    REPRODUCED: "all comparisons hold, each by more than two standard errors of the difference",
    IN_PART: "some hold, or all by more than one standard error, or all that are measured while "
    "others are not",
    NOT_REPRODUCED: "none holds",
    OPEN: "none holds so far, and some are not measured, or with a single seed",
    NOT_MEASURED.outcome: "there are no rows to compare",
}
JUDGED_OTHERWISE = (
    "Judged otherwise: codes are decoded with an F1 of 50 or more and above shuffled labels (which "
    "alone is in part); fuzzy logic is solved with a mean R2 of 95 or more, and 80 % of SRAVEN "
    "with a mean of 80 (with single seeds in part at best); unknown terms are not "
    "solved where a model explains less than half of what it explains in distribution. With three "
    "seeds two standard errors are lenient: by chance alone one comparison in 11 to 17 would hold. "
    "They are strict too, for only large differences reach them. By this test the paper's own "
    "numbers in table 1 reproduce two of its seven claims on it, four in part and one not."
)


def badge(scale: str) -> str:
    """The scale of results, to be seen at once."""
    return f'<span class="badge {scale or "none"}">{escape(BADGES[scale])}</span>'


def verdict(claim: Claim, judged: Verdict, scale: str, where: str = "") -> str:
    """A claim with its outcome and the evidence; that of a smoke run has no colour.

    where: a link to the experiment, where many claims stand together: there evidence is folded.
    """
    look, sign = LOOKS.get(judged.outcome, LOOKS[NOT_MEASURED.outcome])
    if scale == "smoke" and judged.outcome in OUTCOMES:
        look, sign = "none", "smoke:"
    evidence = f'<span class="evidence">{escape(judged.evidence)}</span>' if judged.evidence else ""
    first, _, rest = judged.evidence.partition(": ")
    if where and rest and judged.outcome in OUTCOMES:
        evidence = folded(f"Evidence: {first}", f'<span class="evidence">{escape(rest)}</span>')
    return (
        f'<li class="{look}"><span class="outcome">{sign} {escape(judged.outcome)}</span>: '
        f"{escape(claim.text)}{where}{evidence}</li>"
    )


def meanings(outcomes: Collection[str]) -> list[str]:
    """What the outcomes mean that occur, a line for each.

    >>> meanings(["not reproduced"])
    ['Not reproduced: none holds.']
    """
    there = [(name, meaning) for name, meaning in MEANINGS.items() if name in outcomes]
    return [f"{name.capitalize()}: {meaning}." for name, meaning in there]


def _outcomes(found: Sequence[Found]) -> set[str]:
    return {name for outcomes in counts(found).values() for name in outcomes}


def counts(found: Sequence[Found]) -> dict[str, dict[str, int]]:
    """How many claims have each outcome, by scale; those not measured are under the scale ""."""
    by_scale: dict[str, Counter[str]] = {}
    for one in filter(_is_counted, found):
        for _, judged in one.verdicts:
            measured = judged.outcome in OUTCOMES
            inside = by_scale.setdefault(one.scale if measured else "", Counter())
            inside[judged.outcome if measured else NOT_MEASURED.outcome] += 1
    return {
        scale: {name: by_scale[scale][name] for name in (*OUTCOMES, NOT_MEASURED.outcome)
                if by_scale[scale][name]}
        for scale in (*SCALES, "")
        if scale in by_scale
    }  # fmt: skip


def _is_counted(found: Found) -> bool:
    """A demonstration that was not run is no claim of the paper's that is missing."""
    return bool(found.scale) or "paper" in found.experiment.scales


def in_words(found: Sequence[Found]) -> list[str]:
    """The counts as sentences, one for each scale."""
    lines = []
    for scale, outcomes in counts(found).items():
        total = sum(outcomes.values())
        if not scale:
            lines.append(f"{total} claims of the paper are not measured.")
            continue
        parts = ", ".join(f"{count} {name}" for name, count in outcomes.items())
        if scale == "smoke":
            lines.append(f"{total} claims have smoke results only, which say nothing about them.")
        else:
            lines.append(f"At {NAMES[scale]}: {parts} (of {total} judged).")
    return lines or ["There are no claims to judge."]


def first_screen(found: Sequence[Found]) -> str:
    """All verdicts, grouped, after a few lines."""
    lines = "".join(f'<p class="lead">{escape(line)}</p>' for line in in_words(found))
    parts = [
        "<h1>Attention as a Hypernetwork: a reproduction</h1>",
        f"<p>{ABOUT}</p>",
        lines,
        f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in meanings(_outcomes(found)))}</ul>",
        f"<p>{JUDGED_OTHERWISE}</p>",
        _facts(found),
        *_groups(found),
    ]
    return f"<header>{''.join(parts)}</header>"


def _groups(found: Sequence[Found]) -> Iterable[str]:
    for scale in ("paper", "small", "demo"):
        inside = _verdicts(found, OUTCOMES, scale)
        if inside:
            yield f"<h2>Verdicts {badge(scale)}</h2><ul class='verdicts'>{inside}</ul>"
    smoke = _verdicts(found, OUTCOMES, "smoke")
    if smoke:
        yield folded("Verdicts on smoke results", f"<ul class='verdicts'>{smoke}</ul>")
    rest = _verdicts(list(filter(_is_counted, found)), (NOT_MEASURED.outcome,), None)
    if rest:
        count = counts(found)[""][NOT_MEASURED.outcome]
        yield folded(f"Claims not measured: {count}", f"<ul class='verdicts'>{rest}</ul>")


def _verdicts(found: Sequence[Found], outcomes: Sequence[str], scale: str | None) -> str:
    chosen = [
        (one, claim, judged)
        for outcome in outcomes
        for one in found
        if scale is None or one.scale == scale
        for claim, judged in one.verdicts
        if judged.outcome == outcome
    ]
    return "".join(verdict(claim, judged, one.scale, _link(one)) for one, claim, judged in chosen)


def _link(found: Found) -> str:
    experiment = found.experiment
    text = escape(f"{experiment.title}, {experiment.where}")
    return f' (<a class="where" href="#{escape(experiment.name)}">{text}</a>)'


def _facts(found: Sequence[Found]) -> str:
    rows = [row for one in found for row in one.rows]
    scales = Counter(one.scale for one in found if one.scale)
    facts = {
        "scale": "; ".join(
            f"{scales[scale]} of {_number_with(found, scale)} experiments begun at {NAMES[scale]}"
            for scale in SCALES
            if scales[scale]
        ),
        "results": _dates(row.get("date") for row in rows),
        "device": _distinct(row.get("device") for row in rows),
        "versions": "; ".join(
            f"{name} {_distinct(at(row, 'versions', name) for row in rows)}"
            for name in ("hyla", "torch", "python", "cuda")
            if _distinct(at(row, "versions", name) for row in rows)
        ),
        "cost": _cost(found),
    }
    items = "".join(f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in facts.items() if v)
    return f'<dl class="facts">{items}</dl>' if items else ""


def _number_with(found: Sequence[Found], scale: str) -> int:
    """How many experiments can be run at a scale."""
    return sum(scale in one.experiment.scales for one in found)


def _distinct(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(shown(value) for value in values if value))


def _dates(dates: Iterable[object]) -> str:
    days = [date for date in dates if isinstance(date, str)]
    if not days:
        return ""
    first, last = min(days), max(days)
    return last if first == last else f"{first} to {last}"


def _cost(found: Sequence[Found]) -> str:
    """What training took; rows that are made of the same runs are counted once."""
    costs = {}
    for one in found:
        for row in one.rows:
            seconds, runs = number(row.get("seconds")), row.get("runs")
            members, instances = number(row.get("members")), number(row.get("instances"))
            if isinstance(runs, list) and None not in (numbers := (seconds, members, instances)):
                names = sorted(shown(run) for run in runs)
                costs[one.scale, *names] = tuple(min(value or 0.0, MOST) for value in numbers)
    if not costs:
        return ""
    seconds = sum(cost[0] for cost in costs.values())
    members = sum(cost[1] for cost in costs.values())
    instances = sum(cost[1] * cost[2] for cost in costs.values())
    text = f"{duration(seconds)} of training: {shown(int(members))} models, "
    return text + f"{shown(int(instances))} instances in all"
