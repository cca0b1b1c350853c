"""Runs an experiment: trains what is not there and makes rows of it."""

import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from hyla.errors import bad_value, unknown_name
from hyla.experiments.declare import Axes, Experiment, Point, Row
from hyla.experiments.results import (
    RESULTS,
    RUNS,
    is_at,
    is_given,
    read_rows,
    results_file,
    write_rows,
)
from hyla.experiments.reuse import (
    TAKEN,
    chosen_setting,
    has_more_seeds,
    made_before,
    made_elsewhere,
)
from hyla.experiments.rows import (
    FinishedRun,
    choose,
    members_of,
    provenance,
    untrained,
)
from hyla.experiments.scales import FOR_GPUS, points_at
from hyla.experiments.search import (
    SEARCHES,
    models,
    other_seeds,
    populations,
    read_search,
    run_names,
    setting_of,
)
from hyla.files import lock
from hyla.train.config import RunConfig
from hyla.train.loop import train
from hyla.train.placement import find_devices
from hyla.train.run import TimeUp
from hyla.train.runs import folder_name, read_config, read_state, trained_on
from hyla.train.trained import keep_members
from hyla.train.watch import Watcher

ENDED = ("finished", "diverged")
SETTINGS = ("search", "precision", "seeds")  # options that rows of the same axes may differ in
MODELS = "models"  # the folder of those that are kept, in the folder of results
# Instances a second with tf32, of so many layers and tokens; seconds of compilation.
H200 = {"fuzzy_logic": (1.0e6, 2, 32), "sraven": (0.33e6, 4, 36)}
COMPILATION = 30.0


@dataclass(frozen=True)
class Options:
    """How experiments are run.

    runs: the folder of run folders. results: of the files of results at the paper's scale.
    only: values of axes, as text; points with others are left alone.
    seeds: only the first so many. members: the most that are trained at once. deadline: as in
        `train`.
    again: make rows that are there anew, from their runs, with their own search and precision.
    """

    scale: str = "paper"
    runs: Path = RUNS
    results: Path = RESULTS
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    search: str = "full"
    precision: str = "fp32"
    seeds: int | None = None
    device: str = "auto"
    members: int | None = None
    deadline: float | None = None
    again: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "search", read_search(self.search))
        for name in ("seeds", "members"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise bad_value(name, count, "a whole number of at least 1")

    def file(self, name: str) -> Path:
        """The one with the rows of an experiment."""
        return results_file(name, self.scale, self.results, self.runs)

    def command(self, experiment: Experiment, only: Iterable[tuple[str, Any]] = ()) -> str:
        """The command that makes the results of an experiment, or those with values of axes."""
        words = [f"hyla reproduce {experiment.name}", f"--scale {self.scale}"]
        wanted = [shlex.quote(f"{axis}={value}") for axis, value in only]
        words += ["--only", *wanted] if wanted else []
        words += [f"--search {self.search}"] if self.search != "full" else []
        words += [f"--precision {self.precision}"] if self.precision != "fp32" else []
        words += [f"--seeds {self.seeds}"] if self.seeds else []
        return " ".join(words)


def chosen_points(experiment: Experiment, options: Options) -> list[Point]:
    """The points at the scale, as far as they are asked for, as they are to be trained."""
    points = points_at(experiment, options.scale)
    for axis, values in options.only.items():
        there = dict.fromkeys(p.axes[axis] for p in points if axis in p.axes)
        numbers = not any(isinstance(value, str) for value in there)
        known = [str(value) for value in (sorted(there) if numbers else there)]
        if not known:
            raise unknown_name(f"only, axis of {experiment.name}", axis, list(points[0].axes))
        name = f"only, {axis} of the experiment {experiment.name} at scale {options.scale}"
        for value in values:
            if value not in known:
                raise unknown_name(name, value, known)
        points = [point for point in points if str(point.axes[axis]) in values]
    for point in points:
        try:
            run_names(point, options.search)
        except ValueError as error:  # a setting that it does not have
            place = f"{experiment.name}, {place_name(point.axes)}"
            raise ValueError(f"{str(error).rstrip('.')}, in {place}.") from None
    return [as_asked(point, options) for point in points]


def as_asked(point: Point, options: Options) -> Point:
    """A point with the precision and the seeds asked for."""
    if point.config is None:
        return point
    seeds = sorted({member.seed for member in point.config.members})[: options.seeds]
    members = tuple(member for member in point.config.members if member.seed in seeds)
    return replace(
        point, config=replace(point.config, precision=options.precision, members=members)
    )


def require(experiment: Experiment) -> None:
    """Tells what is not installed before anything is trained."""
    for package in experiment.needs:
        import_module(package)


def rows_there(
    experiment: Experiment, point: Point, rows: Sequence[Row], options: Options
) -> list[Row]:
    """The rows of a point that need no run: its own, or as another experiment has them now."""
    here = [row for row in rows if is_at(row, point.axes)]
    if more := [row for row in here if has_more_seeds(row, options.seeds)]:
        return more
    own = made_before(point, rows, options.search)
    if own and TAKEN not in own[0]:
        return own
    taken = made_elsewhere(experiment, point, options.search, options.file)
    if own and any(map(is_given, taken)) and not is_given(own[0]):
        return own  # a search is worth more than one setting
    return taken or own


def points_left(experiment: Experiment, options: Options) -> list[Point]:
    """The points that are asked for and have no rows yet."""
    rows, points = read_rows(options.file(experiment.name)), chosen_points(experiment, options)
    return [p for p in points if not rows_there(experiment, p, rows, options)]


def rows_so_far(experiment: Experiment, options: Options) -> list[Row]:
    """The rows that are there of the points that are asked for."""
    rows, points = read_rows(options.file(experiment.name)), chosen_points(experiment, options)
    return [row for p in points for row in rows_there(experiment, p, rows, options)]


def finished(path: Path, asked: RunConfig | None = None) -> FinishedRun | None:
    """A run as it is in its folder, if it has come to its end (and is the one asked for)."""
    state = read_state(path)
    if state.state not in ENDED or state.summary is None or "members" not in state.summary:
        return None
    values, environment = read_config(path)
    config = RunConfig.from_dict(values)
    if asked is not None and config != asked:
        return None
    return FinishedRun(path, config, state.summary, environment, trained_on(path))


def run_experiment(
    experiment: Experiment,
    options: Options,
    watcher: Callable[[], Watcher] = Watcher,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Trains what is not there, point by point, and writes the rows of each at once."""
    require(experiment)
    points = chosen_points(experiment, replace(options, seeds=None))
    file = options.file(experiment.name)
    there = read_rows(file)  # what is wrong with it is told before anything is trained
    rows: list[Row] = []
    for number, whole in enumerate(points, start=1):
        place = place_name(whole.axes)
        old = next((row for row in there if is_at(row, whole.axes)), {})
        if options.again and not old:
            say(f"{experiment.name} {number}/{len(points)}: {place} has no row to make anew")
            continue
        here = _for_point(whole, old, options)
        point = as_asked(whole, here)
        if not options.again:
            done = rows_there(experiment, point, there, here)
        else:  # a copy is made anew where it comes from
            done = [old] if TAKEN in old else []
        if done:
            about = _about(done[0], here)
            say(f"{experiment.name} {number}/{len(points)}: {place} is in {file}{about}")
            if any(row not in there for row in done):
                if old and (TAKEN not in old or made_with(old) != made_with(done[0])):
                    say(f"in the place of what was made with {made_with(old)}")
                with _alone(file.parent):
                    write_rows(file, experiment, done)
            rows += done
            continue
        say(f"{experiment.name} {number}/{len(points)}: {place}")
        late = options.deadline is not None and time.monotonic() >= options.deadline
        if late and point.config is None:  # a training looks at the time itself
            raise TimeUp("time is up")
        if old and not options.again:
            say(f"{file} has it, made with {made_with(old)}; what is asked for will take its place")
        runs = kept(point, here) if experiment.keep else []
        runs = runs or trained(point, here, watcher, say)
        if experiment.keep:  # an analysis of what is trained
            say(f"{place}: analysing the trained models, minutes on a CPU at the paper's scale")
        start, telling = time.perf_counter(), {"say": say} if experiment.keep else {}
        made = experiment.make(point, runs, options.scale, **telling)
        origin = provenance(runs) if runs else untrained(time.perf_counter() - start)
        origin |= {"scale": options.scale} | ({"search": here.search} if runs else {})
        origin |= {"seeds": here.seeds} if here.seeds else {}
        only = point.axes.items() if setting_of(here.search) else ()  # others may have another
        origin |= {"date": datetime.now(UTC).date().isoformat()}
        made = [row | origin | {"command": here.command(experiment, only)} for row in made]
        with _alone(file.parent):
            write_rows(file, experiment, made)
            if experiment.keep and options.scale == "paper":
                keep(runs, options)
        rows += made
    return rows


def _for_point(whole: Point, old: Row, options: Options) -> Options:
    """With `again`, the options that made its row; without seeds, if there are no more of them."""
    if options.again:
        made = {name: old[name] for name in SETTINGS if name in old}
        options = replace(options, **({"seeds": None} | made))
    every = replace(options, seeds=None)
    return every if as_asked(whole, every) == as_asked(whole, options) else options


def place_name(axes: Axes) -> str:
    """Values of axes, in words."""
    return ", ".join(f"{axis} {value}" for axis, value in axes.items())


def _about(row: Row, options: Options) -> str:
    """Where a row comes from that is there, if not from what is asked for."""
    text = f", from {row[TAKEN]}" if TAKEN in row else ""
    setting = setting_of(options.search)
    if setting and row.get("search") in SEARCHES and chosen_setting(row) != setting:
        text += f", made with {made_with(row)}, which one setting does not replace"
    elif has_more_seeds(row, options.seeds):
        text += f", made with {made_with(row)}, which fewer seeds do not replace"
    return text


def made_with(row: Row) -> str:
    """The options of a row that others of the same axes may differ in."""
    return " ".join(f"--{name} {row[name]}" for name in SETTINGS if name in row)


def trained(
    point: Point,
    options: Options,
    watcher: Callable[[], Watcher],
    say: Callable[[str], None] = lambda text: None,
) -> list[FinishedRun]:
    """The finished runs of a point, trained as far as they were not."""
    if point.config is None:
        return []

    def run(config: RunConfig) -> FinishedRun:
        path = options.runs / options.scale / folder_name(config)
        found = finished(path, config)
        if found is None and options.again:
            raise bad_value("again", path, "a finished run, of which the row was made")
        if found is None:
            devices = find_devices(options.device, options.precision)
            if devices[0].type == "cpu" and options.scale in FOR_GPUS:
                minutes = h200_seconds(config, "full") / 60
                say(f"{minutes:.0f} min on one H200, far more on this CPU (--scale smoke: tiny)")
            watching = watcher()
            try:
                train(
                    config, path, device=options.device, members_at_once=options.members,
                    deadline=options.deadline, watchers=[watching],
                )  # fmt: skip
            finally:
                watching.close()
            found = finished(path, config)
            if found is None:
                raise ValueError(f"{path}: another process has taken the run; try again later.")
        return found

    runs = [run(config) for config in populations(point.config, options.search)]
    if options.search == "first-seed":
        rest = other_seeds(point.config, runs)
        runs += [run(rest)] if rest is not None else []
    return runs


def keep(runs: Sequence[FinishedRun], options: Options) -> None:
    """Keeps the chosen members beside the results."""
    chosen = choose(members_of(runs))
    folder = options.results / MODELS
    for run in runs:
        members = [member.number for member in chosen if member.run is run]
        if members and run.path.parent != folder:
            keep_members(run.path, members, folder / run.path.name, provenance(runs))


def kept(point: Point, options: Options) -> list[FinishedRun]:
    """What was kept of the runs of a point that are not all there."""
    if point.config is None or options.scale != "paper":
        return []
    parts = populations(point.config, options.search)
    root = options.runs / options.scale
    if all(finished(root / folder_name(part), part) for part in parts):
        return []
    folder = options.results / MODELS
    runs = [run for part in parts if (run := _kept(folder / folder_name(part)))]
    if runs and options.search == "first-seed":
        rest = other_seeds(point.config, runs)
        runs += [run for part in [rest] if part and (run := _kept(folder / folder_name(part)))]
    return runs


def _kept(path: Path) -> FinishedRun | None:
    return finished(path) if path.exists() else None


def h200_seconds(config: RunConfig, search: str) -> float:
    """A rough estimate, from the rates of the paper's smallest models in populations of 12.

    Four times the width took four times as long: wide models use the GPU better.
    """
    rate, layers, tokens = H200[config.task_name]
    size = config.model.layers / layers * config.model.width / 128 * config.tokens / tokens
    instances = models(config, search) * config.steps * config.batch
    return instances * size / rate + COMPILATION * len(populations(config, search))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits for other processes that write results."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            descriptor = lock(folder / ".lock")
            break
        except BlockingIOError:
            time.sleep(0.05)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
