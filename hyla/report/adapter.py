"""Typed rows as the plain dictionaries that the drawings read."""

from typing import Any

from hyla.analysis.baselines import CEILING
from hyla.experiments.spec import Point, Row
from hyla.statistics import Sample
from hyla.train.training import INTRODUCED

Flat = dict[str, Any]
ONLY_PAPER = "only_paper"  # marks a point with a published value and no result
SEARCHED_ON_ONE_SEED, NOT_SEARCHED = "†", "‡"


def flat(row: Row) -> Flat:
    """Convert a row: its axes, its numbers, its pictures and how it was made."""
    hidden = [CEILING] if row.trainings else []  # drawn as a line, not as a measure
    ceiling = row.measures.get(CEILING)
    return {
        **row.axes,
        **_sample(row.main, row),
        "measures": {
            name: _sample(sample, row)
            for name, sample in row.measures.items()
            if name not in hidden
        },
        **_paper(row.paper),
        **{
            group: {name: _sample(sample, row) for name, sample in samples.items()}
            for group, samples in row.details.items()
        },
        "ceiling": ceiling.mean if ceiling else None,
        **row.picture,
        **_origin(row),
    }


def paper_only(point: Point) -> Flat:
    """Stand in for a point that has a published value but no result."""
    return {**point.axes, **_paper(point.paper), ONLY_PAPER: True}


def _paper(values: tuple[float, float] | None) -> Flat:
    mean, error = values or (None, None)
    return {"paper_mean": mean, "paper_standard_error": error}


def _sample(sample: Sample, row: Row) -> Flat:
    """Mean, standard error and seeds; exact values and known errors have no seeds."""
    found: Flat = {"mean": sample.mean, "standard_error": sample.standard_error}
    over_seeds = sample.error is None and (len(row.seeds) > 1 or row.trainings)
    return found | ({"per_seed": list(sample.per_seed)} if over_seeds else {})


def _origin(row: Row) -> Flat:
    """Hyperparameters, their search, and what the trainings were."""
    if not row.trainings or row.setting is None:
        return {}
    runs = {one.run: one.origin.seconds for one in row.trainings}
    seconds = [value for value in runs.values() if value is not None]
    first = row.trainings[0].description
    text, mark = _search(row)
    return {
        "hyperparameters": _setting(row.setting),
        "grid": [_setting(row.setting) | {"per_seed": list(row.main.per_seed)}],
        "search": text,
        "mark": mark,
        "members": len(row.trainings),
        "instances": first["steps"] * first.get("batch", INTRODUCED["batch"]),
        "precision": ", ".join(row.precisions),
        "device": ", ".join(dict.fromkeys(one.origin.device for one in row.trainings)),
        "seconds": sum(seconds) if len(seconds) == len(runs) else None,
        "runs": list(runs),
        "local": row.is_local,
    }


def _setting(setting: Any) -> Flat:
    names = ("learning_rate", "weight_decay", "warmup")
    return {name: getattr(setting, name) for name in names}


def _search(row: Row) -> tuple[str, str]:
    """How hyperparameters were chosen, in words, and the mark of the row."""
    if row.search is None:
        return "", ""
    if row.search.settings == 1:
        return "one setting, not searched", NOT_SEARCHED
    seeds = f"{row.search.seeds} seed{'s' * (row.search.seeds > 1)}"
    mark = SEARCHED_ON_ONE_SEED if row.search.seeds == 1 else ""
    return f"{row.search.settings} settings, {seeds} each", mark
