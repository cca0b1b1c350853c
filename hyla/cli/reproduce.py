"""`hyla reproduce`: the tables and figures of the paper."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.table import Table
from tyro.conf import Positional, arg

from hyla.cli.display import Lines, display_for, tell
from hyla.cli.shared import output, write_json
from hyla.errors import bad_value, unknown_name
from hyla.experiments import EXPERIMENTS, Experiment, Plan, Row
from hyla.experiments import publish as publishing
from hyla.experiments.rows import (
    DEFAULT_PLAN,
    choose,
    missing,
    place_name,
    rows,
    rows_as_published,
    trainings_left,
)
from hyla.experiments.run import (
    RESULTS,
    RUNS,
    Options,
    check_packages,
    is_complete,
    run_experiment,
    seconds_left,
)
from hyla.experiments.spec import HELD_OUT, VALIDATION_LOSS
from hyla.processes import Job, run_all, told
from hyla.statistics import Sample
from hyla.tasks.base import AS_DESCRIBED
from hyla.tasks.published import PRESETS
from hyla.train import Member, TimeUp
from hyla.train.config import PRECISIONS
from hyla.train.placement import find_devices
from hyla.train.store import Store
from hyla.train.watch import Watcher

AS_CODE = "authors' code"  # column of the preset as_published
OUT_OF_TIME = 3  # exit code of a process stopped by the time limit
EVERYTHING = ("all",)  # default of --only
CHOICES = {"validation-loss": VALIDATION_LOSS, "held-out": HELD_OUT}
Names = Annotated[tuple[str, ...], arg(metavar="[NAME ...]")]


def reproduce(
    names: Positional[Names] = (),
    only: Annotated[
        tuple[str, ...], arg(metavar="AXIS=VALUE [AXIS=VALUE ...]", help_behavior_hint="")
    ] = EVERYTHING,
    own: bool = False,
    seeds: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None,
    search_seeds: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None,
    setting: Annotated[str | None, arg(metavar="LR,DECAY,WARMUP", help_behavior_hint="")] = None,
    choose_by: Annotated[str, arg(metavar="{" + ",".join(CHOICES) + "}")] = "validation-loss",
    precision: Annotated[
        str | None, arg(metavar="{" + ",".join(PRECISIONS) + "}", help_behavior_hint="")
    ] = None,
    preset: Annotated[str, arg(metavar="{" + ",".join(PRESETS) + "}")] = AS_DESCRIBED,
    tiny: bool = False,
    members: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None,
    processes: int = 1,
    time_limit: Annotated[float | None, arg(metavar="MINUTES", help_behavior_hint="")] = None,
    device: str = "auto",
    runs: Path = RUNS,
    results: Path = RESULTS,
    publish: bool = False,
    list: bool = False,  # noqa: A002 (the name of the option)
    json: bool = False,
) -> None:
    """Train and analyse what is missing, then show the table; nothing is overwritten.

    Published trainings are reused. After an interruption, the same command resumes.

    Args:
        names: Experiments, see --list.
        only: Select points by the values of their axes, such as row=HYLA task=SRAVEN.
        own: Ignore published results and train everything here.
        seeds: Seeds per point. By default 3, or all existing seeds of a finished point.
        search_seeds: Train every setting of the grid on this many seeds. By default a published
            choice is used; without one, the grid is searched on one seed.
        setting: Use this setting instead of a search, such as 3e-4,0.3,1000.
        choose_by: Choose the setting by validation loss, or by held-out results as in the paper.
        precision: Precision of matrix products. By default tf32 on a GPU; on a CPU bf16 if the
            hardware supports it, else fp32; existing results of any precision but fp64 count.
        preset: Train as described in the paper, or as in its authors' code.
        tiny: Train tiny models for a few steps, to test that everything works.
        members: Train at most this many models at once, to save memory.
        processes: Train this many points at once, each in its own process.
        time_limit: Stop after this many minutes; the same command resumes.
        device: auto, cpu, cuda (all GPUs) or one such as cuda:1.
        runs: Folder of the run folders.
        results: Folder of published results.
        publish: Add the finished trainings to the published results; train nothing.
        list: Show all experiments, what is missing and the estimated hours here.
        json: Print JSON only.
    """
    chosen = _experiments(names, everything=list)
    for name, count in (("processes", processes), ("members", members)):
        if count is not None and count < 1:
            raise bad_value(name, count, "a whole number of at least 1")
    if time_limit is not None and not 0 < time_limit < float("inf"):
        raise bad_value("time_limit", time_limit, "a number of minutes above 0")
    if not (results.is_dir() or publish or (results == RESULTS and not results.exists())):
        raise bad_value("results", str(results), "an existing folder of published results")
    plan = _plan(seeds, search_seeds, setting, choose_by, precision)
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    if tiny and setting:
        raise bad_value("setting", repr(setting), "no setting with --tiny")
    if publish and (tiny or own or list or plan != DEFAULT_PLAN):
        expected = "no other option but --only, --runs and --results"
        raise bad_value("publish", "further options", expected)
    options = Options(
        plan, runs,
        None if own else results, _wanted(only), tiny, device, members,
        None if time_limit is None else time.monotonic() + 60 * time_limit, preset,
    )  # fmt: skip
    if publish:
        _publish(chosen, options, json)
    elif list:
        _show_list(chosen, options, json)
    else:
        _run(chosen, options, processes, json)


def _plan(
    seeds: int | None,
    search_seeds: int | None,
    setting: str | None,
    choose_by: str,
    precision: str | None,
) -> Plan:
    if precision is not None and precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if choose_by not in CHOICES:
        raise unknown_name("choose_by", choose_by, CHOICES)
    member = None if setting is None else _setting(setting)
    return Plan(seeds, search_seeds, member, CHOICES[choose_by], precision)


def _setting(text: str) -> Member:
    parts = text.split(",")
    try:
        rate, decay, warmup = float(parts[0]), float(parts[1]), int(parts[2])
    except (ValueError, IndexError):
        parts = []
    if len(parts) != 3:
        expected = "learning rate, weight decay and warm-up steps, such as 3e-4,0.3,1000"
        raise bad_value("setting", repr(text), expected)
    return Member(0, rate, decay, warmup)


def _experiments(names: Sequence[str], *, everything: bool) -> list[Experiment]:
    if not names and not everything:
        expected = f"one or more of {', '.join(EXPERIMENTS)} (see hyla reproduce --list)"
        raise bad_value("names", "nothing", expected)
    for name in names:
        if name not in EXPERIMENTS:
            raise unknown_name("names", name, EXPERIMENTS)
    return [EXPERIMENTS[name] for name in names or EXPERIMENTS]


def _wanted(only: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse --only into values by axis."""
    wanted: dict[str, tuple[str, ...]] = {}
    expected = "AXIS=VALUE, such as kind=hyla"
    if not only:
        raise bad_value("only", "nothing", expected)
    for text in only if tuple(only) != EVERYTHING else ():
        axis, equals, value = text.partition("=")
        if not equals:
            raise bad_value("only", repr(text), expected)
        if "," in value:
            each = " ".join(f"{axis}={part.strip()}" for part in value.split(","))
            raise bad_value("only", repr(text), f"one value each: {each}")
        wanted[axis] = (*wanted.get(axis, ()), value)
    return wanted


def _run(chosen: Sequence[Experiment], options: Options, processes: int, json: bool) -> None:
    for experiment in chosen:  # fail before any training
        check_packages(options.points(experiment))
    store = options.store()
    find_devices(options.device, "fp32")
    if any(missing(p, options.plan, store) for one in chosen for p in options.points(one)):
        find_devices(options.device, options.plan.precision or "fp32")
    made: dict[str, list[Row]] = {}
    for experiment in chosen:
        _announce(experiment, options)
        try:
            if processes > 1:
                _in_processes(experiment, options, processes, quiet=json)
            made[experiment.name] = run_experiment(experiment, options, _watcher(json), tell)
        except TimeUp as error:
            tell(f"{experiment.name}: {error}; the same command resumes")
            store = options.store()
            points = options.points(experiment)
            made[experiment.name] = [
                row for point in points for row in rows(point, options.plan, store)
            ]
            break
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted: the same command resumes") from None
        if not json:
            _print_rows(experiment, options)
    if json:
        write_json(
            {name: [publishing.as_json(row) for row in found] for name, found in made.items()}
        )
    else:
        for problem in options.store().problems.values():
            tell(problem)


def _announce(experiment: Experiment, options: Options) -> None:
    store = options.store()
    left = sum(trainings_left(p, options.plan, store) for p in options.points(experiment))
    if left and not options.tiny:
        tell(f"{experiment.name}: {left} trainings are missing (--list estimates the hours)")


def _watcher(quiet: bool) -> Callable[[], Watcher]:
    return Watcher if quiet else partial(display_for, sys.stderr)


def _in_processes(experiment: Experiment, options: Options, processes: int, *, quiet: bool) -> None:
    """Complete the points, several in parallel."""
    threads, store = max(1, torch.get_num_threads() // processes), options.store()
    jobs: dict[str, Job] = {}
    for point in options.points(experiment):
        if not is_complete(point, options.plan, store):
            only: dict[str, tuple[str, ...]] = {a: (str(v),) for a, v in point.axes.items()}
            name, alone = place_name(point.axes), replace(options, only=only)
            jobs[name] = partial(_one_point, experiment.name, name, alone, threads, quiet)
    codes = dict(run_all(jobs, processes))
    bad = {name: code for name, code in codes.items() if code not in (0, OUT_OF_TIME)}
    if bad:
        each = "; ".join(f"{name} ({told(code)})" for name, code in bad.items())
        raise ValueError(f"{experiment.name}: some points failed, the others are saved: {each}.")
    if OUT_OF_TIME in codes.values():
        raise TimeUp("time is up")


def _one_point(experiment: str, name: str, options: Options, threads: int, quiet: bool) -> None:
    """Complete one point, in a process of its own."""
    torch.set_num_threads(threads)
    watcher = Watcher if quiet else partial(Lines, sys.stderr, name=name)
    try:
        options.check_time()
        run_experiment(EXPERIMENTS[experiment], options, watcher, tell)
    except TimeUp as error:
        tell(f"{name}: {error}")
        sys.exit(OUT_OF_TIME)
    except (OSError, ValueError) as error:
        tell(f"{name}: error: {error}")
        sys.exit(1)


def _publish(chosen: Sequence[Experiment], options: Options, json: bool) -> None:
    assert options.results is not None
    added = publishing.publish(chosen, options.runs, options.results, options.only)
    # Other tables may share the trainings.
    there = [e for e in EXPERIMENTS.values() if (options.results / f"{e.name}.json").exists()]
    publishing.export(there, options.results)
    if json:
        write_json(added)
        return
    for name, count in added.items():
        output().print(f"{options.results / name}: {count} added", soft_wrap=True, markup=False)


def _show_list(chosen: Sequence[Experiment], options: Options, json: bool) -> None:
    store, found = options.store(), dict[str, dict[str, Any]]()
    for experiment in chosen:
        try:
            points = options.points(experiment)
        except ValueError:  # an experiment without the axis of --only
            if len(chosen) == 1:
                raise
            continue
        left = [point for point in points if not is_complete(point, options.plan, store)]
        found[experiment.name] = {
            "points": len(points),
            "complete": len(points) - len(left),
            "trainings_left": sum(trainings_left(p, options.plan, store) for p in points),
            "hours_left": seconds_left(left, options.plan, store, options.device) / 3600,
        }
    if json:
        write_json(found)
        return
    table = Table(title="Experiments", title_justify="left")
    for name in ("name", "in the paper"):
        table.add_column(name, overflow="fold")
    for name in ("complete", "trainings left", "hours here"):
        table.add_column(name, justify="right")
    for name, one in found.items():
        complete = f"{one['complete']}/{one['points']}"
        hours = (
            f"{one['hours_left']:,.2g}" if one["hours_left"] < 10 else f"{one['hours_left']:,.0f}"
        )
        table.add_row(name, EXPERIMENTS[name].where, complete, str(one["trainings_left"]), hours)
    console = output()
    console.print(table)
    text = "Hours are a rough estimate from three training steps, uncompiled, timed just now."
    console.print(text, soft_wrap=True)
    for problem in store.problems.values():
        tell(problem)


def _print_rows(experiment: Experiment, options: Options) -> None:
    """Print the paper's, the published and the local results side by side.

    The column "together" shows rows that need both published and local trainings.
    """
    published, local = Store.open(None, options.results), Store.open(options.runs, None)
    theirs = replace(DEFAULT_PLAN, choose_by=options.plan.choose_by)
    store, lines = options.store(), dict[tuple[str, ...], dict[str, str]]()
    for point in options.points(experiment):
        chosen = choose(point, options.plan, store) if point.config else None
        plan = replace(options.plan, setting=chosen[0]) if chosen else options.plan
        columns = {
            "published": rows(point, theirs, published),
            "yours": rows(point, plan, local),
            "together": [row for row in rows(point, plan, store) if _is_mixed(row)],
        }
        for name, found in columns.items():
            for row in found:
                if row.measures and row.axes.get("label", "all") == "all":
                    place = tuple(str(row.axes.get(axis, "")) for axis in experiment.axes)
                    paper = ""
                    if row.paper and not options.tiny:
                        paper = "{:.1f} ± {:.1f}".format(*row.paper)
                    lines.setdefault(place, {"paper": paper})[name] = _shown(row.main)
    if options.preset == AS_DESCRIBED and not options.tiny:
        for row in rows_as_published(experiment, store, options.only, theirs):
            place = tuple(str(row.axes.get(axis, "")) for axis in experiment.axes)
            lines.setdefault(place, {})[AS_CODE] = _shown(row.main)
    table = Table()
    for axis in experiment.axes:
        table.add_column(axis, overflow="fold")
    names = [
        name
        for name in ("paper", "published", "yours", "together", AS_CODE)
        if any(line.get(name) for line in lines.values())
    ]
    for name in names:
        table.add_column(name, justify="right")
    for place, line in lines.items():
        table.add_row(*place, *(line.get(name, "") for name in names))
    console = output()
    preset = "" if options.preset == AS_DESCRIBED else f", {options.preset}"
    console.print(f"{experiment.title} ({experiment.where}{preset})", soft_wrap=True, markup=False)
    console.print(table)
    console.print(" ".join(_notes(options)), soft_wrap=True, markup=False)


def _notes(options: Options) -> list[str]:
    """Return the notes below the table."""
    notes = ["A functional test with tiny models."] if options.tiny else []
    notes += ["Mean ± standard error in percent (seeds)."]
    if options.plan.choose_by != DEFAULT_PLAN.choose_by:
        notes += ["The published column shows only points with a fully published grid."]
    if options.results is not None and not options.results.exists():
        notes.append(f"No published results: no folder {options.results}.")
    return notes


def _is_mixed(row: Row) -> bool:
    return row.is_local and any(one.path is None for one in row.trainings)


def _shown(sample: Sample) -> str:
    if sample.mean is None:
        return "diverged"
    error = sample.standard_error
    spread = "" if error is None else f" ± {error:.1f}"
    return f"{sample.mean:.1f}{spread} ({len(sample.values)})"
