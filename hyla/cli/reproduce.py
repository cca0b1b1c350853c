"""`hyla reproduce`: the tables and figures of the paper."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.table import Table
from tyro.conf import Positional, arg

from hyla.cli.display import Lines, display_for, tell
from hyla.cli.shared import output, write_json
from hyla.errors import bad_value, unknown_name
from hyla.experiments import EXPERIMENTS, Experiment, Row
from hyla.experiments.declare import SEEDS
from hyla.experiments.results import RESULTS, RUNS
from hyla.experiments.reuse import chosen_setting
from hyla.experiments.runner import (
    Options,
    chosen_points,
    points_left,
    require,
    rows_so_far,
    run_experiment,
)
from hyla.experiments.scales import SCALES
from hyla.experiments.search import ONE_SETTING, SEARCHES, written
from hyla.experiments.status import Status, status
from hyla.processes import Job, run_all, told
from hyla.train import TimeUp
from hyla.train.config import PRECISIONS
from hyla.train.placement import find_devices
from hyla.train.watch import Watcher

WIDE = 150  # characters of a terminal that has room for titles
OUT_OF_TIME = 3  # what a process ends with that was stopped by the time limit
EVERYTHING = ("all",)  # the points, unless --only says which; with nothing behind it, it is wrong
Names = Annotated[tuple[str, ...], arg(metavar="[NAME ...]")]


def reproduce(
    names: Positional[Names] = (),
    scale: Annotated[
        str | None, arg(metavar="{" + ",".join(SCALES) + "}", help_behavior_hint="")
    ] = None,
    only: Annotated[
        tuple[str, ...], arg(metavar="AXIS=VALUE [AXIS=VALUE ...]", help_behavior_hint="")
    ] = EVERYTHING,
    search: Annotated[str, arg(metavar="{" + "|".join([*SEARCHES, ONE_SETTING]) + "}")] = "full",
    precision: Annotated[str, arg(metavar="{" + ",".join(PRECISIONS) + "}")] = "fp32",
    seeds: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None,
    members: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None,
    processes: int = 1,
    time_limit: Annotated[float | None, arg(metavar="MINUTES", help_behavior_hint="")] = None,
    device: str = "auto",
    runs: Path = RUNS,
    results: Path = RESULTS,
    again: bool = False,
    list: bool = False,  # noqa: A002 (the name of the option)
    json: bool = False,
) -> None:
    """Run the experiments of the paper; the same command skips what is done and goes on.

    Args:
        names: Experiments, see --list.
        scale: paper (but for the demonstrations), or smaller: small (a GPU, minutes), smoke (tiny
            models, a test).
        only: Only the points with these values, such as row=HYLA task=SRAVEN.
        search: Every setting on every seed; or on the first and then the best on the others; or no
            search but one setting of the grid on every seed, such as 3e-4,0.3,1000 on SRAVEN.
        precision: Of matrix products.
        seeds: Only the first so many, where all of them (3) cost too much.
        members: Train at most this many at once, for the sake of memory.
        processes: Train so many points at once, each in a process of its own (on one GPU it pays
            with NVIDIA's MPS, see docs/evidence.md).
        time_limit: Stop after so many minutes; the same command goes on.
        device: auto, cpu, cuda (all GPUs) or one such as cuda:1.
        runs: Folder of the run folders.
        results: Folder of the results at the paper's scale; the others lie with the runs.
        again: Make rows that are there anew from their runs or from kept models, without training,
            as after a change of the analysis.
        list: Show all experiments with their state and cost; run nothing.
        json: Print JSON only.
    """
    chosen = _experiments(names, everything=list)
    _check(scale, precision, seeds, processes, time_limit)
    if again and processes > 1:
        raise bad_value("processes", processes, "1 with --again")
    given = Options(
        runs=runs, results=results, only=_wanted(only), search=search, precision=precision,
        seeds=seeds, device=device, members=members, again=again,
        deadline=None if time_limit is None else time.monotonic() + 60 * time_limit,
    )  # fmt: skip
    if list:
        _show_list(chosen, given, scale, json)
        return
    work = [(one, replace(given, scale=scale or one.scales[0])) for one in chosen]
    for experiment, options in work:  # what is wrong is told before anything is trained
        require(experiment)
        chosen_points(experiment, options)
    left = (point for one, options in work for point in points_left(one, options))
    if not again and any(point.config for point in left):
        find_devices(device, "fp32")  # kept models may do without a device for the precision
    made: dict[str, Any] = {}
    for experiment, options in work:
        try:
            if processes > 1:
                _train_together(experiment, options, processes, quiet=json)
            made[experiment.name] = run_experiment(experiment, options, _watcher(json), tell)
        except TimeUp as error:
            tell(f"{experiment.name}: {error}; the same command goes on from there")
            made[experiment.name] = rows_so_far(experiment, options)
            break
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted: the same command goes on") from None
        if not json and (made[experiment.name] or not again):
            _print_rows(experiment, made[experiment.name], options)
    if again and not any(made.values()):
        expected = "rows of these points, with runs in --runs or kept models in models beside them"
        files = " or ".join(str(options.file(one.name)) for one, options in work)
        raise bad_value("again", f"none in {files}", f"{expected} (--results names another)")
    if json:
        write_json(made)


def _train_together(
    experiment: Experiment, options: Options, processes: int, *, quiet: bool
) -> None:
    """Makes the rows that are not there, some points at a time."""
    require(experiment)
    threads = max(1, torch.get_num_threads() // processes)
    jobs: dict[str, Job] = {}
    for point in points_left(experiment, options):  # no two are made of the same run
        only: dict[str, tuple[str, ...]] = {a: (str(v),) for a, v in point.axes.items()}
        name, alone = ", ".join(map(str, point.axes.values())), replace(options, only=only)
        jobs[name] = partial(_one_point, experiment.name, name, alone, threads, quiet)
    codes = dict(run_all(jobs, processes))
    bad = {name: code for name, code in codes.items() if code not in (0, OUT_OF_TIME)}
    if bad:
        each = "; ".join(f"{name} ({told(code)})" for name, code in bad.items())
        raise ValueError(f"{experiment.name}: points that failed, the others are kept: {each}.")
    if OUT_OF_TIME in codes.values():
        raise TimeUp("time is up")


def _one_point(experiment: str, name: str, options: Options, threads: int, quiet: bool) -> None:
    """In a process of its own."""
    torch.set_num_threads(threads)
    if options.deadline is not None and time.monotonic() >= options.deadline:
        sys.exit(OUT_OF_TIME)
    watcher = Watcher if quiet else partial(Lines, sys.stderr, name=name)
    try:
        run_experiment(EXPERIMENTS[experiment], options, watcher, tell)
    except TimeUp as error:
        tell(f"{name}: {error}")
        sys.exit(OUT_OF_TIME)
    except (OSError, ValueError) as error:
        tell(f"{name}: error: {error}")
        sys.exit(1)


def _experiments(names: tuple[str, ...], *, everything: bool) -> list[Experiment]:
    if not names and not everything:
        expected = f"one or more of {', '.join(EXPERIMENTS)} (see hyla reproduce --list)"
        raise bad_value("names", "nothing", expected)
    for name in names:
        if name not in EXPERIMENTS:
            raise unknown_name("names", name, EXPERIMENTS)
    return [EXPERIMENTS[name] for name in names or EXPERIMENTS]


def _check(
    scale: str | None,
    precision: str,
    seeds: int | None,
    processes: int,
    time_limit: float | None,
) -> None:
    if scale is not None and scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if processes < 1:
        raise bad_value("processes", processes, "a whole number of at least 1")
    if seeds is not None and seeds > len(SEEDS):
        raise bad_value("seeds", seeds, f"at most {len(SEEDS)}, which experiments have")
    if time_limit is not None and not 0 < time_limit < float("inf"):
        raise bad_value("time_limit", time_limit, "a number of minutes above 0")


def _wanted(only: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The values asked for, by axis."""
    wanted: dict[str, tuple[str, ...]] = {}
    expected = "AXIS=VALUE, such as attention=hyla"
    if not only:
        raise bad_value("only", "nothing", expected)
    for text in only if only != EVERYTHING else ():
        axis, equals, value = text.partition("=")
        if not equals:
            raise bad_value("only", repr(text), expected)
        if "," in value:
            each = " ".join(f"{axis}={part.strip()}" for part in value.split(","))
            raise bad_value("only", repr(text), f"one value each: {each}")
        wanted[axis] = (*wanted.get(axis, ()), value)
    return wanted


def _watcher(json: bool) -> Callable[[], Watcher]:
    return Watcher if json else lambda: display_for(sys.stderr)


def _show_list(
    experiments: list[Experiment], options: Options, scale: str | None, json: bool
) -> None:
    found: dict[str, Status] = {}
    not_listed: list[str] = []
    for experiment in experiments:
        if scale is None or scale in experiment.scales:
            chosen = replace(options, scale=scale or experiment.scales[0])
            try:
                found[experiment.name] = status(experiment, chosen)
            except ValueError as error:  # it does not have the setting or axis
                not_listed.append(str(error))
    if not_listed and not found:
        raise ValueError(not_listed[0])
    if json:
        write_json({name: asdict(one) for name, one in found.items()})
        return
    console = output()
    table = Table(title="Experiments", title_justify="left")
    wide = console.width >= WIDE
    table.add_column("name", no_wrap=True)
    for name in ("what", "in the paper", "scale") if wide else ("scale",):
        table.add_column(name, overflow="fold")
    columns = ["measured", "as asked", *(["begun", "instances"] * wide), "models", "H200 hours"]
    for name in columns:
        table.add_column(name, justify="right")
    for name, one in found.items():
        experiment = EXPERIMENTS[name]
        cells = [f"{one.measured}/{one.points}", str(one.as_asked)]
        cells += [str(one.begun), f"{one.instances:,}"] * wide
        what = [name, *([experiment.title, experiment.where] if wide else [])]
        cells += [f"{one.members:,}", f"{one.hours:.1f}"]
        table.add_row(*what, scale or experiment.scales[0], *cells)
    console.print(table)
    asked = f"--search {options.search} --precision {options.precision}"
    asked += f" --seeds {options.seeds}" if options.seeds else ""
    enough = "by a wider search" + (" or with more seeds" if options.seeds else "")
    others = sum((Counter(one.others) for one in found.values()), Counter())
    others.pop(asked, None)  # of another configuration, so no option keeps them
    each = ", ".join(f"{made_with} ({count})" for made_with, count in others.most_common())
    for line in (
        f"As asked: made with {asked} or {enough}; other rows would be trained anew.",
        *([f"To keep those, ask with the options they were made with: {each}."] if others else []),
        *(["Begun: points without rows that have a run folder."] * wide),
        "Hours: a rough estimate, with --precision tf32, fp16 or bf16, of all from the beginning.",
        *(f"Not listed: {error}" for error in not_listed),
        *(f"{name}: {one.problem}" for name, one in found.items() if one.problem),
    ):
        console.print(line, soft_wrap=True, markup=False)


def _print_rows(experiment: Experiment, rows: list[Row], options: Options) -> None:
    console = output()
    table = Table(title=f"{experiment.title} ({experiment.where}), percent", title_justify="left")
    for axis in experiment.axes:
        table.add_column(axis, overflow="fold")
    papers = any(row.get("paper_mean") is not None for row in rows)
    names = ["mean", "standard error", *(["paper", "standard error"] * papers)]
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("setting")
    for row in rows:
        if row.get("mean") is None or row.get("label", "all") != "all":
            continue  # maps and matrices are for the report, as are terms and rules one by one
        values = [row.get(name) for name in ("mean", "standard_error")]
        if papers:
            values += [row.get(name) for name in ("paper_mean", "paper_standard_error")]
        cells = ["" if value is None else f"{value:.2f}" for value in values]
        setting = written(chosen_setting(row))
        table.add_row(*(str(row[axis]) for axis in experiment.axes), *cells, setting)
    console.print(table)
    if any(map(chosen_setting, rows)):
        console.print(f"Setting: {ONE_SETTING}", soft_wrap=True)
    console.print(f"Rows: {options.file(experiment.name)}", soft_wrap=True, markup=False)
