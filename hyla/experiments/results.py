"""The files of results: lists of rows, one file for each experiment and scale."""

import json
from collections.abc import Sequence
from pathlib import Path

from hyla.errors import bad_value
from hyla.experiments.declare import Axes, Experiment, Row
from hyla.files import new_file, to_json

RESULTS, RUNS = Path("results"), Path("runs")


def results_file(name: str, scale: str, results: Path = RESULTS, runs: Path = RUNS) -> Path:
    """Where the rows of an experiment are: with the runs, but for the paper's scale.

    >>> str(results_file("ablation", "paper")), str(results_file("ablation", "small"))
    ('results/ablation.json', 'runs/small/results/ablation.json')
    """
    return (results if scale == "paper" else runs / scale / "results") / f"{name}.json"


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, none if there is no file; ValueError if it is damaged."""
    try:
        rows = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError) as error:
        raise bad_value(str(path), f"damaged content ({error})", "a list of results") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise bad_value(str(path), "something else", "a list of results")
    return rows


def is_first_seed(row: Row) -> bool:
    """Whether hyperparameters were chosen by the first seed alone."""
    return row.get("search") == "first-seed"


def is_chosen_on_one_seed(row: Row) -> bool:
    """Whether hyperparameters were chosen by one seed: the first, or the only one."""
    return is_first_seed(row) or (row.get("search") == "full" and row.get("seeds") == 1)


def is_given(row: Row) -> bool:
    """Whether hyperparameters were not searched: one setting stands in the place of a search."""
    return "," in str(row.get("search"))


def write_rows(path: Path, experiment: Experiment, rows: Sequence[Row]) -> None:
    """Adds rows to a file, in the order of the declaration; old ones of the same points go."""

    def place(row: Row) -> str:
        return repr([row.get(axis) for axis in experiment.axes])

    points = [point.axes for point in experiment.points()]
    made_anew = {place_of(row, points) for row in rows} - {len(points)}
    others = [row for row in read_rows(path) if place_of(row, points) not in made_anew]
    kept = {place(row): row for row in (*others, *rows)}
    ordered = sorted(kept.values(), key=lambda row: place_of(row, points))
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(to_json(row) for row in ordered)
    with new_file(path, overwrite=True) as handle:
        handle.write(f"[\n{lines}\n]\n".encode())


def is_at(row: Row, axes: Axes) -> bool:
    """Whether a row belongs to the point with these axes."""
    return all(row.get(axis) == value for axis, value in axes.items())


def place_of(row: Row, points: Sequence[Axes]) -> int:
    """The number of the first point that a row belongs to; after all, if to none."""
    return next((i for i, axes in enumerate(points) if is_at(row, axes)), len(points))
