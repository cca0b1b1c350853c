"""`hyla sraven`: symbolic Raven's matrices to look at, to solve, to measure and to export."""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

from hyla.cli.shared import checked_device, command, library_split, progress_bar, write_json
from hyla.drawing import FORMATS, save
from hyla.errors import bad_value, unknown_name
from hyla.files import new_file, without_nan
from hyla.tasks.address import Estimate, check_index
from hyla.tasks.base import FIRST_EVALUATION_INSTANCE
from hyla.tasks.sraven import Sraven, SravenConfig
from hyla.tasks.sraven.answers import (
    ArithmeticAnswers,
    agreement_after_row_swap,
    arithmetic_answers,
)
from hyla.tasks.sraven.draw import draw
from hyla.tasks.sraven.export import FIELDS, export, format_of, records, solved
from hyla.tasks.sraven.show import print_answers, print_instance
from hyla.tasks.sraven.stats import statistics
from hyla.tasks.sraven.text import read_instance
from hyla.train.trained import load_member

PriorOption = Annotated[str | None, arg(metavar="{all,train,held-out}")]

app = SubcommandApp()


@dataclass(frozen=True)
class SravenSettings:
    """The settings of the task."""

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
    published_splits: bool = False
    """Take the splits of the published trainings."""

    @property
    def config(self) -> SravenConfig:
        """The settings of the task."""
        return SravenConfig(
            self.features,
            self.values,
            self.held_out,
            not self.no_permute,
            self.split_seed,
            self.published_splits,
        )


@dataclass(frozen=True)
class SravenOptions(SravenSettings):
    """Which instances, under which settings."""

    split: Annotated[str, arg(metavar="{all,train,held-out}")] = "all"
    """Draw rules from all combinations, those of training or those held out."""
    seed: int = 0
    """Seed of the instances."""


def _prior(given: str | None) -> str | None:
    return None if given is None else library_split(given)


@command(app, "show")
def sraven_show(
    task: SravenOptions,
    index: int = 0,
    prior: PriorOption = None,
    unambiguous: bool = False,
    output: Annotated[Path | None, arg(metavar="FILE")] = None,
    json: bool = False,
) -> None:
    """Print an instance with its rules and all consistent answers, or draw it.

    Args:
        task: Which instances, under which settings.
        index: Number of the instance.
        prior: The split whose rules the probabilities take to be possible; by default the same.
        unambiguous: Take only instances that have one consistent answer.
        output: Also draw the instance to this .svg or .png file.
        json: Print JSON only.
    """
    check_index("index", index)
    picture = None if output is None else output.suffix.removeprefix(".").lower()
    if picture is not None and picture not in FORMATS:
        raise unknown_name("output (its extension)", picture, FORMATS)
    source, split = Sraven(task.config, task.seed), library_split(task.split)
    [record] = records(
        source, split, range(index, index + 1), prior=_prior(prior), unambiguous=unambiguous
    )
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


@command(app, "solve")
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


@command(app, "stats")
def sraven_stats(
    task: SravenOptions,
    instances: int = 16_384,
    prior: PriorOption = None,
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
    prior = _prior(prior) or split
    config, place = task.config, checked_device(device)
    with progress_bar("solving", instances) as advance:
        measured = statistics(
            config, split, instances, prior=prior, seed=task.seed, device=place, progress=advance
        )
    if json:
        settings = asdict(config) | {"split": split, "prior": prior, "seed": task.seed}
        write_json(settings | asdict(measured))
        return
    title = f"SRAVEN, {instances} instances of split {task.split}, prior {prior.replace('_', '-')}"
    table = Table(title=title)
    for name in ("measure", "value", "standard error"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    estimates = {
        name: found for name, found in vars(measured).items() if isinstance(found, Estimate)
    }
    for rule, found in measured.feature_accuracy_by_rule.items():
        estimates[f"features right under {rule}"] = found
    for name, estimate in estimates.items():
        numbers = (f"{estimate.value:.5f}", f"{estimate.standard_error:.5f}")
        table.add_row(name.replace("_", " "), *numbers)
    Console(highlight=False).print(table)


@command(app, "export")
def sraven_export(
    path: Positional[Path],
    task: SravenOptions,
    format: Annotated[str | None, arg(metavar="{parquet,jsonl}")] = None,  # noqa: A002
    instances: int = 1000,
    start: int = 0,
    prior: PriorOption = None,
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
        prior: The split whose rules the probabilities take to be possible; by default the same. A
            model that does not know the held-out combinations must consider all of them.
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
            prior=_prior(prior), unambiguous=unambiguous, overwrite=overwrite, progress=advance,
        )  # fmt: skip
    size = path.stat().st_size
    if json:
        write_json(
            {"path": str(path), "format": file_format, "instances": instances, "bytes": size}
        )
    else:
        sys.stdout.write(f"Wrote {instances} instances to {path} ({file_format}, {size} bytes)\n")


@command(app, "answers")
def sraven_answers(
    name_or_path: Positional[Path],
    member: int = 0,
    instances: int = 2000,
    split: Annotated[str, arg(metavar="{all,train,held-out}")] = "held-out",
    json: bool = False,
) -> None:
    """Measure whether a trained model tells addition from subtraction, and which rows it uses.

    Args:
        name_or_path: A run folder, or the name of a packaged model, such as sraven-hyla.
        member: Number of the member.
        instances: How many instances, none of them seen in training.
        split: Draw rules from all combinations, those of training or those held out.
        json: Print JSON only.
    """
    config, model = load_member(name_or_path, member)
    if not isinstance(config.task, SravenConfig):
        raise bad_value("name_or_path", f"a model of {config.task_name}", "a model of sraven")
    source = Sraven(config.task, config.members[member].seed)
    first = FIRST_EVALUATION_INSTANCE
    batch = source.batch(library_split(split), range(first, first + instances))
    answers, kept = arithmetic_answers(model, batch), agreement_after_row_swap(model, batch)
    if json:
        parts = {rule: asdict(x) | {"told_apart": x.told_apart} for rule, x in answers.items()}
        write_json(without_nan({"arithmetic": parts, "agreement_after_row_swap": kept}))
        return
    for text in _in_words(answers, kept):
        Console(highlight=False).print(text, soft_wrap=True)


def _in_words(answers: dict[str, ArithmeticAnswers], kept: dict[str, float]) -> Iterator[str]:
    """One line for each rule that occurs, one for both, and one for rows."""
    results = {"addition": ("sum", "difference"), "subtraction": ("difference", "sum")}
    for rule, found in answers.items():
        right, other = results[rule]
        if found.count:
            yield (
                f"Answers under {rule}, held out: {100 * found.right:.1f} % the {right}, "
                f"{100 * found.other:.1f} % the {other} (of {found.count} where they differ)"
            )
    parts = [(x.right * x.count, x.other * x.count) for x in answers.values() if x.count]
    rightly, either = sum(x for x, _ in parts), sum(x + y for x, y in parts)
    if either:
        right_part = f"{100 * rightly / either:.1f} ± {50 / either**0.5:.1f}"
        yield (
            f"Told apart: of the answers that are the sum or the difference {right_part} % are "
            "right, 50 by chance"
        )
    if kept:
        parts_of_rows = ", ".join(f"the {row} {100 * part:.1f} %" for row, part in kept.items())
        yield (
            f"Answers unchanged when a row is swapped with another instance's: {parts_of_rows} "
            "(100 %: the row is not used)"
        )
