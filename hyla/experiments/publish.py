"""Published results: trainings and analyses are appended, the tables are exported from them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hyla.experiments.rows import all_rows, points_of, presets_of, rows_as_published
from hyla.experiments.spec import Experiment, Point, Row
from hyla.files import new_file, to_json
from hyla.records import SCHEMA, append_records, plain
from hyla.statistics import Sample
from hyla.tasks.base import task_class
from hyla.train.store import ANALYSES, TRAININGS, Analysed, Store, Trained, with_curves
from hyla.train.training import Training, describe_task, digest

VARIED = ("seed", "learning_rate", "weight_decay", "warmup", "precision")


def publish(
    experiments: Iterable[Experiment],
    runs: Path,
    results: Path,
    only: dict[str, tuple[str, ...]] | None = None,
) -> dict[str, int]:
    """Append the local trainings and analyses of experiments to `results`, and export the tables.

    only: values of axes. Nothing that is published is changed. Returns how many records were added
    to each file.
    """
    experiments = list(experiments)
    local, published = Store.open(runs, None), Store.open(None, results)
    points = [
        point
        for one in experiments
        for preset in presets_of(one)
        for point in points_of(one, only, preset=preset)
    ]
    trained = _trained_of(points, local)
    known = {(one.key, one.run, one.member) for one in published.published}
    new = [one for one in trained if (one.key, one.run, one.member) not in known]
    added = append_records(
        results / TRAININGS,
        (with_curves(one, task_class(one.description["task"])) for one in new),
    )
    analysed = [
        replace(one, frozen=bool(one.run))  # the weights stay in the run folder
        for one in _analysed_of(points, trained, local)
        if published.analysis(one.key, one.analysis, one.settings) is None
    ]
    counts = {TRAININGS: added, ANALYSES: append_records(results / ANALYSES, analysed)}
    export(experiments, results)
    return counts


def _trained_of(points: Sequence[Point], local: Store) -> list[Trained]:
    """Select the trainings of these points, whatever their hyperparameters, seed and precision."""
    wanted = [
        _without_varied(Training.of(point.config, point.config.members[0]).description)
        for point in points
        if point.config is not None
    ]
    return [one for one in local.local if _without_varied(one.description) in wanted]


def _without_varied(description: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in description.items() if name not in VARIED}


def _analysed_of(
    points: Sequence[Point], trained: Sequence[Trained], local: Store
) -> list[Analysed]:
    """Select the analyses of these trainings, and of the data of these points."""
    seeds = range(max([2, *(one.description["seed"] for one in trained)]) + 1)
    tasks = (point.task if point.config is None else point.config.task for point in points)
    keys = {one.key for one in trained}
    keys |= {digest(describe_task(task) | {"seed": seed}) for task in tasks for seed in seeds}
    wanted = [(one.name, one.settings) for point in points for one in point.analyses]
    return [
        one for one in local.analysed if one.key in keys and (one.analysis, one.settings) in wanted
    ]


def export(experiments: Iterable[Experiment], results: Path) -> list[Path]:
    """Write the published rows of each experiment to `results/NAME.json`; return the files."""
    store, written = Store.open(None, results), []
    for experiment in experiments:
        path = results / f"{experiment.name}.json"
        found = [*all_rows(experiment, store), *rows_as_published(experiment, store)]
        if not found:
            continue
        lines = ",\n".join(to_json(as_json(row)) for row in found)
        text = f'{{"schema": {SCHEMA}, "experiment": "{experiment.name}", "rows": [\n{lines}\n]}}\n'
        if not path.exists() or path.read_text() != text:
            with new_file(path, overwrite=True) as handle:
                handle.write(text.encode())
        written.append(path)
    return written


def as_json(row: Row) -> dict[str, Any]:
    """A row as it is exported: its axes, and numbers in percent unless they are losses.

    Pictures (maps and matrices) stay in the store.
    """
    values: dict[str, Any] = {**row.axes, **({"kind": row.kind} if row.kind else {})}
    values |= {"preset": row.preset} if row.trainings else {}
    values |= {"measure": next(iter(row.measures), None)} | _sample(row.main)
    values["seeds"] = list(row.seeds)
    if row.paper:
        values["paper"] = {"mean": row.paper[0], "standard_error": row.paper[1]}
    if row.setting:
        values["setting"] = {n: v for n, v in vars(row.setting).items() if n != "seed"}
        values["search"] = plain(row.search)
        values["precisions"] = row.precisions
    values["measures"] = {name: _sample(sample) for name, sample in row.measures.items()}
    values["details"] = {
        title: {name: _sample(sample) for name, sample in group.items()}
        for title, group in row.details.items()
    }
    return values


def _sample(sample: Sample) -> dict[str, Any]:
    return {"per_seed": sample.per_seed, "mean": sample.mean, "interval": sample.interval}
