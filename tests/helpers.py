"""Inputs of prime sizes, so that no two axes can be confused."""

import torch
from torch import Tensor

from hyla import KINDS

BATCH, QUERIES, KEYS, HEADS, SIZE, VALUE_SIZE = 2, 5, 7, 3, 11, 13
ALL_KINDS = list(KINDS)


def inputs(
    queries: int = QUERIES,
    keys: int = KEYS,
    *,
    value_size: int = VALUE_SIZE,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(BATCH, queries, HEADS, SIZE, dtype=dtype)
    k = torch.randn(BATCH, keys, HEADS, SIZE, dtype=dtype)
    v = torch.randn(BATCH, keys, HEADS, value_size, dtype=dtype)
    return q, k, v


def deep_weight(
    kind: str, value_size: int = VALUE_SIZE, dtype: torch.dtype = torch.float64
) -> Tensor | None:
    if KINDS[kind].value_network != "deep":
        return None
    return torch.randn(HEADS, value_size, value_size, dtype=dtype) / value_size**0.5


def relative_error(given: Tensor, exact: Tensor) -> float:
    given, exact = given.detach().double(), exact.detach().double()
    return float((given - exact).norm() / exact.norm())
