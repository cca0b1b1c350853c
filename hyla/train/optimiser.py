"""AdamW with warm-up and cosine decay, for all members of a population at once.

Shapes: M members, P parameters of a member, flattened into one row.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hyla import products
from hyla.attention.layer import MultiHeadAttention
from hyla.layers import LayerNorm

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
FINAL_RATE = 0.1  # of the peak, at the end of the schedule


def learning_rate(
    step: Tensor, peak_M: Tensor, warmup_M: Tensor, steps: int, *, early: bool = False
) -> Tensor:
    """Return each member's rate at a step, counted from 0: a linear warm-up, then a cosine decay.

    The cosine falls to a tenth of the peak over the steps after the warm-up. early: it ends
    `warmup_M` steps before the last.

    >>> peak, warmup = torch.ones(1), torch.tensor([100])
    >>> [round(float(learning_rate(torch.tensor(t), peak, warmup, 300)), 3) for t in (0, 50, 200)]
    [0.0, 0.5, 0.55]
    """
    rising_M = step / warmup_M.clamp(min=1)
    falls_M = steps - (2 if early else 1) * warmup_M
    progress_M = ((step - warmup_M) / falls_M).clamp(0, 1)
    falling_M = FINAL_RATE + (1 - FINAL_RATE) * (1 + torch.cos(math.pi * progress_M)) / 2
    return peak_M * torch.where(step < warmup_M, rising_M, falling_M)


def step_sizes(
    step: Tensor, rate_M: Tensor, decay_M: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return AdamW's factors for update and weight decay, `[M, 1]` each, and its root correction.

    rate_M, decay_M: float64. Not part of `adamw_`, where torch.compile would recompute these powers
    for every parameter.
    """
    count = (step + 1).double()
    correction1, correction2 = 1 - BETA1**count, 1 - BETA2**count
    rate_M1 = (rate_M / correction1).to(dtype).unsqueeze(-1)
    shrink_M1 = (rate_M * decay_M).to(dtype).unsqueeze(-1)
    return rate_M1, shrink_M1, correction2.sqrt().to(dtype)


@dataclass(frozen=True)
class Moments:
    """Running means of the gradients and of their squares, `[M, P]`."""

    first: Tensor
    second: Tensor


def adamw_(
    parameters_MP: Tensor,
    moments: Moments,
    gradients_MP: Tensor,
    sizes: tuple[Tensor, Tensor, Tensor],
    decayed_P: Tensor,
    active_M: Tensor,
) -> None:
    """Take one AdamW step in place, for active members only.

    sizes: from `step_sizes`. decayed_P: mask of the parameters with weight decay.
    """
    rate_M1, shrink_M1, correction = sizes
    if products.has_adamw(parameters_MP):
        rates, shrinks = rate_M1[:, 0].tolist(), shrink_M1[:, 0].tolist()
        for member in active_M.nonzero()[:, 0].tolist():
            products.adamw_(
                parameters_MP[member], moments.first[member], moments.second[member],
                gradients_MP[member], decayed_P, beta1=BETA1, beta2=BETA2, epsilon=EPSILON,
                rate=rates[member], shrink=shrinks[member], root=float(correction),
            )  # fmt: skip
        return
    active_M1 = active_M.unsqueeze(-1)
    first = torch.lerp(gradients_MP, moments.first, BETA1)
    second = torch.lerp(gradients_MP.square(), moments.second, BETA2)
    root = second.sqrt() / correction + EPSILON
    kept = parameters_MP - shrink_M1 * (parameters_MP * decayed_P)
    moved = kept - rate_M1 * (first / root)
    parameters_MP.copy_(torch.where(active_M1, moved, parameters_MP))
    moments.first.copy_(torch.where(active_M1, first, moments.first))
    moments.second.copy_(torch.where(active_M1, second, moments.second))


def decayed_parameters(model: nn.Module, head_biases: bool) -> set[str]:
    """Return the names of the parameters with weight decay.

    As in the paper, all but biases and LayerNorms. head_biases: also the biases of queries, keys
    and values, which the published code decays because it stores them by head, as matrices.
    """
    names = set()
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            if name != "bias" and not isinstance(module, LayerNorm):
                names.add(f"{path}.{name}".removeprefix("."))
        if head_biases and isinstance(module, MultiHeadAttention):
            names.update(f"{path}.{name}.bias" for name in ("query", "key", "value"))
    return names
