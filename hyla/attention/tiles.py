"""Fused attention of every kind in Triton: how `tiles_kernels` are cut and launched.

Shapes: as in `fused`, with M sets of biases or of deep value matrices.
"""

# mypy: disable-error-code="import-untyped"

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from hyla.attention import fused
from hyla.attention.fused import Call, Form
from hyla.attention.tiles_kernels import (
    bias_kernel,
    deep_kernel,
    forward_kernel,
    key_kernel,
    query_kernel,
)

# Of float32 products: exact. Other dtypes are not affected.
PRECISION = "ieee"
# A few programs for each multiprocessor of a large GPU.
PROGRAMS = 256


@dataclass(frozen=True)
class Tiles:
    """How a kernel is cut: queries, keys and columns of a tile, powers of two; launch options.

    Where D or V have more columns, a program makes only so many of its results, and recomputes
    for them what the others share.
    """

    queries: int
    keys: int
    columns: int
    num_warps: int
    num_stages: int


def tiles_for(kernel: str, form: Form, heads: int, size: int, dtype: torch.dtype) -> Tiles:
    """The tiles of a kernel: `forward`, `query`, `key`, `bias` or `deep`. size: of D and V.

    All tiles of a program must fit into 227 KiB of shared memory.
    """
    linear, deep = form.value_network == "linear", form.value_network == "deep"
    heads = triton.next_power_of_2(heads) if linear else max(16, triton.next_power_of_2(heads))
    columns = max(16, 2048 // (heads * dtype.itemsize))
    stages = 2 if kernel == "forward" and size <= columns else 1
    if linear:
        side = 32 if heads <= 8 and size <= 64 and dtype.itemsize == 2 else 16
        return Tiles(side, side, columns, 8, stages)
    # The sum over queries, or over keys, needs 16 of them, the other axis does not.
    other = 16 if dtype.itemsize == 2 and heads == 16 and size <= 64 and not deep else 8
    queries, keys = (16, other) if kernel in ("key", "deep") else (other, 16)
    return Tiles(queries, keys, columns, 8, stages)


def _constants(q_NQHD: Tensor, k_NKHD: Tensor, v_NKHV: Tensor, form: Form) -> dict[str, Any]:
    """The arguments that all kernels take alike."""
    heads = triton.next_power_of_2(q_NQHD.shape[2])
    return {
        "k_stride": k_NKHD.stride(0),
        "v_stride": v_NKHV.stride(0),
        "Q": q_NQHD.shape[1],
        "K": k_NKHD.shape[1],
        "scale": form.scale,
        "eps": form.eps,
        "H": q_NQHD.shape[2],
        "D": q_NQHD.shape[3],
        "V": v_NKHV.shape[3],
        # A tensor core sums over at least 16, and makes at least 8 sums; linear value networks do
        # neither with heads.
        "HS": heads if form.value_network == "linear" else max(8, heads),
        "HP": heads if form.value_network == "linear" else max(16, heads),
        "NORMALISER": form.normaliser,
        "NETWORK": form.value_network,
        "RELU": form.relu,
        "CAUSAL": form.causal,
        "PRECISION": PRECISION,
    }


def _shares(call: Call) -> dict[str, int]:
    """How many sequences have one set of biases, of deep matrices, of factors."""
    sets = {"bias": call.bias, "deep": call.deep, "factor": call.factors}
    sequences = call.q.shape[0]
    return {
        f"{name}_share": 1 if x is None else sequences // x.shape[0] for name, x in sets.items()
    }


def _cut(
    kernel: str, q_NQHD: Tensor, v_NKHV: Tensor, form: Form, tiles: Tiles | None
) -> tuple[int, int, int, int, dict[str, int]]:
    """How many tiles there are, of queries, keys, columns of D and of V; and the options."""
    Q, H, D = q_NQHD.shape[1:]
    K, V = v_NKHV.shape[1], v_NKHV.shape[3]
    tiles = tiles or tiles_for(kernel, form, H, max(D, V), q_NQHD.dtype)
    # Tensor cores sum over at least 16 columns.
    d_columns, v_columns = (max(16, triton.next_power_of_2(size)) for size in (D, V))
    d_columns = min(d_columns, tiles.columns)
    if form.value_network != "deep":
        v_columns = min(v_columns, tiles.columns)
    options = {
        "DC": d_columns,
        "VC": v_columns,
        "BQ": tiles.queries,
        "BK": tiles.keys,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }
    cuts = ((Q, tiles.queries), (K, tiles.keys), (D, d_columns), (V, v_columns))
    queries, keys, d_chunks, v_chunks = (triton.cdiv(size, part) for size, part in cuts)
    return queries, keys, d_chunks, v_chunks, options


def _splits(programs: int, key_tiles: int, form: Form) -> int:
    """Into how many parts the keys are split, where queries alone occupy little of the GPU."""
    if form.normaliser == "softmax":
        return 1
    return max(1, min(PROGRAMS // programs, key_tiles))


def forward(call: Call, *, tiles: Tiles | None = None) -> tuple[Tensor, Tensor | None]:
    """The output [N, Q, H, V] and, for softmax codes, the log-sum-exp of the scores [N, H, Q]."""
    q_NQHD, k_NKHD, v_NKHV, form = *call[:3], call.form
    N, Q, H, V = *q_NQHD.shape[:3], v_NKHV.shape[3]
    query_tiles, key_tiles, _, chunks, options = _cut("forward", q_NQHD, v_NKHV, form, tiles)
    splits = _splits(N * query_tiles * chunks, key_tiles, form)
    split_tiles = triton.cdiv(key_tiles, splits)
    splits = triton.cdiv(key_tiles, split_tiles)
    dtype = v_NKHV.dtype if splits == 1 else torch.float32
    out_SNQHV = fused.empty((splits, N, Q, H, V), q_NQHD, dtype)
    lse_NHQ = None
    if form.normaliser == "softmax":
        lse_NHQ = fused.empty((N, H, Q), q_NQHD, torch.float32)
    forward_kernel[(N, query_tiles, splits * chunks)](
        *call[:7],
        out_SNQHV,
        lse_NHQ,
        split_keys=split_tiles * options["BK"],
        **_shares(call),
        **_constants(q_NQHD, k_NKHD, v_NKHV, form),
        **options,
    )
    out_NQHV = out_SNQHV[0] if splits == 1 else out_SNQHV.sum(dim=0).to(v_NKHV.dtype)
    return out_NQHV, lse_NHQ


def backward(
    call: Call,
    grad_NQHV: Tensor,
    out_NQHV: Tensor,
    lse_NHQ: Tensor | None,
    *,
    need_bias: bool,
    tiles: dict[str, Tiles] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of q, k, v, bias (if needed) and deep matrices (if there are any).

    tiles: by kernel, instead of `tiles_for`.
    """
    q_NQHD, k_NKHD, v_NKHV, bias_MHQK, _, deep_MHVV, _, form = call
    N, Q, H, D = q_NQHD.shape
    K, V = v_NKHV.shape[1], v_NKHV.shape[3]
    device = q_NQHD.device
    dq_NQHD = fused.empty((N, Q, H, D), q_NQHD, q_NQHD.dtype)
    dk_NKHD = fused.empty((N, K, H, D), q_NQHD, k_NKHD.dtype)
    dv_NKHV = fused.empty((N, K, H, V), q_NQHD, v_NKHV.dtype)
    delta_NHQ = None if lse_NHQ is None else fused.empty((N, H, Q), q_NQHD, torch.float32)
    inputs = (grad_NQHV, *call[:7])
    constants = _constants(q_NQHD, k_NKHD, v_NKHV, form) | _shares(call)

    def cut(kernel: str) -> tuple[int, int, int, int, dict[str, int]]:
        return _cut(kernel, q_NQHD, v_NKHV, form, (tiles or {}).get(kernel))

    query_tiles, _, chunks, _, options = cut("query")
    query_kernel[(N, query_tiles, chunks)](
        *inputs, out_NQHV, lse_NHQ, delta_NHQ, dq_NQHD, **constants, **options
    )
    _, key_tiles, d_chunks, v_chunks, options = cut("key")
    key_kernel[(N, key_tiles, max(d_chunks, v_chunks))](
        *inputs, lse_NHQ, delta_NHQ, dk_NKHD, dv_NKHV, **constants, **options
    )

    dbias_MHQK = None
    if need_bias and bias_MHQK is not None:
        M = bias_MHQK.shape[0]
        query_tiles, key_tiles, _, _, options = cut("bias")
        groups = max(1, min(N // M, PROGRAMS // (M * query_tiles * key_tiles)))
        dbias_MGHQK = fused.empty((M, groups, H, Q, K), q_NQHD, torch.float32)
        bias_kernel[(M * groups, query_tiles, key_tiles)](
            *inputs, lse_NHQ, delta_NHQ, dbias_MGHQK, groups=groups, **constants, **options
        )
        dbias_MHQK = dbias_MGHQK[:, 0] if groups == 1 else dbias_MGHQK.sum(dim=1)

    ddeep_MHVV = None
    if deep_MHVV is not None:
        M = deep_MHVV.shape[0]
        query_tiles, _, _, _, options = cut("deep")
        groups = max(1, min(N // M * query_tiles, PROGRAMS // M))
        ddeep_MGHVV = torch.zeros((M, groups, H, V, V), dtype=torch.float32, device=device)
        deep_kernel[(M * groups,)](
            *inputs, lse_NHQ, ddeep_MGHVV, groups=groups, **constants, **options
        )
        ddeep_MHVV = ddeep_MGHVV.sum(dim=1).to(deep_MHVV.dtype)
    return dq_NQHD, dk_NKHD, dv_NKHV, dbias_MHQK, ddeep_MHVV
