"""The options of `hyla train`: every field of a run, under a flat name, in groups.

None stands for the paper's value, which `defaults` writes into the help.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from tyro.conf import arg

from hyla.attention.layer import POSITIONS
from hyla.attention.registry import ACTIVATIONS
from hyla.attention.variants import KINDS
from hyla.cli.shared import library_split, typed_kind
from hyla.errors import bad_value, unknown_name
from hyla.experiments.paper.runs import fuzzy_logic_run, sraven_run
from hyla.model import FEED_FORWARDS, ModelConfig
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.published import PRESETS
from hyla.tasks.sraven import SravenConfig
from hyla.train.config import (
    PRECISIONS,
    SCHEDULES,
    Member,
    RunConfig,
    grid,
)

Options = TypeVar("Options")
Whole = Annotated[int | None, arg(metavar="INT")]


def choice(names: Sequence[str] | dict[str, Any]) -> str:
    """How the help shows the values of an option."""
    return "{" + ",".join(names) + "}"


def defaults(values: dict[str, Any]) -> Callable[[type[Options]], type[Options]]:
    """Shows these values in the help of a group, as what is taken if the option is not given."""

    def show(group: type[Options]) -> type[Options]:
        types: dict[str, Any] = {}
        for field in fields(group):  # type: ignore[arg-type]
            hint = arg(help_behavior_hint=f"(default: {values.get(field.name)})")
            known = field.name in values
            types[field.name] = Annotated[field.type, hint] if known else field.type
        group.__annotations__ = types
        return group

    return show


def given(options: Any) -> dict[str, Any]:
    """The options that were given, by name."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class ModelOptions:
    """The model. What is not given is the paper's."""

    kind: Annotated[
        str,
        arg(metavar="KIND", help=f"One of {', '.join(KINDS)}, or your own as package.module:name."),
    ] = "hyla"
    layers: Whole = None
    """Blocks of attention and feed-forward layer."""
    width: Whole = None
    """Size of a token between the layers."""
    heads: Whole = None
    """Heads of each layer, each of the head size."""
    head_size: Whole = None
    """Size of queries, keys and values of one head."""
    activation: Annotated[str | None, arg(metavar=choice(ACTIVATIONS))] = None
    """Nonlinearity of the value network, for the kinds that have one."""
    causal: bool = False
    """Let no token see those after it."""
    positions: Annotated[str | None, arg(metavar=choice(POSITIONS))] = None
    """How attention knows where tokens are."""
    buckets: Whole = None
    """Buckets and largest distance of the T5 position bias."""
    feed_forward: Annotated[str | None, arg(metavar=choice(FEED_FORWARDS))] = None
    """One hidden layer, or a mixture of experts."""
    hidden_size: Whole = None
    """Hidden size of the feed-forward layer."""
    experts: Whole = None
    """Experts of the mixture; the paper does not give its number."""
    attention_dropout: Annotated[float | None, arg(metavar="FLOAT")] = None
    """Fraction of the pairs of tokens left out in a step; the published code has 0.1."""
    top_k: Whole = None
    """Experts that each token takes; the paper does not give its number."""


@dataclass(frozen=True)
class PopulationOptions:
    """The members: one for each combination of these. They are trained as one program."""

    seeds: int = 1
    """How many seeds."""
    first_seed: int = 0
    """The first of them; a seed decides initialisation, data and splits."""
    lr: Annotated[tuple[float, ...] | None, arg(metavar="FLOAT [FLOAT ...]")] = None
    """Peak learning rates."""
    weight_decay: Annotated[tuple[float, ...] | None, arg(metavar="FLOAT [FLOAT ...]")] = None
    """Weight decays."""
    warmup: Annotated[tuple[int, ...] | None, arg(metavar="INT [INT ...]")] = None
    """Steps of linear warm-up."""

    def members(self, *, weight_decay: float, warmup: int) -> tuple[Member, ...]:
        """The population, with these values for what is not given."""
        if self.seeds < 1:
            raise bad_value("seeds", self.seeds, "a whole number of at least 1")
        return grid(
            range(self.first_seed, self.first_seed + self.seeds),
            different("lr", self.lr, (1e-3,)),
            different("weight_decay", self.weight_decay, (weight_decay,)),
            different("warmup", self.warmup, (warmup,)),
        )


def different(name: str, values: tuple[Any, ...] | None, default: tuple[Any, ...]) -> Any:
    """A list of the command line: at least one value, none of them twice."""
    if values is None:
        return default
    twice = next((value for value in values if values.count(value) > 1), None)
    if not values or twice is not None:
        shown = "nothing" if not values else f"{twice} twice"
        raise bad_value(name, shown, "one or more different values")
    return values


@dataclass(frozen=True)
class TrainingOptions:
    """How long and how precisely to train, what to measure."""

    steps: Whole = None
    """Steps of the whole schedule; to see the beginning of a long one use --stop-at."""
    instances: Whole = None
    """Instances that each member sees, steps times batch; instead of --steps."""
    batch: Whole = None
    """Instances of each member in a step."""
    precision: Annotated[str | None, arg(metavar=choice(PRECISIONS))] = None
    """Of matrix products (tf32, fp16, bf16), or of everything (fp32, fp64)."""
    preset: Annotated[str, arg(metavar=choice(PRESETS))] = "as_described"
    """as_published: dropout, schedule, decay and splits of the published code, not of the text."""
    schedule: Annotated[str | None, arg(metavar=choice(SCHEDULES))] = None
    """How the learning rate falls after the warm-up: to the last step, or a warm-up earlier."""
    decay_head_biases: bool = False
    """Let weight decay act on the biases of queries, keys and values, as the authors' code does."""
    log_every: Whole = None
    """Steps between two records of training loss and norms."""
    evaluate_every: Whole = None
    """Steps between two evaluations on the way; 0: none."""
    interim_instances: Whole = None
    """Instances of each split in an evaluation on the way."""
    evaluation_instances: Whole = None
    """Instances of each split in the evaluation at the end."""
    splits: Annotated[tuple[str, ...] | None, arg(metavar="SPLIT [SPLIT ...]")] = None
    """Splits to evaluate on: train, held-out, and all (sraven) or unknown (fuzzy)."""

    def length(self, *, batch: int, steps: int | None = None, instances: int = 0) -> int:
        """Steps of the schedule, with these values for what is not given."""
        batch = batch if self.batch is None else self.batch
        if batch < 1:
            raise bad_value("batch", batch, "a whole number of at least 1")
        if self.steps is not None and self.instances is not None:
            raise bad_value("steps", "--steps and --instances", "one of these two")
        for name in ("steps", "instances"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise bad_value(name, value, "a whole number of at least 1")
        if self.instances is not None:
            return -(-self.instances // batch)
        if self.steps is not None:
            return self.steps
        return -(-instances // batch) if steps is None else steps

    @property
    def rest(self) -> dict[str, Any]:
        """The fields of a run that were given, but for its length."""
        values = given(self)
        values.pop("steps", None)
        values.pop("instances", None)
        values.pop("preset")
        if self.splits is not None:
            names = tuple(library_split(name) for name in self.splits)
            values["splits"] = different("splits", names, ())
        return values


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


PAPER = {"sraven": sraven_run((Member(),)), "fuzzy_logic": fuzzy_logic_run((Member(warmup=100),))}
BATCH = 128
SRAVEN_INSTANCES, SRAVEN_DECAY, SRAVEN_WARMUP = 20_000_000, 0.1, 1000
FUZZY_STEPS, FUZZY_DECAY, FUZZY_WARMUP = 50_000, 0.03, 100


def _population(weight_decay: float, warmup: int) -> dict[str, Any]:
    shown = f"{warmup}, or a tenth of the steps if that is less"
    return {"lr": 0.001, "weight_decay": weight_decay, "warmup": shown}


def _training(task: str) -> dict[str, Any]:
    return asdict(PAPER[task]) | {"splits": " ".join(PAPER[task].splits).replace("_", "-")}


@defaults(asdict(PAPER["sraven"].model) | {"buckets": "9 for each feature"})
@dataclass(frozen=True)
class SravenModelOptions(ModelOptions):
    """The model. What is not given is the paper's."""

    width_factor: int = 1
    """Multiplies the paper's width, hidden size and number of heads."""
    head_size_by_width: bool = False
    """Multiply the size of the heads instead of their number, as the paper's text says."""


@defaults(asdict(PAPER["fuzzy_logic"].model) | {"buckets": "one for each example"})
class FuzzyModelOptions(ModelOptions):
    """The model. What is not given is the paper's."""


@defaults(_population(SRAVEN_DECAY, SRAVEN_WARMUP))
class SravenPopulationOptions(PopulationOptions):
    """The members: one for each combination of these. They are trained as one program."""


@defaults(_population(FUZZY_DECAY, FUZZY_WARMUP))
class FuzzyPopulationOptions(PopulationOptions):
    """The members: one for each combination of these. They are trained as one program."""


@defaults(_training("sraven") | {"steps": "see --instances", "instances": SRAVEN_INSTANCES})
class SravenTrainingOptions(TrainingOptions):
    """How long and how precisely to train, what to measure."""


@defaults(_training("fuzzy_logic") | {"instances": "see --steps"})
class FuzzyTrainingOptions(TrainingOptions):
    """How long and how precisely to train, what to measure."""


def sraven_config(
    task: SravenConfig,
    model: SravenModelOptions,
    population: PopulationOptions,
    training: TrainingOptions,
) -> RunConfig:
    """The run that these options describe."""
    if model.width_factor < 1:
        raise bad_value("width_factor", model.width_factor, "a whole number of at least 1")
    if model.head_size_by_width and model.width_factor == 1:
        raise bad_value("head_size_by_width", True, "a --width-factor of 2 or more beside it")
    sizes = ["width", "hidden_size", "head_size" if model.head_size_by_width else "heads"]
    if model.width_factor > 1 and set(sizes) <= set(given(model)):
        expected = f"1 where {', '.join(sizes)} are given: nothing is left to multiply"
        raise bad_value("width_factor", model.width_factor, expected)
    steps = training.length(batch=BATCH, instances=SRAVEN_INSTANCES)
    warmup = min(SRAVEN_WARMUP, steps // 10)
    batch = BATCH if training.batch is None else training.batch
    run = sraven_run(
        population.members(weight_decay=SRAVEN_DECAY, warmup=warmup),
        width_factor=model.width_factor, more_heads=not model.head_size_by_width,
        instances=steps * batch, batch=batch, task=task,
    )  # fmt: skip
    return _replaced(run, model, training)


def fuzzy_config(
    task: FuzzyLogicConfig,
    model: ModelOptions,
    population: PopulationOptions,
    training: TrainingOptions,
) -> RunConfig:
    """The run that these options describe."""
    steps = training.length(batch=BATCH, steps=FUZZY_STEPS)
    members = population.members(weight_decay=FUZZY_DECAY, warmup=min(FUZZY_WARMUP, steps // 10))
    return _replaced(fuzzy_logic_run(members, steps=steps, task=task), model, training)


def _replaced(run: RunConfig, model: ModelOptions, training: TrainingOptions) -> RunConfig:
    """The paper's run with the options that were given."""
    names = {field.name for field in fields(ModelConfig)}
    changes = {name: value for name, value in given(model).items() if name in names}
    changes["kind"] = typed_kind(model.kind)
    for name in ("experts", "top_k"):
        if name in changes and model.feed_forward != "moe":
            raise bad_value(name, changes[name], "nothing but with --feed-forward moe")
    if training.preset not in PRESETS:
        raise unknown_name("preset", training.preset, PRESETS)
    run = PRESETS[training.preset](run)
    rest = training.rest
    if not training.decay_head_biases:  # a flag cannot take back what the preset says
        rest.pop("decay_head_biases")
    return replace(run, model=replace(run.model, **changes), **rest)
