"""Fused attention: each kernel says itself, next to its code, what it implements.

Shapes: N sequences (all leading axes), M sets of biases (one for all sequences, or one for each
member of a population), Q queries, K keys, H heads, D and V head sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class KernelSpec:
    """What a kernel is made for, apart from sizes: the kind and how its scores are made."""

    normaliser: str
    value_network: str
    relu: bool
    causal: bool
    scale: float
    eps: float


class Call(NamedTuple):
    """What a kernel is asked to do: q `[N, Q, H, D]`, k `[N, K, H, D]`, v `[N, K, H, V]`, bias
    `[M, H, Q, K]` in float32, lengths `[N]` in int32, deep `[M, H, V, V]`, factors of the code
    `[M, Q, K]` in float32. All are contiguous, but k and v may be the first keys of a cache, and
    on a CPU q, k and v may be any views.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    lengths: Tensor | None
    deep: Tensor | None
    factors: Tensor | None
    spec: KernelSpec


def empty(shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for a result; a test fills it with NaN first."""
    return like.new_empty(tuple(shape), dtype=like.dtype if dtype is None else dtype)


def input_dtype(q: Tensor) -> torch.dtype:
    """What a kernel gets: under autocast not the dtype of q."""
    if q.dtype in DTYPES and torch.is_autocast_enabled(q.device.type):
        return torch.get_autocast_dtype(q.device.type)
    return q.dtype
