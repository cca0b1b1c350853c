"""Which runs a point is made of: its grid on all seeds, or on one and the best on the others.

Where a search costs too much, one setting of the grid can be named in its place.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from hyla.errors import bad_value, unknown_name
from hyla.experiments.declare import Point
from hyla.experiments.rows import FinishedRun, Settings, choose, members_of
from hyla.experiments.scales import settings
from hyla.train.config import Member, RunConfig
from hyla.train.runs import folder_name

SEARCHES = {
    "full": "every setting on every seed",
    "first-seed": "every setting on the first seed, the other seeds at the best of them",
}
ONE_SETTING = "LEARNING_RATE,WEIGHT_DECAY,WARMUP"  # is no search: that setting on every seed


def setting_of(search: str) -> Settings | None:
    """The setting that stands in the place of a search.

    >>> setting_of("3e-4,0.3,1000"), setting_of("full")
    ((0.0003, 0.3, 1000), None)
    """
    try:
        rate, decay, warmup = map(float, search.split(","))
    except ValueError:
        return None
    return (rate, decay, int(warmup)) if warmup.is_integer() else None


def read_search(text: str) -> str:
    """A search as it is written in results; ValueError if it is none.

    >>> read_search("3e-4,0.30,1000")
    '0.0003,0.3,1000'
    """
    if not isinstance(text, str):
        raise bad_value("search", text, "a text")
    if text in SEARCHES:
        return text
    if "," not in text:
        raise unknown_name("search", text, (*SEARCHES, f"{ONE_SETTING} such as 3e-4,0.3,1000"))
    setting = setting_of(text)
    if setting is None:
        raise bad_value("search", text, f"{ONE_SETTING}, three numbers such as 3e-4,0.3,1000")
    return written(setting)


def written(setting: Sequence[object]) -> str:
    """A setting as it is named in the place of a search."""
    return ",".join(map(str, setting))


def populations(config: RunConfig, search: str) -> list[RunConfig]:
    """The runs of a point that do not depend on results: one for each warm-up.

    So experiments whose grids differ in warm-ups share the runs that they have in common.
    """
    members = config.members
    if search == "first-seed":
        first = min(member.seed for member in members)
        members = tuple(member for member in members if member.seed == first)
    elif setting := setting_of(search):
        members = tuple(member for member in members if settings(member) == setting)
        if not members:
            known = dict.fromkeys(written(settings(member)) for member in config.members)
            raise bad_value("search", search, f"a setting of the grid: {' or '.join(known)}")
    warmups = dict.fromkeys(member.warmup for member in members)
    return [replace(config, members=_with(members, warmup)) for warmup in warmups]


def _with(members: Sequence[Member], warmup: int) -> tuple[Member, ...]:
    return tuple(member for member in members if member.warmup == warmup)


def other_seeds(config: RunConfig, runs: Sequence[FinishedRun]) -> RunConfig | None:
    """The run of the seeds that a search on the first seed left out, at the best setting."""
    best = choose(members_of(runs))[0].settings
    done = {member.seed for run in runs for member in run.config.members}
    return at_setting(config, best, done)


def at_setting(config: RunConfig, best: Settings, done: Collection[int]) -> RunConfig | None:
    """The run of all seeds but those that are done, at one setting."""
    members = [m for m in config.members if settings(m) == best and m.seed not in done]
    return replace(config, members=tuple(members)) if members else None


def run_names(point: Point, search: str) -> set[str]:
    """The folders of the runs that a point begins with."""
    parts = [] if point.config is None else populations(point.config, search)
    return {folder_name(part) for part in parts}


def models(config: RunConfig, search: str) -> int:
    """How many a search trains."""
    first = sum(len(part.members) for part in populations(config, search))
    others = len({member.seed for member in config.members}) - 1
    return first + others if search == "first-seed" else first
