"""`hyla train TASK`: a population of models, into a run folder.

The options are the fields of the configurations of task, model and run. They are parsed twice:
first the settings of the task and the preset, then everything with the defaults that follow.
"""

import io
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, arg
from tyro.extras import SubcommandApp

from hyla import native
from hyla.attention import ACTIVATIONS, KINDS
from hyla.cli.display import display_for, tell
from hyla.cli.members import print_summary
from hyla.cli.options import different, options_of
from hyla.cli.shared import command, library_split, stub, typed_kind, write_json
from hyla.errors import bad_value
from hyla.tasks.base import AS_DESCRIBED, TaskConfig, command_names, task_class
from hyla.train import checkpoint, loop
from hyla.train.config import Member, RunConfig, grid, task_run
from hyla.train.mirrors import TensorBoardMirror, WandbMirror
from hyla.train.runs import CHECKPOINTS, folder_name
from hyla.train.watch import Watcher

HIDDEN = ("task", "model", "members")  # fields of a run that have groups of their own
MOE = ("experts", "top_k")


@dataclass(frozen=True)
class PopulationOptions:
    """The members: one for each combination of these. They are trained as one program."""

    seeds: int = 1
    """How many seeds."""
    first_seed: int = 0
    """The first of them; a seed decides initialisation, data and splits."""
    lr: Annotated[
        tuple[float, ...] | None,
        arg(metavar="FLOAT [FLOAT ...]", help_behavior_hint="(default: that of the task)"),
    ] = None
    """Peak learning rates."""
    weight_decay: Annotated[
        tuple[float, ...] | None,
        arg(metavar="FLOAT [FLOAT ...]", help_behavior_hint="(default: that of the task)"),
    ] = None
    """Weight decays."""
    warmup: Annotated[
        tuple[int, ...] | None,
        arg(
            metavar="INT [INT ...]",
            help_behavior_hint="(default: that of the task, or a tenth of the steps if less)",
        ),
    ] = None
    """Steps of linear warm-up."""
    instances: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """Instances that each member sees, instead of --steps."""

    def members(self, usual: Member, steps: int) -> tuple[Member, ...]:
        """Return the population; `usual` has the values of what is not given."""
        if self.seeds < 1:
            raise bad_value("seeds", self.seeds, "a whole number of at least 1")
        warmup = min(usual.warmup, steps // 10)
        return grid(
            range(self.first_seed, self.first_seed + self.seeds),
            (usual.learning_rate,) if self.lr is None else different("lr", self.lr),
            (usual.weight_decay,)
            if self.weight_decay is None
            else different("weight_decay", self.weight_decay),
            (warmup,) if self.warmup is None else different("warmup", self.warmup),
        )


@dataclass(frozen=True)
class RunOptions:
    """Where and how to run. None of these is part of the configuration."""

    folder: Annotated[
        Path | None, arg(metavar="PATH", help_behavior_hint="(default: named by the settings)")
    ] = None
    """Run folder. If it holds a run with these settings, that one goes on."""
    device: str = "auto"
    """auto, cpu, cuda (all GPUs) or one such as cuda:1; auto takes GPUs if there are any."""
    compiled: bool = False
    """Compile the step even where that is not the default."""
    no_compiled: bool = False
    """Do not compile the step."""
    stop_at: Annotated[int | None, arg(metavar="STEP", help_behavior_hint="")] = None
    """Stop after this step of the schedule; the same command without it goes on."""
    members_at_once: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """Train at most this many members at the same time, for the sake of memory."""
    threads: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """Threads on a CPU; by default one for each core."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too, into the run folder."""
    wandb: Annotated[str | None, arg(metavar="PROJECT", help_behavior_hint="")] = None
    """Write the metrics to this project of Weights & Biases too."""
    dry_run: bool = False
    """Print the complete configuration and the folder as JSON; train nothing."""
    json: bool = False
    """Print JSON only: the summary, when training has ended."""

    @property
    def compiled_or_not(self) -> bool | None:
        """None where the trainer is to decide."""
        return True if self.compiled else False if self.no_compiled else None

    def check(self) -> None:
        """Refuses what does not go together or is out of range."""
        if self.compiled and self.no_compiled:
            raise bad_value("compiled", "--compiled and --no-compiled", "one of these two")
        for name in ("stop_at", "members_at_once", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise bad_value(name, value, "a whole number of at least 1")
        if not 0 <= self.checkpoint_seconds < float("inf"):
            expected = "a finite number of at least 0"
            raise bad_value("checkpoint_seconds", self.checkpoint_seconds, expected)
        if self.folder is not None and not self.folder.name:
            raise bad_value("folder", repr(str(self.folder)), "the name of a folder for this run")
        if self.wandb is not None and not self.wandb.strip():
            raise bad_value("wandb", repr(self.wandb), "the name of a project")


def app_for(arguments: Sequence[str]) -> SubcommandApp:
    """Make the commands of `hyla train`; only the one of the arguments has its options."""
    app = SubcommandApp()
    given = arguments[0] if arguments else ""
    if ":" in given:
        command(app, given)(_command(_imported(given), arguments[1:]))
    for name, task in command_names().items():
        if name == given:
            command(app, name)(_command(task_class(task), arguments[1:]))
        else:
            command(app, name)(stub(f"Train on {task.replace('_', ' ')}."))
    return app


def _imported(name: str) -> type[TaskConfig]:
    """Import a task of somebody else, named as `package.module:Class`."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise bad_value("task", repr(name), f"a class that can be imported ({error})") from None
    if not isinstance(found, type) or not issubclass(found, TaskConfig) or not found.task_name:
        raise bad_value("task", repr(name), "a TaskConfig with @register_task")
    return found


def _command(kind: type[TaskConfig], arguments: Sequence[str]) -> Callable[..., None]:
    """Make the command of a task, with the defaults that the arguments imply."""
    usual, settings = _defaults(kind, arguments)
    steps = any(one.split("=")[0] == "--steps" for one in arguments)
    sizes = [*usual.task.model_sizes, *(["tied"] if usual.model.inputs == "continuous" else [])]

    def train(task: Any, model: Any, population: Any, training: Any, run: Any) -> None:
        if population.instances is not None and steps:
            raise bad_value("steps", "--steps and --instances", "one of these two")
        values = vars(training) | {
            "task": kind(**vars(task)),
            "model": replace(usual.model, **vars(model) | {"kind": typed_kind(model.kind)}),
            "splits": different("splits", tuple(map(library_split, training.splits))),
        }
        values.pop("preset")
        for name in MOE:
            if values["model"].feed_forward != "moe" and getattr(model, name) != getattr(
                usual.model, name
            ):
                given = getattr(model, name)
                raise bad_value(name, given, "nothing but with --feed-forward moe")
        if not steps:
            values["steps"] = _steps(values["task"], values["batch"], population.instances)
        elif values["steps"] < 1:
            raise bad_value("steps", values["steps"], "a whole number of at least 1")
        values["members"] = population.members(usual.members[0], values["steps"])
        _run(RunConfig(**values), run)

    training = options_of(usual, hidden=HIDDEN, metavars={"splits": "SPLIT [SPLIT ...]"})
    train.__annotations__ |= {
        "task": options_of(settings, title="Settings of the task."),
        "model": options_of(
            usual.model,
            hidden=sizes,
            title="The model.",
            metavars={"kind": "KIND or package.module:name"},
            allowed={"kind": KINDS, "activation": ACTIVATIONS},
        ),
        "population": PopulationOptions,
        "training": _with_preset(training, kind),
        "run": RunOptions,
    }
    train.__doc__ = (
        f"Train on {kind.task_name.replace('_', ' ')}; the same command resumes where it stopped."
    )
    return train


def _steps(task: TaskConfig, batch: int, instances: int | None) -> int:
    if batch < 1:
        raise bad_value("batch", batch, "a whole number of at least 1")
    if instances is not None and instances < 1:
        raise bad_value("instances", instances, "a whole number of at least 1")
    return task.recipe().steps_of(batch) if instances is None else -(-instances // batch)


def _with_preset(training: type, kind: type[TaskConfig]) -> type:
    """Add the preset to the options of a training."""

    @dataclass(frozen=True)
    class TrainingOptions(training):  # type: ignore[misc]
        preset: Annotated[str, arg(metavar="{" + ",".join(kind.presets) + "}")] = AS_DESCRIBED
        """Where the defaults come from: the paper's text, or the code of its authors."""

    TrainingOptions.__doc__ = "How long and how precisely to train, what to measure."
    return TrainingOptions


def _defaults(kind: type[TaskConfig], arguments: Sequence[str]) -> tuple[RunConfig, TaskConfig]:
    """Parse the settings of the task and the preset alone.

    Returns the run that they imply, and the settings of the task that the preset alone implies.
    """
    group = options_of(kind())

    @dataclass(frozen=True)
    class First:
        task: group  # type: ignore[valid-type]
        preset: str = AS_DESCRIBED

    shown = [one for one in arguments if one not in ("-h", "--help")]
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            found, _ = tyro.cli(
                First, args=shown, return_unknown_args=True,
                config=(OmitArgPrefixes, FlagCreatePairsOff),
            )  # fmt: skip
    except SystemExit:  # what is wrong is said when everything is parsed
        return task_run(kind()), kind()
    run = task_run(kind(**vars(found.task)), preset=found.preset)
    return run, task_run(kind(), preset=found.preset).task


def _run(config: RunConfig, run: RunOptions) -> None:
    run.check()
    folder = Path("runs", folder_name(config)) if run.folder is None else run.folder
    if run.dry_run:
        thing = {"folder": str(folder), "config": config.to_dict()}
        sys.stdout.write(json.dumps(thing, indent=None if run.json else 2) + "\n")
        return
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    native.allowed_variants()  # refuses a wrong HYLA_CPU before a folder is made
    summary = _train(config, folder, run)
    if run.json:
        write_json({"folder": str(folder)} | summary)
    else:
        print_summary(folder, config, summary)
    if summary["state"] == "diverged":
        raise SystemExit(1)


def _train(config: RunConfig, folder: Path, run: RunOptions) -> dict[str, Any]:
    watchers = _watchers(config, folder, run)
    try:
        return loop.train(
            config, folder, device=run.device, compiled=run.compiled_or_not, stop_at=run.stop_at,
            members_at_once=run.members_at_once, checkpoint_seconds=run.checkpoint_seconds,
            watchers=watchers,
        )  # fmt: skip
    except KeyboardInterrupt:
        saved = max(map(checkpoint.step_of, checkpoint.paths(folder / CHECKPOINTS)), default=None)
        then = "starts from the beginning" if saved is None else f"goes on from step {saved}"
        raise KeyboardInterrupt(f"interrupted: the same command {then} (in {folder})") from None
    finally:
        for watcher in reversed(watchers):
            watcher.close()


def _watchers(config: RunConfig, folder: Path, run: RunOptions) -> list[Watcher]:
    """The display first: it shows what the mirrors have to say."""
    display = Watcher() if run.json else display_for(sys.stderr)
    say = tell if run.json else display.say
    watchers = [display]
    if run.tensorboard:
        watchers.append(TensorBoardMirror(folder, config, say))
    if run.wandb is not None:
        watchers.append(WandbMirror(folder, config, say, project=run.wandb))
    return watchers
