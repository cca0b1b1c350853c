"""How far an experiment has come, and what it costs."""

from collections import Counter
from dataclasses import dataclass

from hyla.experiments.declare import Experiment
from hyla.experiments.results import is_at, read_rows
from hyla.experiments.reuse import has_more_seeds, made_before
from hyla.experiments.runner import Options, chosen_points, h200_seconds, made_with
from hyla.experiments.search import models, populations
from hyla.train.runs import folder_name


@dataclass(frozen=True)
class Status:
    """How far an experiment has come at a scale.

    measured: points with rows. as_asked: those of them that were made with the options given, so
    that they would not be trained again. others: with which options how many of the rest were made.
    begun: points without rows, with a run folder. members, instances, hours: of all points
    together, from the beginning; the hours are a rough estimate for one H200.
    """

    points: int
    measured: int
    as_asked: int
    others: dict[str, int]
    begun: int
    members: int
    instances: int
    hours: float
    problem: str = ""


def status(experiment: Experiment, options: Options) -> Status:
    """How far an experiment has come, without opening a checkpoint."""
    points = chosen_points(experiment, options)
    file = options.file(experiment.name)
    problem, rows = "", []
    try:
        rows = read_rows(file)
    except (OSError, ValueError) as error:
        problem = str(error)
    measured = [p for p in points if any(is_at(row, p.axes) for row in rows)]
    asked = [
        p
        for p in measured
        if made_before(p, rows, options.search)
        or any(is_at(row, p.axes) and has_more_seeds(row, options.seeds) for row in rows)
    ]
    others = (next(r for r in rows if is_at(r, p.axes)) for p in measured if p not in asked)
    rest = [point for point in points if point not in measured]
    root = options.runs / options.scale
    begun = 0
    for point in rest:
        parts = populations(point.config, options.search) if point.config else []
        begun += any((root / folder_name(part)).exists() for part in parts)
    configs = [point.config for point in points if point.config is not None]
    members = [models(config, options.search) for config in configs]
    work = zip(members, configs, strict=True)
    return Status(
        len(points),
        len(measured),
        len(asked),
        dict(Counter(map(made_with, others))),
        begun,
        sum(members),
        sum(count * config.steps * config.batch for count, config in work),
        sum(h200_seconds(config, options.search) for config in configs) / 3600,
        problem,
    )
