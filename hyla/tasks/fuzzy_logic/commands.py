"""`hyla fuzzy`: fuzzy logic functions to look at."""

from dataclasses import asdict, dataclass
from typing import Annotated

from rich.console import Console
from rich.table import Table
from tyro.conf import arg
from tyro.extras import SubcommandApp

from hyla.cli.shared import command, library_split, progress_bar, write_json
from hyla.tasks.address import Estimate, check_index
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig, describe
from hyla.tasks.fuzzy_logic.baselines import BASELINES, explained

app = SubcommandApp()


@dataclass(frozen=True)
class FuzzySettings:
    """The settings of the task."""

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
    published_splits: bool = False
    """Take the splits of the published trainings."""

    @property
    def config(self) -> FuzzyLogicConfig:
        """The settings of the task."""
        return FuzzyLogicConfig(
            self.variables,
            self.terms,
            self.examples,
            self.held_out,
            self.unknown,
            self.split_seed,
            self.published_splits,
        )


@dataclass(frozen=True)
class FuzzyOptions(FuzzySettings):
    """Which instances, under which settings."""

    split: Annotated[str, arg(metavar="{train,held-out,unknown}")] = "train"
    """Functions of training, new combinations of their terms, or of unknown terms."""
    seed: int = 0
    """Seed of the instances."""


@command(app, "show")
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


@command(app, "stats")
def fuzzy_stats(task: FuzzyOptions, instances: int = 2000, json: bool = False) -> None:
    """Measure how well functions are read from their examples without a trained model.

    By kernel regression, which knows nothing of terms, and by readers that answer with the function
    that fits best, among those of training, of the known terms, or of all terms.

    Args:
        task: Which instances, under which settings.
        instances: How many instances to read.
        json: Print JSON only.
    """
    config, split = task.config, library_split(task.split)
    found = {}
    with progress_bar("reading", len(BASELINES)) as advance:
        for reader in BASELINES:
            values = explained(reader, config, split, range(instances), task.seed)
            found[reader] = Estimate.of(values)
            advance(1)
    if json:
        settings = asdict(config) | {"split": split, "seed": task.seed, "instances": instances}
        write_json(settings | {"r2": {reader: asdict(r2) for reader, r2 in found.items()}})
        return
    table = Table(title=f"Fuzzy logic, {instances} instances of split {task.split}")
    for name in ("reader", "R2", "standard error"):
        table.add_column(name, justify="left" if name == "reader" else "right")
    for reader, estimate in found.items():
        table.add_row(reader, f"{estimate.value:.4f}", f"{estimate.standard_error:.4f}")
    Console(highlight=False).print(table)
