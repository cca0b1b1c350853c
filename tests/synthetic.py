"""Synthetic results of every experiment, for tests of the report."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from stores import made

from hyla.experiments import EXPERIMENTS
from hyla.experiments.paper.baselines import CEILING
from hyla.experiments.paper.latent_codes import (
    ABOVE,
    ALL_PAIRS,
    CONTROL,
    EXPLAINED,
    F1,
    RELATED,
    UNTRAINED,
)
from hyla.experiments.rows import DEFAULT_PLAN, points_of, subjects
from hyla.experiments.spec import (
    HELD_OUT,
    IN_DISTRIBUTION,
    UNKNOWN,
    Analysis,
    Experiment,
    Point,
)
from hyla.records import append_records
from hyla.report.content import Results, collect
from hyla.tasks.sraven import RULES
from hyla.train.store import ANALYSES, TRAININGS, Analysed, Entry, Origin, Search, Store, Trained

Records = tuple[list[Trained], list[Analysed]]
HOSTILE = """</script><img src=x onerror=alert(1)><b>bold</b><a href="https://example.org">"'&amp;$x$\ud800"""
SEEDS, POINTS = 3, 60  # of a row, of a map


def records(experiment: Experiment, extra: str = "", seeds: int = SEEDS) -> Records:
    """Results of every point of an experiment. extra: appended to all texts from files."""
    rng = random.Random(experiment.name)
    trained, analysed = [], []
    for point in points_of(experiment):
        found = _trainings(point, rng, extra, seeds) if point.config is not None else {}
        trained += found.values()
        for analysis in point.analyses:
            for seed, key in subjects(point, analysis, DEFAULT_PLAN, found).items():
                values = tuple(_entries(point, analysis, seed, rng, extra))
                analysed.append(Analysed(key, analysis.name, analysis.settings, values))
    return list(trained), analysed


def _trainings(point: Point, rng: random.Random, extra: str, seeds: int) -> dict[int, Trained]:
    found = {}
    for seed in range(seeds):
        one = made(point, point.settings[0], seed, held_out=rng.uniform(0.5, 0.7))
        evaluation = one.evaluation | {"unknown": {"r2": 0.1}}
        if point.config.task_name == "sraven":
            rules = {f"{rule}{extra}": rng.random() for rule in RULES}
            evaluation["held_out"] = evaluation["held_out"] | {"accuracy_by_rule": rules}
        origin = Origin("2026-11-15", f"NVIDIA H200{extra}", {"torch": f"2.11{extra}"}, 100.0)
        chosen, run = Search(4, 3), f"run-{one.key[:8]}{extra}"
        found[seed] = replace(one, run=run, evaluation=evaluation, origin=origin, chosen=chosen)
    return found


def _entries(
    point: Point, analysis: Analysis, seed: int, rng: random.Random, extra: str
) -> Iterator[Entry]:
    if analysis.name == "codes":
        yield from _codes(point, analysis.settings, seed, rng, extra)
    elif analysis.name == "ambiguity":
        names = ("ambiguous", CEILING, "log10 of tasks", "log10 of possible instances")
        yield Entry(measures={name: rng.gauss(20, 1) for name in names}, errors={"ambiguous": 0.2})
    elif analysis.name == "solver":
        yield Entry(measures={CEILING: 92.9}, details={"solver": dict.fromkeys(RULES, 97.0)})
    else:
        names = (HELD_OUT, IN_DISTRIBUTION, UNKNOWN)
        yield Entry(measures={name: rng.gauss(40, 1) for name in names})


def _codes(
    point: Point, settings: dict[str, Any], seed: int, rng: random.Random, extra: str
) -> Iterator[Entry]:
    (axis,) = {"fixed", "keys"} & settings.keys()
    way, is_rules, layers = {axis: settings[axis]}, axis == "keys", point.config.model.layers
    labels = [f"{rule}{extra}" for rule in RULES] if is_rules else ["term 1", "term 2"]
    colours = ("target", "rule") if is_rules else ("target", "function", *labels)
    for layer in {0, layers // 2, layers - 1}:
        place = {**way, "layer": layer}
        for what, label in product(("decoding", "answers")[: 1 + is_rules], ("all", *labels)):
            measures = {F1: rng.gauss(60, 3), CONTROL: rng.gauss(10, 1)}
            yield Entry({"what": what, **place, "label": label}, measures)
        for label in ("rule" if is_rules else "function", "value"):
            share = {EXPLAINED: rng.gauss(30, 3)}
            yield Entry({"what": "explained", **place, "label": label}, share)
        if seed == 0:
            x, y = ([rng.gauss(0, 9) for _ in range(POINTS)] for _ in range(2))
            names = [f"{rng.randrange(20)}{extra}" for _ in x]
            picture = {"x": x, "y": y, "colours": dict.fromkeys(colours, names)}
            yield Entry({"what": "map", **place, "label": ""}, picture=picture)
    picture = {"labels": labels, "matrix": [[rng.gauss(0, 1) for _ in RULES] for _ in labels]}
    for what in ("similarity", "mean codes", "samples") if is_rules else ():
        names = (RELATED, ALL_PAIRS, ABOVE, UNTRAINED) if what == "similarity" else ()
        place = {"what": what, **way, "layer": layers - 1, "label": ""}
        yield Entry(place, {name: rng.gauss(40, 2) for name in names}, picture=picture)


def results_of(name: str, extra: str = "", seeds: int = SEEDS) -> Results:
    """An experiment with all of its synthetic results."""
    trained, analysed = records(EXPERIMENTS[name], extra, seeds)
    return collect(EXPERIMENTS[name], Store(trained, [], analysed))


def write_results(
    folder: Path, names: Sequence[str] = tuple(EXPERIMENTS), extra: str = ""
) -> tuple[Path, Path]:
    """The folders of runs and of results; the latter has all results of these experiments."""
    for name in names:
        trained, analysed = records(EXPERIMENTS[name], extra)
        append_records(folder / "results" / TRAININGS, trained)
        append_records(folder / "results" / ANALYSES, analysed)
    return folder / "runs", folder / "results"
