"""The first screen: which claims hold, and how the results were made."""

from collections.abc import Iterable, Sequence

from hyla.experiments.judge import NOT_TESTED, OUTCOMES
from hyla.report.found import Content, Found
from hyla.report.parts import folded, problem
from hyla.report.text import duration, escape
from hyla.report.verdicts import MEANINGS, METHOD, counts, item

DEMO_BADGE = "demonstration: a reduced task, not comparable with the paper's numbers"
ABOUT = """
<a href="https://arxiv.org/abs/2406.05816">The paper</a> (Schug et al., ICLR 2025) views multi-head
attention as a hypernetwork. For each pair of tokens, the attention scores over heads form a
<em>latent code</em> that configures a small <em>value network</em>. The paper proposes HYLA, which
makes this network nonlinear. Two tasks test generalisation to combinations of known parts that were
<em>held out</em> of training. In <em>fuzzy logic</em>, models learn functions in context; the
measure is R2. <em>SRAVEN</em> is a symbolic version of Raven's matrices; the measure is accuracy.
Some SRAVEN instances have several valid answers, so the <em>ceiling</em> is the accuracy of an
exact solver. F1 measures how well terms or rules can be decoded from latent codes.
""".strip()


def badge(found: Found) -> str:
    """Mark a demonstration."""
    is_demo = found.experiment.is_demo
    return f'<span class="badge">{escape(DEMO_BADGE)}</span>' if is_demo else ""


def in_words(found: Sequence[Found]) -> str:
    """The number of claims with each outcome."""
    outcomes = counts(found)
    parts = ", ".join(f"{count} {name}" for name, count in outcomes.items() if count)
    return f"{sum(outcomes.values())} claims of the paper: {parts}."


def first_screen(content: Content) -> str:
    """All verdicts by outcome, below a short introduction."""
    paper = [one for one in content.found if not one.experiment.is_demo]
    demos = [one for one in content.found if one.experiment.is_demo]
    tested = [outcome for outcome in OUTCOMES if outcome != NOT_TESTED]
    meanings = "".join(
        f"<li><strong>{name}</strong>: {text}</li>" for name, text in MEANINGS.items()
    )
    untested = _verdicts(paper, [NOT_TESTED])
    parts = [
        "<h1>Attention as a Hypernetwork: a reproduction</h1>",
        f"<p>{ABOUT}</p>",
        f'<p class="lead">{escape(in_words(content.found))}</p>',
        *map(problem, content.problems),
        f"<p>{escape(METHOD)}</p><ul>{meanings}</ul>",
        _facts(content.found),
        "<h2>Claims</h2>",
        _verdicts(paper, tested),
        folded(f"Claims not tested: {counts(paper)[NOT_TESTED]}", untested) if untested else "",
        f"<h2>Demonstration {badge(demos[0])}</h2>{_verdicts(demos, OUTCOMES)}" if demos else "",
    ]
    return f"<header>{''.join(parts)}</header>"


def _verdicts(found: Sequence[Found], outcomes: Sequence[str]) -> str:
    items = [
        item(claim, judged, _link(one))
        for outcome in outcomes
        for one in found
        for claim, judged in one.verdicts
        if judged.outcome == outcome
    ]
    return f'<ul class="verdicts">{"".join(items)}</ul>' if items else ""


def _link(found: Found) -> str:
    experiment = found.experiment
    text = escape(f"{experiment.title}, {experiment.where}")
    return f' <a class="where" href="#{escape(experiment.name)}">{text}</a>'


def _facts(found: Sequence[Found]) -> str:
    """Dates, devices, versions and cost of the trainings behind the results."""
    trainings = [one for each in found for row in each.rows for one in row.trainings]
    origins = [one.origin for one in trainings]
    days = sorted(origin.date[:10] for origin in origins if origin.date)
    versions = {
        name: _distinct(origin.versions.get(name) for origin in origins)
        for name in ("hyla", "torch", "python", "cuda")
    }
    runs = {one.run: one.origin.seconds for one in trainings}
    known = [seconds for seconds in runs.values() if seconds is not None]
    facts = {
        "trained": " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "",
        "device": _distinct(origin.device for origin in origins),
        "versions": "; ".join(f"{name} {value}" for name, value in versions.items() if value),
        "models": f"{len({one.key for one in trainings})}" if trainings else "",
        "training time": f"{duration(sum(known))} ({len(known)} of {len(runs)} runs recorded it)"
        if known
        else "",
    }
    items = "".join(f"<dt>{name}</dt><dd>{escape(v)}</dd>" for name, v in facts.items() if v)
    return f'<dl class="facts">{items}</dl>' if items else ""


def _distinct(values: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))
