"""From a store to rows: which setting is chosen, what is missing, what a point shows.

These functions are pure: they train nothing and write nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from statistics import mean

from hyla.errors import unknown_name
from hyla.experiments.spec import (
    TRAINING_LOSS,
    VALIDATION_LOSS,
    Analysis,
    Axes,
    Experiment,
    Plan,
    Point,
    Row,
)
from hyla.statistics import Sample
from hyla.tasks.base import AS_DESCRIBED, Measure, TaskConfig
from hyla.tasks.published import AS_PUBLISHED
from hyla.train.config import Member, RunConfig
from hyla.train.store import Analysed, Entry, Search, Store, Trained
from hyla.train.training import Training, describe_task, digest

DEFAULT_PLAN = Plan()


def shown_measures(task: TaskConfig) -> dict[str, tuple[str, Measure]]:
    """Return the splits and measures of a task by the titles that rows and figures have for them.

    The main measure on each split, the headline first; the others on the headline alone.
    """
    main, *others = (*task.measures, *map(Measure, task.metrics))
    headline = task.splits[task.headline]
    named = {
        name: split for name, split in task.splits.items() if split.title and not split.selects
    }
    order = sorted(named, key=lambda name: name != task.headline)
    return {named[name].title: (name, main) for name in order} | {
        f"{headline.title}, {one.title or one.name}": (task.headline, one) for one in others
    }


def measure(one: Trained, name: str, task: TaskConfig) -> float | None:
    """Return a measure of a training, by its title; None if it is missing."""
    if name == TRAINING_LOSS:
        return one.loss
    if name == VALIDATION_LOSS:
        return one.measure(task.selecting_split, "loss")
    split, shown = shown_measures(task)[name]
    value = one.measure(split, shown.name)
    return _percent(value) if shown.percent else value


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def find(point: Point, setting: Member, seed: int, plan: Plan, store: Store) -> Trained | None:
    """Look up the training of a point with this setting and seed."""
    assert point.config is not None
    training = Training.of(point.config, replace(setting, seed=seed))
    return store.get(training, plan.precision)


def choose(point: Point, plan: Plan, store: Store) -> tuple[Member, Search] | None:
    """Choose the setting of a point; None if that needs more trainings.

    Compares the mean cost over the seeds on which every setting was trained. A setting with fewer
    diverged trainings wins. A recorded choice that rests on more seeds takes precedence.
    """
    if plan.setting is not None or len(point.settings) == 1:
        return plan.setting or point.settings[0], Search(1, plan.least_seeds)
    costs: dict[Member, list[float]] = {setting: [] for setting in point.settings}
    for seed in range(plan.least_seeds):
        each = [_cost(point, find(point, setting, seed, plan, store), plan) for setting in costs]
        known = [cost for cost in each if cost is not None]
        if len(known) < len(costs):
            break
        for values, cost in zip(costs.values(), known, strict=True):
            values.append(cost)
    searched, needed = len(next(iter(costs.values()))), plan.search_seeds or 1
    enough = max(searched + 1, plan.search_seeds or 0)
    for setting in costs if plan.choose_by == VALIDATION_LOSS else ():
        for seed in range(plan.least_seeds):
            one = find(point, setting, seed, plan, store)
            if one and one.chosen and one.chosen.seeds >= enough:
                return setting, one.chosen
    if searched < needed:
        return None
    return min(costs, key=lambda setting: _order(costs[setting])), Search(len(costs), searched)


def _cost(point: Point, one: Trained | None, plan: Plan) -> float | None:
    """Return what a choice minimises; None if it was not measured."""
    if one is None or point.config is None:
        return None
    if one.diverged_at is not None:
        return inf
    task = point.config.task
    if plan.choose_by == VALIDATION_LOSS:
        return measure(one, VALIDATION_LOSS, task)
    value = measure(one, task.splits[task.headline].title, task)
    return -value if value is not None and task.measures[0].higher_is_better else value


def _order(costs: Sequence[float]) -> tuple[int, float]:
    there = [cost for cost in costs if cost < inf]
    return len(costs) - len(there), mean(there) if there else inf


def missing(point: Point, plan: Plan, store: Store) -> list[Member]:
    """List the population to train next: the search first, then the other seeds of its choice."""
    if point.config is None:
        return []
    chosen = choose(point, plan, store)
    if chosen is None:
        wanted = [(s, seed) for s in point.settings for seed in range(plan.search_seeds or 1)]
    else:
        wanted = [(chosen[0], seed) for seed in range(plan.least_seeds)]
    there = {place: find(point, *place, plan, store) for place in wanted}
    return [replace(setting, seed=seed) for (setting, seed), one in there.items() if one is None]


def trainings_left(point: Point, plan: Plan, store: Store) -> int:
    """Count the trainings that a point still needs, those after the search included."""
    searching = point.config is not None and choose(point, plan, store) is None
    later = plan.least_seeds - (plan.search_seeds or 1)
    return len(missing(point, plan, store)) + searching * later


def chosen_trainings(point: Point, plan: Plan, store: Store) -> dict[int, Trained]:
    """Return the trainings of the chosen setting by seed: as many as planned, or all there are."""
    chosen = choose(point, plan, store) if point.config is not None else None
    if chosen is None:
        return {}
    found: dict[int, Trained] = {}
    seed = 0
    while True:
        one = find(point, chosen[0], seed, plan, store)
        if seed >= plan.least_seeds and (plan.seeds is not None or one is None):
            return found
        if one is not None:
            found[seed] = one
        seed += 1


def is_complete(point: Point, plan: Plan, store: Store) -> bool:
    """Whether a point has a training and every analysis, at least of one seed."""
    found = chosen_trainings(point, plan, store)
    if point.config is not None and not found:
        return False
    return all(
        any(
            store.analysis(key, analysis.name, analysis.settings)
            for key in subjects(point, analysis, plan, found).values()
        )
        for analysis in point.analyses
    )


def rows(point: Point, plan: Plan, store: Store) -> list[Row]:
    """Make the rows of a point: one of its trainings, or those of the analyses of their weights."""
    found = chosen_trainings(point, plan, store)
    if point.config is not None and not found:
        return []
    base, more = _trained_row(point, plan, store, found), list[Row]()
    for analysis in point.analyses:
        by_seed = {
            seed: analysed
            for seed, key in subjects(point, analysis, plan, found).items()
            if (analysed := store.analysis(key, analysis.name, analysis.settings))
        }
        for row in _analysed_rows(base, by_seed):
            if row.axes == base.axes:
                measures = {**base.measures, **row.measures}
                details = {**base.details, **row.details}
                seeds = base.seeds or row.seeds
                base = replace(base, measures=measures, details=details, seeds=seeds)
            else:
                more.append(row)
    if more or any(one.of == "weights" for one in point.analyses):
        return more
    return [base] if base.measures else []


def _trained_row(point: Point, plan: Plan, store: Store, found: dict[int, Trained]) -> Row:
    row = Row(dict(point.axes), paper=point.paper, preset=point.preset)
    if point.config is None:
        return row
    ones, config = tuple(found.values()), point.config
    chosen = choose(point, plan, store)
    assert chosen is not None
    task = config.task
    shown = shown_measures(task)
    names = [name for name, (split, _) in shown.items() if split in config.splits]
    names.append(TRAINING_LOSS)
    grouped = [one.evaluation.get(task.headline, {}) for one in ones]
    groups = [n for n, value in (grouped[0] if grouped else {}).items() if isinstance(value, dict)]
    details = {}
    for name in groups:
        each = [one.get(name) or {} for one in grouped]
        details[name] = {
            part: Sample(tuple(_percent(one.get(part)) for one in each))
            for part in dict.fromkeys(part for one in each for part in one)
        }
    return replace(
        row,
        measures={n: Sample(tuple(measure(one, n, task) for one in ones)) for n in names},
        details={name: by_rule for name, by_rule in details.items() if by_rule},
        seeds=tuple(found),
        kind=config.model.kind,
        setting=chosen[0],
        search=chosen[1] if len(point.settings) > 1 else None,
        trainings=ones,
    )


def _analysed_rows(base: Row, by_seed: dict[int, Analysed]) -> Iterator[Row]:
    """Make a row of all entries with the same axes, one entry for each seed."""
    grouped: dict[str, dict[int, Entry]] = {}
    for seed, analysed in by_seed.items():
        for entry in analysed.values:
            grouped.setdefault(repr(sorted(entry.axes.items())), {})[seed] = entry
    for group in grouped.values():
        each = list(group.values())
        yield replace(
            base,
            axes={**base.axes, **each[0].axes},
            measures={
                name: Sample(
                    tuple(one.measures.get(name) for one in each), each[0].errors.get(name)
                )
                for name in dict.fromkeys(name for one in each for name in one.measures)
            },
            details={
                title: {
                    name: Sample(tuple(one.details.get(title, {}).get(name) for one in each))
                    for name in dict.fromkeys(n for one in each for n in one.details.get(title, {}))
                }
                for title in dict.fromkeys(title for one in each for title in one.details)
            },
            seeds=tuple(group),
            picture=next((one.picture for one in each if one.picture), {}),
            frozen=any(by_seed[seed].frozen for seed in group),
        )


def subjects(
    point: Point, analysis: Analysis, plan: Plan, found: dict[int, Trained]
) -> dict[int, str]:
    """Return the keys of what is analysed, by seed."""
    if analysis.of == "weights":
        return {seed: one.key for seed, one in found.items() if one.diverged_at is None}
    task = point.task if point.config is None else point.config.task
    seeds = [0] if analysis.of == "task" else list(found) or list(range(plan.least_seeds))
    return {seed: digest(describe_task(task) | {"seed": seed}) for seed in seeds}


def all_rows(experiment: Experiment, store: Store, plan: Plan = DEFAULT_PLAN) -> list[Row]:
    """Make all rows of an experiment for which the store has results."""
    return [row for point in points_of(experiment) for row in rows(point, plan, store)]


def rows_as_published(
    experiment: Experiment,
    store: Store,
    only: dict[str, tuple[str, ...]] | None = None,
    default: Plan = DEFAULT_PLAN,
) -> list[Row]:
    """Make rows of trainings as published: without a grid, of the setting chosen as described."""
    found: list[Row] = []
    if AS_PUBLISHED not in presets_of(experiment):
        return found
    pairs = zip(
        points_of(experiment, only), points_of(experiment, only, preset=AS_PUBLISHED), strict=True
    )
    for described, point in pairs:
        if point.config is None:
            continue
        plan = default
        if choose(point, plan, store) is None and (chosen := choose(described, plan, store)):
            plan = replace(plan, setting=chosen[0])
        found += (row for row in rows(point, plan, store) if row.trainings)
    return found


def presets_of(experiment: Experiment) -> list[str]:
    """Return the presets that all trainings of an experiment have."""
    configs = [point.config for point in experiment.points() if point.config is not None]
    first = configs[0].task.presets if configs else (AS_DESCRIBED,)
    return [name for name in first if all(name in one.task.presets for one in configs)]


def points_of(
    experiment: Experiment,
    only: dict[str, tuple[str, ...]] | None = None,
    tiny: bool = False,
    preset: str = AS_DESCRIBED,
) -> list[Point]:
    """Return the points of an experiment with these values of axes, as they are trained."""
    points = experiment.points()
    if tiny:
        chosen = experiment.tiny.items()
        points = [p for p in points if all(p.axes[axis] in values for axis, values in chosen)]
    for axis, values in (only or {}).items():
        known = [str(value) for value in dict.fromkeys(p.axes.get(axis) for p in points)]
        if axis not in points[0].axes:
            raise unknown_name(f"only, axis of {experiment.name}", axis, list(points[0].axes))
        for value in values:
            if value not in known:
                raise unknown_name(f"only, {axis} of {experiment.name}", value, known)
        points = [point for point in points if str(point.axes[axis]) in values]
    return [_prepared(point, tiny, preset) for point in points]


def _prepared(point: Point, tiny: bool, preset: str) -> Point:
    """Add the validation split and what the preset says; `tiny`: a few steps of small models."""
    analyses = tuple(
        replace(one, settings=one.settings | TINY_ANALYSIS.get(one.name, {})) if tiny else one
        for one in point.analyses
    )
    config = point.config
    if config is not None:
        task = config.task
        config = replace(config, splits=(*config.splits, task.selecting_split))
        if preset not in task.presets:
            raise unknown_name("preset", preset, task.presets)
        config = task.presets[preset](config)
        config = _tiny(config) if tiny else config
    return replace(point, config=config, analyses=analyses, preset=preset)


TINY_ANALYSIS = {
    "codes": {"instances": 256, "mapped": 40, "shuffles": 1},
    "fuzzy reader": {"instances": 64},
    "sraven reader": {"instances": 64},
    "solver": {"instances": 256},
    "ambiguity": {"instances": 512},
}


def _tiny(config: RunConfig) -> RunConfig:
    """Four steps of a small model and two settings; wider and deeper models stay so."""
    model, members = config.model, [replace(m, warmup=1) for m in config.members]
    width = model.width // 8
    small = replace(
        model, layers=max(2, model.layers // 2), width=width, heads=min(model.heads, 4),
        head_size=min(model.head_size, 4), hidden_size=width,
    )  # fmt: skip
    return replace(
        config, model=small, members=tuple(dict.fromkeys((members[0], members[-1]))), steps=4,
        batch=8, log_every=2, evaluate_every=2, interim_instances=16, evaluation_instances=64,
    )  # fmt: skip


def place_name(axes: Axes) -> str:
    """Name a place by the values of its axes.

    >>> place_name({"kind": "hyla", "heads": 4})
    'kind hyla, heads 4'
    """
    return ", ".join(f"{axis} {value}" for axis, value in axes.items())
