"""Kernels for long sequences with wide heads, on the tensor cores, in CUDA.

See wide.cu for the design. Shapes: as in `hyla.attention.kernels`.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hyla.attention import kernels
from hyla.attention.kernels import Call, KernelSpec, cuda
from hyla.attention.kernels.cuda import LANES, TYPES, aligned
from hyla.attention.variants import Kind

SOURCE = Path(__file__).with_name("wide.cu")
NORMALISERS = ("none", "rms_head")
VALUE_NETWORKS = ("mlp",)
ACTIVATIONS = ("relu",)
ROWS, COLUMNS = 8, 16
# For each kernel, for teams of two and of four warps: how many teams share a tile of keys (or
# queries), how many blocks a multiprocessor, how many tiles of a block are in shared memory.
TUNING = {
    "forward": ((6, 1, 2), (3, 1, 2)),
    "query_gradient": ((4, 1, 1), (2, 1, 1)),
    "key_gradient": ((4, 1, 1), (2, 1, 1)),
    "value_gradient": ((2, 2, 1), (2, 1, 2)),
}
MODES = (*TUNING, "products")
# A block of `products` takes so many queries or keys at once, with so many of the others.
TILE_ROWS, TILE_COLUMNS = 128, 64
PRODUCT_BLOCKS = 4  # that share a multiprocessor
# If this is enough for one sequence, the gradients of scores are written to memory, of as many
# sequences at a time as fit: then those of queries and keys are plain products, and the rest of
# the backward is done once, not twice. A constant, so that memory stays linear in tokens; enough
# for 16 sequences of 1024 tokens with 16 heads, which keep a GPU busy.
WORKSPACE_BYTES = 512 * 2**20


def unsupported_device(q: Tensor) -> str | None:
    """Why the kernels do not run where q is: a block needs 227 KiB of shared memory."""
    return cuda.unsupported_device(q, (9, 0), (12, 0), "9 to 11")


def unsupported_sizes(
    q: Tensor, v: Tensor, dtype: torch.dtype, kind: Kind, biased: bool, factored: bool
) -> str | None:
    """What the kernels would need for a call of this size."""
    heads, sizes = q.shape[-2], (q.shape[-1], v.shape[-1])
    if factored:
        return "no factors of the code"
    if dtype == torch.float32:
        return "bfloat16 or float16 tensors, not float32"
    if biased:
        return "no bias and no mask"
    if sizes not in ((32, 32), (64, 64)) or heads > 16:
        return f"at most 16 heads of size 32 or 64, not {heads} of {sizes}"
    return None


def _warps(heads: int, size: int) -> int:
    """In a team."""
    return min(2 * -(-heads // 8), size // 16)


def _shared_bytes(mode: str, heads: int, size: int, teams: int, blocks: int, buffers: int) -> int:
    """What `Shared` of wide.cu takes."""
    scores, sums = mode != "forward", mode in ("query_gradient", "key_gradient")
    head_blocks, team = -(-heads // 8), _warps(heads, size)
    keep = not sums and teams * team * blocks <= 12
    token, pairs = head_blocks * size * 16, ROWS * COLUMNS
    own = (2 if scores else 1) * head_blocks * pairs * 16 + size * 2 * pairs
    own += team * pairs * 4 + (pairs * 4 if scores else 128)
    own += COLUMNS * (head_blocks * pairs // 4 + 2) * 8 if scores else 128
    own += (128 if keep else ROWS * token) + (ROWS * token if scores and not keep else 128)
    own += head_blocks * 8 * (2 * ROWS + 1) * 16 if sums else 128
    return 2 * buffers * COLUMNS * token + teams * own


def _compile(
    mode: str,
    q: Tensor,
    spec: KernelSpec,
    tuning: tuple[int, int, int],
    lengths: bool,
    shared_bytes: int,
) -> Callable[..., None]:
    teams, blocks, buffers = tuning
    defines = {
        "MODE": MODES.index(mode), "HEADS": q.shape[2], "SIZE": q.shape[3], "TEAMS": teams,
        "BLOCKS": blocks, "BUFFERS": buffers,
        "NORMALISER": spec.normaliser == "rms_head", "RELU": spec.relu, "CAUSAL": spec.causal,
        "LENGTHS": lengths, "TYPE": TYPES.index(q.dtype),
    }  # fmt: skip
    name = "products" if mode == "products" else "wide"
    return cuda.compile_kernel(q.device, SOURCE, name, cuda.options(defines), shared_bytes)


def _launch(
    mode: str, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, lengths: Tensor | None,
    value_sums: Tensor, score_sums: Tensor, spec: KernelSpec,
) -> None:  # fmt: skip
    (sequences, queries, heads, size), keys = q.shape, k.shape[1]
    tuning = TUNING[mode][_warps(heads, size) // 2 - 1]
    shared = _shared_bytes(mode, heads, size, *tuning)
    kernel = _compile(mode, q, spec, tuning, lengths is not None, shared)
    rows, tensors = queries, [q, k, grad, v]
    if mode in ("key_gradient", "value_gradient"):
        rows, tensors = keys, [k, q, v, grad]
    arguments = [*tensors, q if lengths is None else lengths, value_sums, score_sums]
    grid = (sequences * -(-rows // (tuning[0] * ROWS)), 1, 1)
    threads = tuning[0] * _warps(heads, size) * LANES
    scalars = [sequences, queries, keys, spec.scale, spec.eps]
    kernel(grid, (threads, 1, 1), [*arguments, *scalars])


def _launch_products(
    ds_NHQK: Tensor, q: Tensor, k: Tensor, dq: Tensor, dk: Tensor, spec: KernelSpec
) -> None:
    """The gradients of q and k from those of their scores."""
    (sequences, queries, heads, size), keys = q.shape, k.shape[1]
    # Of the specification only the mask and the scale count.
    spec = replace(spec, normaliser="none", relu=False)
    shared = 2 * TILE_COLUMNS * (TILE_ROWS + size) * q.itemsize
    kernel = _compile("products", q, spec, (1, PRODUCT_BLOCKS, 2), False, shared)
    tiles = -(-queries // TILE_ROWS) + -(-keys // TILE_ROWS)
    arguments = [ds_NHQK, q, k, dq, dk, queries, keys, spec.scale]
    kernel((sequences * heads * tiles, 1, 1), (TILE_ROWS // 32 * LANES, 1, 1), arguments)


def forward(call: Call) -> tuple[Tensor, None]:
    """The output."""
    q, k, v = (aligned(x) for x in call[:3])
    out = kernels.empty(q.shape, v)
    _launch("forward", q, k, v, q, call.lengths, out, out, call.spec)
    return out, None


def backward(
    call: Call, grad_NQHV: Tensor, out_NQHV: Tensor, lse: None, *, need_bias: bool
) -> tuple[Tensor, Tensor, Tensor, None, None]:
    """The gradients of q, k and v."""
    q, k, v, grad = (aligned(x) for x in (*call[:3], grad_NQHV))
    dq, dk, dv = (kernels.empty(x.shape, x) for x in (q, k, v))
    sequences, queries, heads, _ = q.shape
    most = WORKSPACE_BYTES // (heads * queries * _padded(k.shape[1]) * q.itemsize)
    if most == 0:
        _launch("query_gradient", q, k, v, grad, call.lengths, dq, dq, call.spec)
        _launch("key_gradient", q, k, v, grad, call.lengths, dv, dk, call.spec)
        return dq, dk, dv, None, None
    parts = -(-sequences // most)
    shape = (-(-sequences // parts), heads, queries, _padded(k.shape[1]))
    workspace_NHQK = kernels.empty(shape, q)
    for part in range(parts):
        some = slice(sequences * part // parts, sequences * (part + 1) // parts)
        lengths = None if call.lengths is None else call.lengths[some]
        _launch(
            "value_gradient", q[some], k[some], v[some], grad[some], lengths,
            dv[some], workspace_NHQK, call.spec,
        )  # fmt: skip
        _launch_products(workspace_NHQK, q[some], k[some], dq[some], dk[some], call.spec)
    return dq, dk, dv, None, None


def _padded(keys: int) -> int:
    """Keys in a row of the workspace: 16 bytes of them are copied at once."""
    return -(-keys // 8) * 8
