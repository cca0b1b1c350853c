"""The command `hyla`: one typed function for each subcommand."""

import io
import json as json_module
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg
from tyro.extras import SubcommandApp

from hyla.errors import bad_value, unknown_name
from hyla.tasks.export import (
    FIELDS,
    check_index,
    export,
    format_of,
    new_file,
    records,
    solved,
)
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig, describe
from hyla.tasks.sraven import Sraven, SravenConfig
from hyla.tasks.sraven_draw import draw, save
from hyla.tasks.sraven_print import print_answers, print_instance
from hyla.tasks.sraven_stats import statistics
from hyla.tasks.sraven_text import read_instance

PICTURES = ("svg", "png")
OPTIONAL_PACKAGES = ("matplotlib", "pyarrow")

app = SubcommandApp()
sraven = SubcommandApp()
fuzzy = SubcommandApp()
app.command(sraven, name="sraven", help="Symbolic Raven's matrices: show, solve, measure, export.")
app.command(fuzzy, name="fuzzy", help="Fuzzy logic functions to be learned in context.")


@dataclass(frozen=True)
class SravenOptions:
    """Which instances, under which settings."""

    split: Annotated[str, arg(metavar="{all,train,held-out}")] = "all"
    """Draw rules from all combinations, those of training or those held out."""
    seed: int = 0
    """Seed of the instances."""
    features: int = SravenConfig.features
    """Symbols of a panel."""
    values: int = SravenConfig.values
    """How many different symbols there are."""
    held_out: float = SravenConfig.held_out
    """Fraction of the rule combinations that is held out."""
    no_permute: bool = False
    """Show the features of all columns in the same order, that of their rules."""
    split_seed: int = SravenConfig.split_seed
    """Seed that draws the held-out combinations; -1: that of the instances."""

    @property
    def config(self) -> SravenConfig:
        """The settings of the task."""
        return SravenConfig(
            self.features, self.values, self.held_out, not self.no_permute, self.split_seed
        )


@dataclass(frozen=True)
class FuzzyOptions:
    """Which instances, under which settings."""

    split: Annotated[str, arg(metavar="{train,held-out,unknown}")] = "train"
    """Functions of training, new combinations of their terms, or of unknown terms."""
    seed: int = 0
    """Seed of the instances."""
    variables: int = FuzzyLogicConfig.variables
    """Variables of a function."""
    terms: int = FuzzyLogicConfig.terms
    """Conjunctions of a function."""
    examples: int = FuzzyLogicConfig.examples
    """Examples of a sequence, the query included."""
    held_out: float = FuzzyLogicConfig.held_out
    """Fraction of the term combinations that is held out."""
    unknown: float = FuzzyLogicConfig.unknown
    """Fraction of the terms that is kept for the split unknown."""
    split_seed: int = FuzzyLogicConfig.split_seed
    """Seed that draws the held-out combinations; -1: that of the instances."""

    @property
    def config(self) -> FuzzyLogicConfig:
        """The settings of the task."""
        values = asdict(self)
        del values["split"], values["seed"]
        return FuzzyLogicConfig(**values)


def library_split(name: str) -> str:
    """The name of a split in the library.

    >>> library_split("held-out")
    'held_out'
    """
    return name.replace("-", "_")


@sraven.command(name="show")
def sraven_show(
    task: SravenOptions,
    index: int = 0,
    unambiguous: bool = False,
    output: Annotated[Path | None, arg(metavar="FILE")] = None,
    json: bool = False,
) -> None:
    """Print an instance with its rules and all consistent answers, or draw it.

    Args:
        task: Which instances, under which settings.
        index: Number of the instance.
        unambiguous: Take only instances that have one consistent answer.
        output: Also draw the instance to this .svg or .png file.
        json: Print JSON only.
    """
    check_index("index", index)
    picture = None if output is None else output.suffix.removeprefix(".").lower()
    if picture is not None and picture not in PICTURES:
        raise unknown_name("output (its extension)", picture, PICTURES)
    source, split = Sraven(task.config, task.seed), library_split(task.split)
    [record] = records(source, split, range(index, index + 1), unambiguous=unambiguous)
    if output is not None and picture is not None:
        title = f"SRAVEN, seed {task.seed}, split {task.split}, instance {index}"
        figure = draw(record["panels"], task.values, title)
        with new_file(output, overwrite=True) as handle:
            save(figure, handle, picture)
    if json:
        write_json(record)
        return
    console = Console(highlight=False)
    print_instance(console, record)
    if output is not None:
        console.print(f"\nDrawn to {output}", soft_wrap=True)


@sraven.command(name="solve")
def sraven_solve(
    file: Positional[Annotated[str, arg(metavar="[FILE|-]")]] = "-",
    values: Annotated[int | None, arg(metavar="INT")] = None,
    no_permute: bool = False,
    json: bool = False,
) -> None:
    """Find every answer to an instance, with its probability, all rule combinations alike likely.

    Args:
        file: JSON, {"values": 8, "panels": [3 rows of 3 panels]}; - is standard input.
        values: How many different symbols there are, whatever the instance says.
        no_permute: Take the features of all columns to be in the same order, that of their rules.
        json: Print JSON only.
    """
    text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    instance = read_instance(
        text, values=values, permute=False if no_permute else None, fields=tuple(FIELDS)
    )
    result = solved(instance)
    if json:
        write_json(result)
    else:
        print_answers(Console(highlight=False), result)


@sraven.command(name="stats")
def sraven_stats(
    task: SravenOptions,
    instances: int = 16_384,
    prior: Annotated[str | None, arg(metavar="{all,train,held-out}")] = None,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Measure how often instances are ambiguous, and how well any solver can do.

    Args:
        task: Which instances, under which settings.
        instances: How many instances to solve.
        prior: The split whose rules the solver takes to be possible; by default the same.
        device: Where to compute: cpu, or cuda.
        json: Print JSON only.
    """
    split = library_split(task.split)
    prior = split if prior is None else library_split(prior)
    config, place = task.config, checked_device(device)
    with progress_bar("solving", instances) as advance:
        measured = statistics(
            config, split, instances, prior=prior, seed=task.seed, device=place, progress=advance
        )
    if json:
        settings = asdict(config) | {"split": split, "prior": prior, "seed": task.seed}
        write_json(settings | asdict(measured))
        return
    table = Table(title=f"SRAVEN, {instances} instances of split {task.split}")
    for name in ("measure", "value", "standard error"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name, estimate in vars(measured).items():
        if name != "instances":
            numbers = (f"{estimate.value:.5f}", f"{estimate.standard_error:.5f}")
            table.add_row(name.replace("_", " "), *numbers)
    Console(highlight=False).print(table)


@sraven.command(name="export")
def sraven_export(
    path: Positional[Path],
    task: SravenOptions,
    format: Annotated[str | None, arg(metavar="{parquet,jsonl}")] = None,  # noqa: A002
    instances: int = 1000,
    start: int = 0,
    unambiguous: bool = False,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Write instances with rules, consistent answers, their posterior, and prompts for models.

    Args:
        path: The file to write.
        task: Which instances, under which settings.
        format: parquet or jsonl; by default what the extension of the file says.
        instances: How many instances.
        start: Number of the first instance.
        unambiguous: Write only instances that have one consistent answer.
        overwrite: Replace the file if it exists.
        json: Print JSON only.
    """
    if instances < 1:
        raise bad_value("instances", instances, "a whole number of at least 1")
    if str(path) == "-":
        raise bad_value("path", "'-'", "the name of a file")
    check_index("start", start, instances)
    file_format = format_of(path, format)
    source, split = Sraven(task.config, task.seed), library_split(task.split)
    with progress_bar("writing", instances) as advance:
        export(
            path, source, split, range(start, start + instances), file_format=file_format,
            unambiguous=unambiguous, overwrite=overwrite, progress=advance,
        )  # fmt: skip
    size = path.stat().st_size
    if json:
        write_json(
            {"path": str(path), "format": file_format, "instances": instances, "bytes": size}
        )
    else:
        sys.stdout.write(f"Wrote {instances} instances to {path} ({file_format}, {size} bytes)\n")


@fuzzy.command(name="show")
def fuzzy_show(task: FuzzyOptions, index: int = 0, json: bool = False) -> None:
    """Print a function, its examples and the query.

    Args:
        task: Which instances, under which settings.
        index: Number of the instance.
        json: Print JSON only.
    """
    check_index("index", index)
    config, split = task.config, library_split(task.split)
    batch = FuzzyLogic(config, task.seed).batch(split, range(index, index + 1))
    terms, inputs = batch.terms[0].tolist(), batch.inputs[0, :, :-1].tolist()
    targets, formula = batch.targets[0].tolist(), describe(terms, config.variables)
    if json:
        address = {"seed": task.seed, "split": split, "index": index}
        latents = {"term_numbers": terms, "formula": formula}
        write_json(address | asdict(config) | latents | {"inputs": inputs, "targets": targets})
        return
    console = Console(highlight=False)
    console.print(f"Fuzzy logic, seed {task.seed}, split {task.split}, instance {index}\n")
    console.print(f"f = {formula}\n", soft_wrap=True)
    table = Table()
    for name in ("", *(f"x{j + 1}" for j in range(config.variables)), "f"):
        table.add_column(name, justify="right")
    for number, (x, target) in enumerate(zip(inputs, targets, strict=True)):
        query = number == config.examples - 1
        shown = f"? ({target:.3f})" if query else f"{target:.3f}"
        name = "query" if query else str(number)
        table.add_row(
            name, *(f"{value:.3f}" for value in x), shown, end_section=number == len(inputs) - 2
        )
    console.print(table)


def checked_device(name: str) -> torch.device:
    """A device that exists here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise bad_value("device", repr(name), "a device of this machine, such as cpu") from None
    return device


def write_json(thing: Any) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(json_module.dumps(thing) + "\n")


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if that is a terminal; yields what advances it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    """Lets a request to end run what cleans up, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _fail(message: str, code: int) -> SystemExit:
    sys.stderr.write(" ".join(message.split()) + "\n")
    return SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command of the command line; what is wrong with it is told in one line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        with _ended_like_interrupted():
            app.cli(prog="hyla", args=arguments, config=(OmitArgPrefixes, FlagCreatePairsOff))
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise _fail("interrupted", 130) from None
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python must not flush it again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL_PACKAGES:
            raise
        raise _fail(f"error: this needs {error.name}: pip install {error.name}", 2) from None
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise _fail(f"error: {reason}", 2) from None
    except ValueError as error:
        raise _fail(f"error: {error}", 2) from None


if __name__ == "__main__":
    main()
