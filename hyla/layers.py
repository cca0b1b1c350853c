"""Linear, LayerNorm and Embedding whose parameters may carry a leading population axis.

`stack` combines modules of the same structure into one whose parameters have the members along the
first axis. Inputs then have the same axis, `[member, batch, tokens, ...]`, and each member computes
what it computes alone. A module knows that it is stacked by the shapes of its parameters.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from hyla import products
from hyla.errors import bad_value

# Standard deviation of a standard normal variable truncated at -2 and 2.
TRUNCATED_STD = 0.87962566103423978

Module = TypeVar("Module", bound=nn.Module)


def lecun_normal_(weight: Tensor, fan_in: int) -> None:
    """Fill with a normal distribution of variance 1 / fan_in, truncated at two deviations.

    Samples by inverting the CDF: `nn.init.trunc_normal_` draws different weights in PyTorch 2.11
    and 2.13, but a seed must give the same model in both.
    """
    std = 1 / math.sqrt(fan_in) / TRUNCATED_STD
    most = math.erf(math.sqrt(2))  # probability of a normal variable within two deviations
    with torch.no_grad():
        weight.uniform_(-most, most).erfinv_().mul_(std * math.sqrt(2)).clamp_(-2 * std, 2 * std)


class Linear(nn.Linear):
    """`nn.Linear` with LeCun initialisation and an optional population axis.

    >>> Linear(3, 5)(torch.randn(2, 7, 3)).shape
    torch.Size([2, 7, 5])
    """

    def reset_parameters(self) -> None:
        lecun_normal_(self.weight, self.in_features)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def is_watched(layer: nn.Module) -> bool:
    """Whether calling a layer can do more than `Linear.forward`: a subclass, a patch or hooks."""
    of_forward = layer._forward_hooks, layer._forward_pre_hooks
    hooks = (*of_forward, layer._backward_hooks, layer._backward_pre_hooks)
    replaced = type(layer) is not Linear or "forward" in vars(layer)
    return replaced or any(hooks) or nn.modules.module._has_any_global_hook()


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh approximation, as in all of the paper's models."""
    return F.gelu(x, approximate="tanh")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, after_gelu: bool = False) -> Tensor:
    """Apply `F.linear`, with separate weights for each member if there is a population axis.

    after_gelu: apply it to gelu(x).
    """
    if weight.ndim == 2 and products.suits(x, weight, bias):
        y = products.linear(x.flatten(0, -2), weight, bias, gelu=after_gelu)
        return y.unflatten(0, x.shape[:-1])
    if weight.ndim == 3 and weight.shape[0] == 1 and x.device.type == "cpu":
        check_population(x, weight)
        # Not x[0]: its backward fills a whole tensor with zeros first.
        bias = None if bias is None else bias.squeeze(0)
        y = linear(x.squeeze(0), weight.squeeze(0), bias, after_gelu=after_gelu)
        return y.unsqueeze(0)
    if after_gelu:
        x = gelu(x)
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    check_population(x, weight)
    x_MND = x.flatten(1, -2)
    # Not in half precision, where cuBLAS has a fast kernel for the weight gradient.
    single = x.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type)
    # Not in forward mode: `Product` has no jvp, since torch.compile rejects one.
    if x.device.type == "cuda" and single and forward_ad._current_level < 0:
        product: Any = Product.apply
        y_MNE = product(x_MND, weight, parts_of_sum(x_MND.shape[1], weight.shape))
    else:
        y_MNE = torch.bmm(x_MND, weight.mT)
    if bias is not None:
        # Not baddbmm, which first copies the bias to every row in a separate kernel.
        y_MNE = y_MNE + bias.unsqueeze(1).to(y_MNE.dtype)
    return y_MNE.unflatten(1, x.shape[1:-1])


def parts_of_sum(tokens: int, shape_MED: Sequence[int]) -> int:
    """Return into how many parts a GPU should split the weight gradient's sum over tokens.

    In fp32 and tf32, cuBLAS runs one block per output tile, which leaves most of the GPU idle for
    few members: it took 38 % of a step of 4 members (docs/performance.md).
    """
    members, outputs, inputs = shape_MED
    tiles, parts = members * -(-outputs // 64) * -(-inputs // 64), 1
    while 2 * parts * tiles <= 256 and tokens >= 256 * parts and tokens % (2 * parts) == 0:
        parts *= 2
    return parts


class Product(torch.autograd.Function):
    """x W^T for each member; the gradient of W is first summed over parts of the tokens."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x_MND: Tensor, weight_MED: Tensor, parts: int) -> Tensor:
        return torch.bmm(x_MND, weight_MED.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        x_MND, weight_MED, ctx.parts = inputs
        ctx.save_for_backward(x_MND, weight_MED)

    @staticmethod
    def backward(ctx: Any, grad_MNE: Tensor) -> tuple[Tensor | None, Tensor, None]:
        x_MND, weight_MED = ctx.saved_tensors
        dx_MND = torch.bmm(grad_MNE, weight_MED) if ctx.needs_input_grad[0] else None
        grad_PNE, x_PND = (t.unflatten(1, (ctx.parts, -1)).flatten(0, 1) for t in (grad_MNE, x_MND))
        parts_MPED = torch.bmm(grad_PNE.mT, x_PND).unflatten(0, (-1, ctx.parts))
        return dx_MND, parts_MPED.sum(dim=1), None


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last axis, epsilon 1e-6, with an optional population axis."""

    def __init__(
        self,
        width: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(width, eps=1e-6, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.ndim == 1:
            return super().forward(x)
        check_population(x, self.weight)
        if self.weight.shape[0] == 1:
            weight, bias = self.weight.squeeze(0), self.bias.squeeze(0)
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)
        shape = (-1, *[1] * (x.ndim - 2), x.shape[-1])
        normal = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        return normal * self.weight.view(shape) + self.bias.view(shape)


class Embedding(nn.Embedding):
    """`nn.Embedding`, initial deviation 1 / sqrt(width), with an optional population axis."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.weight.ndim == 2:
            return super().forward(tokens)
        check_population(tokens, self.weight)
        # Not indexing weight[member, token], which would accept negative tokens.
        return torch.stack([F.embedding(*pair) for pair in zip(tokens, self.weight, strict=True)])


def check_population(x: Tensor, parameter: Tensor) -> None:
    """Raise ValueError unless an input has the population axis of a stacked parameter."""
    if x.ndim < 3 or x.shape[0] != parameter.shape[0]:
        members = parameter.shape[0]
        raise bad_value("input", list(x.shape), f"[member, batch, ...] with {members} members")


def stack(members: Sequence[Module]) -> Module:
    """Combine modules into one that computes all of them along a leading population axis.

    The members may differ only in the values of their parameters.

    >>> population = stack([Linear(3, 5), Linear(3, 5)])
    >>> population(torch.randn(2, 7, 3)).shape
    torch.Size([2, 7, 5])
    """
    if not members:
        raise bad_value("members", "none", "at least one module")
    first = _settings(members[0])
    for index, other in enumerate(members):
        settings = _settings(other)
        differing = [n for n in first | settings if first.get(n) != settings.get(n)]
        if differing:
            name = differing[0]
            given = f"{name} = {first.get(name)} in member 0, {settings.get(name)} in {index}"
            raise bad_value("members", given, "modules that differ only in parameter values")
    stacked = copy.deepcopy(members[0])
    _replace_parameters(
        stacked, lambda name, _: torch.stack([m.get_parameter(name).detach() for m in members])
    )
    return stacked


def member(population: Module, index: int) -> Module:
    """Return member `index` of a stacked module as an independent copy."""
    sizes = {parameter.shape[:1] for parameter in population.parameters()}
    if len(sizes) > 1 or torch.Size([]) in sizes or any(map(_is_alone, population.modules())):
        raise bad_value("population", "an unstacked module", "a result of hyla.stack([...])")
    for (count,) in sizes:
        if not -count <= index < count:
            raise bad_value("index", index, f"a member from {-count} to {count - 1}")
    alone = copy.deepcopy(population)
    _replace_parameters(alone, lambda _, parameter: parameter.detach()[index].clone())
    return alone


def _is_alone(part: nn.Module) -> bool:
    """Whether this is one of our layers without a population axis."""
    axes = {Linear: 2, Embedding: 2, LayerNorm: 1}.get(type(part))
    return axes is not None and part.get_parameter("weight").ndim == axes


def _settings(module: nn.Module) -> dict[str, object]:
    """Return everything about a module except the values of its parameters, by name."""
    settings: dict[str, object] = {}
    for path, part in module.named_modules():
        settings[path or "module"] = type(part).__name__
        for name, value in vars(part).items():
            if not name.startswith("_"):
                settings[f"{path}.{name}".removeprefix(".")] = value
    first: dict[Tensor, str] = {}  # the first name of each parameter
    for name, p in module.named_parameters(remove_duplicate=False):
        shared = first.setdefault(p, name)
        own = (tuple(p.shape), p.dtype, p.requires_grad)
        settings[name] = own if shared == name else f"shared with {shared}"
    for name, buffer in module.named_buffers():
        settings[name] = buffer.tolist()
    return settings


def _replace_parameters(module: nn.Module, value: Callable[[str, Tensor], Tensor]) -> None:
    """Give each parameter a new value; shared parameters stay shared."""
    new: dict[Tensor, nn.Parameter] = {}
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        if parameter not in new:
            new[parameter] = nn.Parameter(value(name, parameter), parameter.requires_grad)
        _set_parameter(module, name, new[parameter])


def replace_parameter(module: nn.Module, name: str, value: Tensor, requires_grad: bool) -> None:
    """Replace a parameter with a tensor of any shape, sharing the tensor's memory."""
    _set_parameter(module, name, nn.Parameter(value, requires_grad))


def _set_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, parameter)
