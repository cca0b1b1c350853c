"""Members of a run on one device, trained and evaluated together: a step is one program.

Shapes: M members, B instances of a batch, P parameters of a member, S sums that make measures.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla import native, products, random
from hyla.attention.layer import dropout_factors
from hyla.errors import bad_value
from hyla.layers import replace_parameter, stack
from hyla.model import Transformer, build
from hyla.tasks.base import Tally, predict
from hyla.train.capture import CapturedCall
from hyla.train.config import RunConfig
from hyla.train.optimiser import (
    Moments,
    adamw_,
    decayed_parameters,
    learning_rate,
    step_sizes,
)

# Without this, PyTorch 2.11 with Triton 3.6 miscompiles a gradient (tests/test_gpu.py).
COMPILER_OPTIONS: dict[str, Any] = {"comprehensive_padding": False}

ROW_MULTIPLE = 16  # numbers of 32 bits in the widest vector register of a CPU
DROPOUT_STREAM = 254  # of random numbers; those of the data have others
LARGE = 2**17  # numbers in the tokens of a batch, above which a core's cache is for one member
AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# What the loss is multiplied by, so that gradients in fp16 are neither infinite nor rounded to 0:
# at most so much; halved when one is infinite, and doubled again every so many steps.
LARGEST_SCALE, DOUBLED_EVERY = 1024.0, 1000

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Population:
    """The members `which` of a run, stacked along the population axis.

    `advance` trains one step: data, forward, backward, optimiser. On CUDA, after
    `warm_up_kernels` and `capture`, it replays a graph and never waits for the device. On a CPU
    large members take turns within a step, so that what one of them needs stays in the cache. All
    state is in tensors that change in place; `state` gives them by name, the members along the
    first axis, and `load` sets them.
    """

    def __init__(
        self, config: RunConfig, which: range, device: torch.device, *, compiled: bool
    ) -> None:
        self.config, self.device, self.compiled = config, device, compiled
        if device.type == "cpu":
            native.keep_memory()
        members = [config.members[m] for m in which]
        if not config.task.on_device:
            raise bad_value("task", config.task_name, "one whose batches are tensor operations")
        self.task = config.task.bind([m.seed for m in members], device)
        self.tally = Tally(self.task)
        self.model, self.parameters = flat_population(config, which, device)
        self.alone: Transformer | None = None  # the one whose turn it is
        if device.type == "cpu" and len(members) > 1 and takes_turns(config):
            self.alone, self.its_parameters = flat_population(config, which[:1], device)
        self.decayed = _decay_mask(self.model, config.decay_head_biases)
        self.moments = Moments(torch.zeros_like(self.parameters), torch.zeros_like(self.parameters))

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)

        def number() -> Tensor:
            return torch.zeros((), dtype=torch.int64, device=device)

        self.seeds = torch.tensor([m.seed for m in members], device=device)
        self.peak = column([m.learning_rate for m in members])
        self.decay = column([m.weight_decay for m in members])
        self.warmup = column([m.warmup for m in members])
        self.loss_sum, self.gradient_norm = torch.zeros_like(self.peak), torch.zeros_like(self.peak)
        self.active = torch.ones(len(members), dtype=torch.bool, device=device)
        self.largest_scale = LARGEST_SCALE if config.scales_loss else 1.0
        self.scale = torch.full_like(self.peak, self.largest_scale, dtype=self.parameters.dtype)
        self.diverged_at = torch.full((len(members),), -1, device=device)
        self.step, self.next_instance, self.end_instance = number(), number(), number()
        self.offsets = torch.arange(config.batch, device=device)
        sizes = len(members), len(self.tally.names)
        self.sums = torch.zeros(sizes, dtype=torch.float64, device=device)
        self._loss, self._sizes = self._compile(self._loss_of), self._compile(self._sizes_now)
        self._loss_alone = self._compile(self._loss_of_one)
        self._learn = self._compile(self._update)
        # On a GPU a hundred launches; on a CPU a compiled one would gain nothing.
        self._draw = self._compile(self._factors) if device.type == "cuda" else self._factors
        self._step = CapturedCall(self._one_step, device)
        self._evaluations: dict[str, CapturedCall] = {}

    def warm_up_kernels(self, splits: Sequence[str] = ()) -> None:
        """Compiles the step and the evaluation of some splits by running them.

        All members are frozen meanwhile, which leaves the state as it is.
        """
        kept = {name: tensor.clone() for name, tensor in self._counters().items()}
        self.active.fill_(False)
        self._set_instances(0, "train")
        for split in splits:
            self._evaluations[split] = CapturedCall(
                partial(self._evaluate_batch, split), self.device
            )
        for function in (self._step, *self._evaluations.values()):
            function.warm_up_kernels()
        for name, tensor in self._counters().items():
            tensor.copy_(kept[name])

    def capture(self, pool: Any = None) -> Any:
        """On CUDA, makes graphs of what was rehearsed, in a pool of memory that others may share.

        Those who share it must take turns. Returns the pool.
        """
        for function in (self._step, *self._evaluations.values()):
            pool = function.capture(pool)
        return pool

    def advance(self) -> None:
        """Trains one step; a member whose loss or gradient is not finite is frozen before it.

        In fp16 a step of which the gradient alone is not finite is skipped and the scale halved,
        down to 1.
        """
        self._step()

    def take_log(self) -> Tensor:
        """Loss summed since the last call, last gradient norm, norm of the parameters, the step of
        divergence or -1, and the scale of the loss: `[M, 5]`, on the device."""
        norm = torch.linalg.vector_norm(self.parameters, dim=1, dtype=torch.float64)
        columns = self.loss_sum, self.gradient_norm, norm, self.diverged_at, self.scale
        log = torch.stack([column.double() for column in columns], dim=1)
        self.loss_sum.zero_()
        return log

    def evaluate(self, split: str, instances: int) -> Tensor:
        """The sums of `tally` over the first evaluation instances of a split, `[M, S]`."""
        evaluate_batch = self._evaluations.get(split, partial(self._evaluate_batch, split))
        self._set_instances(instances, split)
        for _ in range(-(-instances // self.config.batch)):
            evaluate_batch()
        return self.sums.clone()

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, by name; the tensors change with it."""
        named = {f"parameters.{name}": p.detach() for name, p in self.model.named_parameters()}
        moments = {"first_moment": self.moments.first, "second_moment": self.moments.second}
        return named | moments | self._counters()

    def load(self, state: dict[str, Tensor]) -> None:
        """Sets the state to values of the same names."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def _counters(self) -> dict[str, Tensor]:
        counters = {
            "step": self.step,
            "active": self.active,
            "diverged_at": self.diverged_at,
            "loss_sum": self.loss_sum,
            "gradient_norm": self.gradient_norm,
        }
        return counters | ({"scale": self.scale} if self.config.scales_loss else {})

    def _compile(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        if not self.compiled:
            return function
        return torch.compile(function, fullgraph=True, dynamic=False, options=COMPILER_OPTIONS)

    def _one_step(self) -> None:
        with arithmetic(self.config.precision, self.device):
            index, factors = self.step * self.config.batch + self.offsets, self._draw()
            if self.alone is None:
                loss_M = self._loss(index, factors)
                gradients = self._gradients(self.model, loss_M, self.scale)
            else:
                loss_M, gradients = self._in_turn(index, factors)
            with torch.no_grad():
                self._learn(loss_M.detach(), gradients, self._sizes())

    def _factors(self) -> Tensor | None:
        """Of the latent codes in this step, `[layers, member, tokens, tokens]`, for dropout.

        Random numbers of an address, as data: seed, step, layer.
        """
        fraction, tokens = self.config.model.attention_dropout, self.config.task.tokens
        if not fraction:
            return None
        count = -(-(tokens**2) // 4)  # addresses, of four words each
        places = self.step * count + torch.arange(count, device=self.device)
        layers = torch.arange(self.config.model.layers, device=self.device).view(-1, 1, 1)
        words = random.words(self.seeds.unsqueeze(-1), places, layers, DROPOUT_STREAM)
        words_LMTT = words.flatten(-2)[..., : tokens**2].unflatten(-1, (tokens, tokens))
        uniform = random.uniform(words_LMTT).to(self.parameters.dtype)
        return dropout_factors(uniform, fraction)

    def _in_turn(self, index_B: Tensor, factors: Tensor | None) -> tuple[Tensor, Sequence[Tensor]]:
        losses, gradients = [], []
        for turn, (model, batch) in enumerate(self._turns("train", index_B)):
            its_own = None if factors is None else factors[:, turn : turn + 1]
            loss = self._loss_alone(batch, its_own)
            losses.append(loss.detach())
            gradients.append(self._gradients(model, loss, self.scale[turn : turn + 1]))
        return torch.cat(losses), [torch.cat(each) for each in zip(*gradients, strict=True)]

    def _turns(self, source: str, index_B: Tensor) -> Iterator[tuple[Transformer, Any]]:
        """Give each member its turn: `alone` has its parameters, the batch is its own."""
        assert self.alone is not None
        batch = self.task.batch(source, index_B)
        for turn in range(len(self.parameters)):
            self.its_parameters.copy_(self.parameters[turn : turn + 1])
            yield self.alone, _part(batch, turn)

    @staticmethod
    def _gradients(model: Transformer, loss_M: Tensor, scale_M: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad((loss_M * scale_M).sum(), list(model.parameters()))

    def _loss_of(self, index_B: Tensor, factors: Tensor | None) -> Tensor:
        with self._autocast(AUTOCAST_DTYPES.get(self.config.precision)):
            batch = self.task.batch("train", index_B)
            return self.task.loss(self.task.outputs(predict(self.model, factors), batch), batch)

    def _loss_of_one(self, batch: Any, factors: Tensor | None) -> Tensor:
        assert self.alone is not None
        with self._autocast(AUTOCAST_DTYPES.get(self.config.precision)):
            return self.task.loss(self.task.outputs(predict(self.alone, factors), batch), batch)

    def _autocast(self, half: torch.dtype | None) -> AbstractContextManager[Any]:
        # Around a forward alone: in the backward each operation has the precision of its forward.
        if half is None or rounds_products(self.config.precision, self.device):
            return nullcontext()
        return torch.autocast(self.device.type, half, cache_enabled=False)

    def _sizes_now(self) -> tuple[Tensor, Tensor, Tensor]:
        early = self.config.schedule == "early_cosine"
        rate_M = learning_rate(self.step, self.peak, self.warmup, self.config.steps, early=early)
        return step_sizes(self.step, rate_M, self.decay, self.parameters.dtype)

    def _update(
        self, loss_M: Tensor, gradients: Sequence[Tensor], sizes: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        gradients_MP = flatten_per_member(gradients) / self.scale.unsqueeze(-1)
        norm_M = torch.linalg.vector_norm(gradients_MP, dim=1)
        known_M = self.active & loss_M.isfinite()
        learns_M = known_M & norm_M.isfinite()
        skips_M = known_M & ~learns_M & (self.scale > 1)
        active_M = learns_M | skips_M
        diverged_M = self.active & ~active_M
        adamw_(self.parameters, self.moments, gradients_MP, sizes, self.decayed, learns_M)
        self.diverged_at.copy_(torch.where(diverged_M, self.step, self.diverged_at))
        self.loss_sum.copy_(torch.where(active_M, self.loss_sum + loss_M, self.loss_sum))
        self.gradient_norm.copy_(torch.where(learns_M, norm_M, self.gradient_norm))
        self.active.copy_(active_M)
        doubles = (self.step + 1) % DOUBLED_EVERY == 0
        larger_M = torch.where(doubles, 2 * self.scale, self.scale).clamp(max=self.largest_scale)
        self.scale.copy_(torch.where(skips_M, self.scale / 2, larger_M))
        self.step.add_(1)

    @torch.no_grad()
    def _evaluate_batch(self, split: str) -> None:
        half = AUTOCAST_DTYPES.get(self.config.precision)
        # In fp16 a number that is too large would be a member that has diverged: rather in tf32.
        with (
            arithmetic(self.config.precision, self.device),
            self._autocast(half if half == torch.bfloat16 else None),
        ):
            self._add_sums(split)

    # Not compiled: it is a few percent of the work, and each split would take half a minute.
    def _add_sums(self, split: str) -> None:
        index_B = self.next_instance + self.offsets
        source = self.config.task.splits[split].source
        if self.alone is None:
            numbers_MBS = self._tallied(self.model, self.task.batch(source, index_B))
        else:
            numbers_MBS = torch.cat([self._tallied(*turn) for turn in self._turns(source, index_B)])
        counted = (index_B < self.end_instance).unsqueeze(-1)
        self.sums.add_(torch.where(counted, numbers_MBS, 0.0).sum(dim=1))
        self.next_instance.add_(self.config.batch)

    def _tallied(self, model: Transformer, batch: Any) -> Tensor:
        return self.tally(self.task.outputs(predict(model), batch), batch)

    def _set_instances(self, count: int, split: str) -> None:
        first = self.config.task.splits[split].first
        self.next_instance.fill_(first)
        self.end_instance.fill_(first + count)
        self.sums.zero_()


def flat_population(
    config: RunConfig, which: range, device: torch.device
) -> tuple[Transformer, Tensor]:
    """The initial members, stacked, and their parameters as the rows of one matrix, `[M, P]`.

    The parameters of the module are views of the matrix, so the optimiser works on one tensor.
    """
    seeds = [config.members[m].seed for m in which]
    models = {seed: build(config.model, seed) for seed in dict.fromkeys(seeds)}
    dtype = torch.float64 if config.precision == "fp64" else torch.float32
    population = stack([models[seed] for seed in seeds]).to(device, dtype)
    named = dict(population.named_parameters())
    matrix_MP = flatten_per_member([parameter.detach() for parameter in named.values()])
    start = 0
    for name, parameter in named.items():
        end = start + parameter[0].numel()
        part = matrix_MP[:, start:end].view(parameter.shape)
        replace_parameter(population, name, part, requires_grad=True)
        start = end
    return population.eval(), matrix_MP  # dropout is by `factors` alone


def _part(batch: Any, member: int) -> Any:
    """The batch of one member, which keeps the population axis."""
    tensors = {name: x for name, x in vars(batch).items() if isinstance(x, Tensor)}
    return replace(batch, **{name: x[member : member + 1] for name, x in tensors.items()})


def flatten_per_member(parts: Sequence[Tensor]) -> Tensor:
    """Tensors `[M, ...]` side by side, each member a row of a matrix.

    The rows are padded with zeros to a multiple of `ROW_MULTIPLE`. Then no row lies differently
    to the vector units than another, and a member's rounding does not depend on its place.
    """
    matrix_MP = torch.cat([part.flatten(1) for part in parts], dim=1)
    return F.pad(matrix_MP, (0, -matrix_MP.shape[1] % ROW_MULTIPLE))


def _decay_mask(population: Transformer, head_biases: bool) -> Tensor:
    """1 for each parameter of a member that weight decay acts on, 0 for the others, `[P]`."""
    decayed = decayed_parameters(population, head_biases)
    parts = [
        torch.full_like(parameter[:1], float(name in decayed), requires_grad=False)
        for name, parameter in population.named_parameters()
    ]
    return flatten_per_member(parts)[0]


def preferred_precision(config: RunConfig, device: torch.device) -> str:
    """The fastest precision not known to cost accuracy; see docs/performance.md."""
    if device.type == "cuda":
        return "tf32"
    pays = native.has_bf16() and products.is_available() and is_large(config)
    return "bf16" if pays else "fp32"


def is_large(config: RunConfig) -> bool:
    """Whether the arithmetic of a step takes longer than calling PyTorch for it."""
    return config.batch * config.task.tokens * config.model.width >= LARGE


def takes_turns(config: RunConfig) -> bool:
    """Whether a step on a CPU is that of one member after the other.

    Of small models calling PyTorch is most of the time: these are computed at once.
    """
    return is_large(config) or config.precision == "bf16"  # `products` rounds for one member


def rounds_products(precision: str, device: torch.device) -> bool:
    """Whether bf16 means linear layers that round their factors, and nothing else, to it."""
    return precision == "bf16" and device.type == "cpu" and products.is_available()


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """Matrix products of fp32 in tf32, if their precision is that or less; without autocast."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision in ("tf32", "fp16") else "highest")
    rounding = products.in_bf16(rounds_products(precision, device))
    try:
        with torch.autocast(device.type, enabled=False), rounding:
            yield
    finally:
        torch.set_float32_matmul_precision(before)
