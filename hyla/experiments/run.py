"""From declared points to trainings: what is missing is made, nothing is overwritten."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from platform import machine

import torch

import hyla
from hyla.errors import bad_value
from hyla.experiments.rows import (
    DEFAULT_PLAN,
    chosen_trainings,
    missing,
    place_name,
    points_of,
    rows,
    subjects,
    trainings_left,
)
from hyla.experiments.spec import Analysis, Experiment, Plan, Point, Row
from hyla.records import append_records
from hyla.tasks.base import AS_DESCRIBED
from hyla.train.config import Member, RunConfig
from hyla.train.cost import flops_per_second, step_flops
from hyla.train.folder import FolderInUseError
from hyla.train.loop import train
from hyla.train.placement import find_devices
from hyla.train.population import preferred_precision
from hyla.train.run import TimeUp
from hyla.train.runs import CONFIG, folder_name, folders, read_config, read_state
from hyla.train.store import ANALYSES, Analysed, Origin, Store
from hyla.train.training import Training
from hyla.train.watch import Watcher

RUNS, RESULTS = Path("runs"), Path("results")
UNFINISHED = ("interrupted", "new", "stopped")  # states of runs that can be resumed
SECONDS_BETWEEN_LOOKS = 2.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How experiments are run.

    runs: the folder of run folders. results: the folder of published results; None ignores them.
    only: values of axes, as text. tiny: a few steps of small models. members: train at most this
    many at once. deadline: as in `train`. preset: a name of `PRESETS`.
    """

    plan: Plan = DEFAULT_PLAN
    runs: Path = RUNS
    results: Path | None = None
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tiny: bool = False
    device: str = "auto"
    members: int | None = None
    deadline: float | None = None
    preset: str = AS_DESCRIBED

    def store(self) -> Store:
        """Read all results, as they are now."""
        return Store.open(self.runs, self.results)

    def points(self, experiment: Experiment) -> list[Point]:
        """Return the selected points."""
        return points_of(experiment, self.only, self.tiny, self.preset)

    def check_time(self) -> None:
        """Raise `TimeUp` after the deadline."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise TimeUp("time is up")


def check_packages(points: Sequence[Point]) -> None:
    """Import what the analyses need, so that a missing package is an error before training."""
    for package in {name for point in points for one in point.analyses for name in one.needs}:
        import_module(package)


def run_experiment(
    experiment: Experiment,
    options: Options,
    watcher: Callable[[], Watcher] = Watcher,
    say: Say = lambda text: None,
) -> list[Row]:
    """Train and analyse what is missing, point by point, and return all rows of the points."""
    points = options.points(experiment)
    check_packages(points)
    store = options.store()
    for number, point in enumerate(points, start=1):
        place = f"{experiment.name} {number}/{len(points)}: {place_name(point.axes)}: "
        if missing(point, options.plan, store):
            _train(point, options, watcher, partial(_say, say, place))
            store = options.store()
        left = list(unanalysed(point, options.plan, store))
        for analysis, subject, key, run in left:
            options.check_time()
            _say(say, place, analysis.name)
            append_records(options.runs / ANALYSES, [_analysed(analysis, subject, key, run)])
        store = options.store() if left else store
    return [row for point in points for row in rows(point, options.plan, store)]


def _say(say: Say, place: str, text: str) -> None:
    say(place + text)


def _train(point: Point, options: Options, watcher: Callable[[], Watcher], say: Say) -> None:
    """Train what a point needs: after a search this is more than was missing before it."""
    while members := missing(point, options.plan, store := options.store()):
        options.check_time()
        assert point.config is not None
        config, path = _population(point.config, members, options, store)
        if path is not None:
            say(f"training {len(config.members)} model{'s' * (len(config.members) > 1)}")
            watching = watcher()
            try:
                train(
                    config, path, device=options.device, members_at_once=options.members,
                    deadline=options.deadline, watchers=[watching],
                )  # fmt: skip
                continue
            except FolderInUseError:
                pass  # another process was faster
            finally:
                watching.close()
        say("another process trains these models; waiting for it")
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _population(
    config: RunConfig, members: Sequence[Member], options: Options, store: Store
) -> tuple[RunConfig, Path | None]:
    """Return the run that trains these members and its folder; None if another process does.

    An unfinished run is resumed if it trains nothing else. A folder that cannot be read is left
    alone.
    """
    precision = options.plan.precision
    if precision is None:
        precision = preferred_precision(config, find_devices(options.device, "fp32")[0])
    whole = replace(config, members=tuple(members), precision=precision)
    wanted = {Training.of(whole, member).key for member in members}
    for path in folders(options.runs):
        state = read_state(path).state
        if state not in (*UNFINISHED, "running") or path in store.problems:
            continue
        try:
            begun = RunConfig.from_dict(read_config(path)[0])
        except (OSError, ValueError):
            continue
        keys = {Training.of(begun, member).key for member in begun.members}
        if state == "running" and keys & wanted:
            return begun, None
        if state != "running" and keys <= wanted:
            return begun, path
    names = (folder_name(whole) + (f"-{n}" if n > 1 else "") for n in count(1))
    path = next(path for name in names if (path := options.runs / name) not in store.problems)
    return whole, None if (path / CONFIG).exists() else path


def _analysed(analysis: Analysis, subject: tuple[object, ...], key: str, run: str) -> Analysed:
    start = time.perf_counter()
    values = tuple(analysis.compute(*subject, **analysis.settings))
    versions: dict[str, str | None] = {"hyla": hyla.__version__, "torch": torch.__version__}
    seconds = round(time.perf_counter() - start, 1)
    origin = Origin(datetime.now(UTC).isoformat(timespec="seconds"), machine(), versions, seconds)
    return Analysed(key, analysis.name, analysis.settings, values, run, origin)


def unanalysed(
    point: Point, plan: Plan, store: Store
) -> Iterator[tuple[Analysis, tuple[object, ...], str, str]]:
    """Yield the missing analyses: with the arguments of `compute`, the key and the run."""
    found = chosen_trainings(point, plan, store)
    for analysis in point.analyses:
        for seed, key in subjects(point, analysis, plan, found).items():
            further = seed >= plan.least_seeds  # weights of published trainings are not kept
            if further or store.analysis(key, analysis.name, analysis.settings):
                continue
            if analysis.of != "weights":
                task = point.task if point.config is None else point.config.task
                yield analysis, (task, seed), key, ""
                continue
            if found[seed].path is None:
                raise bad_value(
                    f"{analysis.name} of {place_name(point.axes)}, seed {seed}",
                    "a published training, whose weights are not kept",
                    "one that was trained here (use --own)",
                )
            yield analysis, (found[seed],), key, found[seed].run


def seconds_left(points: Sequence[Point], plan: Plan, store: Store, device: str = "auto") -> float:
    """Estimate the training time of everything that is missing, without evaluations."""
    work = sum(
        trainings_left(point, plan, store) * point.config.steps * step_flops(point.config)
        for point in points
        if point.config is not None
    )
    return work / flops_per_second(device) if work else 0.0


def is_complete(point: Point, plan: Plan, store: Store) -> bool:
    """Whether nothing is left to train or to analyse."""
    if missing(point, plan, store):
        return False
    try:
        return not list(unanalysed(point, plan, store))
    except ValueError:
        return False
