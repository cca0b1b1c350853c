"""Fused attention of every kind in Triton: how `tiles_kernels` are cut and launched.

Shapes: as in `hyla.attention.kernels`, with M sets of biases or of deep value matrices.
"""

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hyla.attention import kernels
from hyla.attention.kernels import Call, KernelSpec, cuda
from hyla.attention.variants import Kind

NORMALISERS = ("none", "rms_head", "softmax")
VALUE_NETWORKS = ("linear", "mlp", "deep")
ACTIVATIONS = ("relu",)
# Looked up here: torch.compile does not follow the search. Nothing is imported.
HAS_TRITON = importlib.util.find_spec("triton") is not None
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


def unsupported_device(q: Tensor) -> str | None:
    """Why the kernels do not run where q is: a block needs 227 KiB of shared memory."""
    if _interpreted(q):
        return None
    return cuda.unsupported_device(q, (9, 0), (12, 0), "9 to 11")


def unsupported_sizes(
    q: Tensor, v: Tensor, dtype: torch.dtype, kind: Kind, biased: bool, factored: bool
) -> str | None:
    """What the kernels would need for a call of this size."""
    heads, size = q.shape[-2], max(q.shape[-1], v.shape[-1])
    if not HAS_TRITON:
        return "Triton (pip install 'triton>=3.6')"
    if _interpreted(q) and dtype == torch.bfloat16:
        return "float32 or float16 in Triton's interpreter, which multiplies bfloat16 wrongly"
    if size > 128 or heads > 32:
        return f"at most 32 heads of size 128, not {heads} of {size}"
    # Of a deep value network all numbers of all heads must fit into the memory of a multiprocessor.
    padded = max(16, _power_of_2(heads)) * max(16, _power_of_2(size))
    most = 2048 if dtype.itemsize == 2 else 512
    if kind.value_network == "deep" and padded > most:
        expected = f"heads x size of at most {most} for a deep value network in {dtype}"
        return f"{expected} (both at least 16, and powers of two), not {heads} x {size}"
    return None


def _interpreted(q: Tensor) -> bool:
    return q.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"


def _power_of_2(n: int) -> int:
    """The next one."""
    return 1 << (n - 1).bit_length()


def tiles_for(kernel: str, spec: KernelSpec, heads: int, size: int, dtype: torch.dtype) -> Tiles:
    """The tiles of a kernel: `forward`, `query`, `key`, `bias` or `deep`. size: of D and V.

    All tiles of a program must fit into 227 KiB of shared memory.
    """
    linear, deep = spec.value_network == "linear", spec.value_network == "deep"
    heads = _power_of_2(heads) if linear else max(16, _power_of_2(heads))
    columns = max(16, 2048 // (heads * dtype.itemsize))
    stages = 2 if kernel == "forward" and size <= columns else 1
    if linear:
        side = 32 if heads <= 8 and size <= 64 and dtype.itemsize == 2 else 16
        return Tiles(side, side, columns, 8, stages)
    # The sum over queries, or over keys, needs 16 of them, the other axis does not.
    other = 16 if dtype.itemsize == 2 and heads == 16 and size <= 64 and not deep else 8
    queries, keys = (16, other) if kernel in ("key", "deep") else (other, 16)
    return Tiles(queries, keys, columns, 8, stages)


def _constants(q_NQHD: Tensor, k_NKHD: Tensor, v_NKHV: Tensor, spec: KernelSpec) -> dict[str, Any]:
    """The arguments that all kernels take alike."""
    heads = _power_of_2(q_NQHD.shape[2])
    return {
        "k_stride": k_NKHD.stride(0),
        "v_stride": v_NKHV.stride(0),
        "Q": q_NQHD.shape[1],
        "K": k_NKHD.shape[1],
        "scale": spec.scale,
        "eps": spec.eps,
        "H": q_NQHD.shape[2],
        "D": q_NQHD.shape[3],
        "V": v_NKHV.shape[3],
        # A tensor core sums over at least 16, and makes at least 8 sums; linear value networks do
        # neither with heads.
        "HS": heads if spec.value_network == "linear" else max(8, heads),
        "HP": heads if spec.value_network == "linear" else max(16, heads),
        "NORMALISER": spec.normaliser,
        "NETWORK": spec.value_network,
        "RELU": spec.relu,
        "CAUSAL": spec.causal,
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
    kernel: str, q_NQHD: Tensor, v_NKHV: Tensor, spec: KernelSpec, tiles: Tiles | None
) -> tuple[int, int, int, int, dict[str, int]]:
    """How many tiles there are, of queries, keys, columns of D and of V; and the options."""
    Q, H, D = q_NQHD.shape[1:]
    K, V = v_NKHV.shape[1], v_NKHV.shape[3]
    tiles = tiles or tiles_for(kernel, spec, H, max(D, V), q_NQHD.dtype)
    # Tensor cores sum over at least 16 columns.
    d_columns, v_columns = (max(16, _power_of_2(size)) for size in (D, V))
    d_columns = min(d_columns, tiles.columns)
    if spec.value_network != "deep":
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
    queries, keys, d_chunks, v_chunks = (-(-size // part) for size, part in cuts)
    return queries, keys, d_chunks, v_chunks, options


def _splits(programs: int, key_tiles: int, spec: KernelSpec) -> int:
    """Into how many parts the keys are split, where queries alone occupy little of the GPU."""
    if spec.normaliser == "softmax":
        return 1
    return max(1, min(PROGRAMS // programs, key_tiles))


def forward(call: Call, *, tiles: Tiles | None = None) -> tuple[Tensor, Tensor | None]:
    """The output [N, Q, H, V] and, for softmax codes, the log-sum-exp of the scores [N, H, Q]."""
    from hyla.attention.kernels import tiles_kernels  # Triton takes a second to import

    q_NQHD, k_NKHD, v_NKHV, spec = *call[:3], call.spec
    N, Q, H, V = *q_NQHD.shape[:3], v_NKHV.shape[3]
    query_tiles, key_tiles, _, chunks, options = _cut("forward", q_NQHD, v_NKHV, spec, tiles)
    splits = _splits(N * query_tiles * chunks, key_tiles, spec)
    split_tiles = -(-key_tiles // splits)
    splits = -(-key_tiles // split_tiles)
    dtype = v_NKHV.dtype if splits == 1 else torch.float32
    out_SNQHV = kernels.empty((splits, N, Q, H, V), q_NQHD, dtype)
    lse_NHQ = None
    if spec.normaliser == "softmax":
        lse_NHQ = kernels.empty((N, H, Q), q_NQHD, torch.float32)
    tiles_kernels.forward_kernel[(N, query_tiles, splits * chunks)](
        *call[:7],
        out_SNQHV,
        lse_NHQ,
        split_keys=split_tiles * options["BK"],
        **_shares(call),
        **_constants(q_NQHD, k_NKHD, v_NKHV, spec),
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
    from hyla.attention.kernels import tiles_kernels  # as in `forward`

    q_NQHD, k_NKHD, v_NKHV, bias_MHQK, _, deep_MHVV, _, spec = call
    N, Q, H, D = q_NQHD.shape
    K, V = v_NKHV.shape[1], v_NKHV.shape[3]
    device = q_NQHD.device
    dq_NQHD = kernels.empty((N, Q, H, D), q_NQHD, q_NQHD.dtype)
    dk_NKHD = kernels.empty((N, K, H, D), q_NQHD, k_NKHD.dtype)
    dv_NKHV = kernels.empty((N, K, H, V), q_NQHD, v_NKHV.dtype)
    delta_NHQ = None if lse_NHQ is None else kernels.empty((N, H, Q), q_NQHD, torch.float32)
    inputs = (grad_NQHV, *call[:7])
    constants = _constants(q_NQHD, k_NKHD, v_NKHV, spec) | _shares(call)

    def cut(kernel: str) -> tuple[int, int, int, int, dict[str, int]]:
        return _cut(kernel, q_NQHD, v_NKHV, spec, (tiles or {}).get(kernel))

    query_tiles, _, chunks, _, options = cut("query")
    tiles_kernels.query_kernel[(N, query_tiles, chunks)](
        *inputs, out_NQHV, lse_NHQ, delta_NHQ, dq_NQHD, **constants, **options
    )
    _, key_tiles, d_chunks, v_chunks, options = cut("key")
    tiles_kernels.key_kernel[(N, key_tiles, max(d_chunks, v_chunks))](
        *inputs, lse_NHQ, delta_NHQ, dk_NKHD, dv_NKHV, **constants, **options
    )

    dbias_MHQK = None
    if need_bias and bias_MHQK is not None:
        M = bias_MHQK.shape[0]
        query_tiles, key_tiles, _, _, options = cut("bias")
        groups = max(1, min(N // M, PROGRAMS // (M * query_tiles * key_tiles)))
        dbias_MGHQK = kernels.empty((M, groups, H, Q, K), q_NQHD, torch.float32)
        tiles_kernels.bias_kernel[(M * groups, query_tiles, key_tiles)](
            *inputs, lse_NHQ, delta_NHQ, dbias_MGHQK, groups=groups, **constants, **options
        )
        dbias_MHQK = dbias_MGHQK[:, 0] if groups == 1 else dbias_MGHQK.sum(dim=1)

    ddeep_MHVV = None
    if deep_MHVV is not None:
        M = deep_MHVV.shape[0]
        query_tiles, _, _, _, options = cut("deep")
        groups = max(1, min(N // M * query_tiles, PROGRAMS // M))
        ddeep_MGHVV = torch.zeros((M, groups, H, V, V), dtype=torch.float32, device=device)
        tiles_kernels.deep_kernel[(M * groups,)](
            *inputs, lse_NHQ, ddeep_MGHVV, groups=groups, **constants, **options
        )
        ddeep_MHVV = ddeep_MGHVV.sum(dim=1).to(deep_MHVV.dtype)
    return dq_NQHD, dk_NKHD, dv_NKHV, dbias_MHQK, ddeep_MHVV
