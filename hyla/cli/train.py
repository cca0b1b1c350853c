"""`hyla train`: a population of models, into a run folder."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tyro.extras import SubcommandApp

from hyla import native
from hyla.cli.display import display_for, tell
from hyla.cli.members import print_summary
from hyla.cli.shared import command, write_json
from hyla.cli.train_options import (
    FuzzyModelOptions,
    FuzzyPopulationOptions,
    FuzzyTrainingOptions,
    RunOptions,
    SravenModelOptions,
    SravenPopulationOptions,
    SravenTrainingOptions,
    fuzzy_config,
    sraven_config,
)
from hyla.tasks.fuzzy_logic.commands import FuzzySettings
from hyla.tasks.sraven.commands import SravenSettings
from hyla.train import checkpoint, loop
from hyla.train.config import RunConfig
from hyla.train.mirrors import TensorBoardMirror, WandbMirror
from hyla.train.runs import CHECKPOINTS, folder_name
from hyla.train.watch import Watcher

app = SubcommandApp()


@command(app, "sraven")
def train_sraven(
    model: SravenModelOptions,
    task: SravenSettings,
    population: SravenPopulationOptions,
    training: SravenTrainingOptions,
    run: RunOptions,
) -> None:
    """Train on symbolic Raven's matrices; the same command again goes on where it stopped."""
    _run(sraven_config(task.config, model, population, training), run)


@command(app, "fuzzy")
def train_fuzzy(
    model: FuzzyModelOptions,
    task: FuzzySettings,
    population: FuzzyPopulationOptions,
    training: FuzzyTrainingOptions,
    run: RunOptions,
) -> None:
    """Train on fuzzy logic functions; the same command again goes on where it stopped."""
    _run(fuzzy_config(task.config, model, population, training), run)


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
