"""Kernels for long sequences with wide heads, on the tensor cores, in CUDA.

The design is told in wide.cu. Shapes: as in `fused`.
"""

from pathlib import Path

from torch import Tensor

from hyla.attention import cuda, fused
from hyla.attention.cuda import LANES, TYPES, aligned
from hyla.attention.fused import Call, Form

SOURCE = Path(__file__).with_name("wide.cu")
ROWS, COLUMNS = 8, 16
# For each kernel, for up to 8 and up to 16 heads: how many teams of warps share a tile of keys (or
# queries), how many blocks a multiprocessor, how many tiles of a block are in shared memory.
TUNING = {
    "forward": ((4, 2, 1), (4, 1, 1)),
    "query_gradient": ((4, 1, 2), (2, 1, 1)),
    "key_gradient": ((4, 1, 2), (2, 1, 1)),
}
MODES = tuple(TUNING)


def _shared_bytes(mode: str, heads: int, size: int, teams: int, buffers: int) -> int:
    """What `Shared` of wide.cu takes."""
    scores, head_blocks = mode != "forward", -(-heads // 8)
    team = min(2 * head_blocks, size // 16)
    token, pairs = head_blocks * size * 16, ROWS * COLUMNS
    own = ROWS * token + (ROWS * token if scores else 128)
    own += (2 if scores else 1) * head_blocks * pairs * 16
    own += team * (head_blocks if scores else 1) * 2 * pairs * 16
    own += head_blocks * 8 * (2 * ROWS + 1) * 16 if scores else 128
    own += team * pairs * 4 + (pairs * 4 if scores else 128)
    return 2 * buffers * COLUMNS * token + teams * own


def _launch(
    mode: str, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, lengths: Tensor | None,
    value_sums: Tensor, score_sums: Tensor, form: Form,
) -> None:  # fmt: skip
    (sequences, queries, heads, size), keys = q.shape, k.shape[1]
    head_blocks = -(-heads // 8)
    teams, blocks, buffers = TUNING[mode][head_blocks - 1]
    defines = {
        "MODE": MODES.index(mode), "HEADS": heads, "SIZE": size, "TEAMS": teams,
        "BLOCKS": blocks, "BUFFERS": buffers,
        "NORMALISER": form.normaliser == "rms_head", "RELU": form.relu, "CAUSAL": form.causal,
        "LENGTHS": lengths is not None, "TYPE": TYPES.index(q.dtype),
    }  # fmt: skip
    shared = _shared_bytes(mode, heads, size, teams, buffers)
    kernel = cuda.compile_kernel(q.device, SOURCE, "wide", cuda.options(defines), shared)
    rows, tensors = queries, [q, k, grad, v]
    if mode == "key_gradient":
        rows, tensors = keys, [k, q, v, grad]
    arguments = [*tensors, q if lengths is None else lengths, value_sums, score_sums]
    grid = (sequences * -(-rows // (teams * ROWS)), 1, 1)
    threads = teams * min(2 * head_blocks, size // 16) * LANES
    scalars = [sequences, queries, keys, form.scale, form.eps]
    kernel(grid, (threads, 1, 1), [*arguments, *scalars])


def forward(call: Call) -> tuple[Tensor, None]:
    """The output."""
    q, k, v = (aligned(x) for x in call[:3])
    out = fused.empty(q.shape, v)
    _launch("forward", q, k, v, q, call.lengths, out, out, call.form)
    return out, None


def backward(
    call: Call, grad_NQHV: Tensor, out_NQHV: Tensor, lse: None, *, need_bias: bool
) -> tuple[Tensor, Tensor, Tensor, None, None]:
    """The gradients of q, k and v."""
    q, k, v, grad = (aligned(x) for x in (*call[:3], grad_NQHV))
    dq, dk, dv = (fused.empty(x.shape, x) for x in (q, k, v))
    _launch("query_gradient", q, k, v, grad, call.lengths, dq, dq, call.form)
    _launch("key_gradient", q, k, v, grad, call.lengths, dv, dk, call.form)
    return dq, dk, dv, None, None
