"""Linear layers of a population in Triton: y = x W^T + b, where x may go through GELU first.

Shapes: N rows (all tokens of all sequences of a member), I inputs, O outputs. A tile has powers of
two of each; `weight` and `bias` may be parts of a longer row, one for each member.
"""

# mypy: disable-error-code="import-untyped,no-untyped-def,untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PARTS, LEAST_ROWS_OF_PART = 128, 256
# By kernel and bytes of a number. Tensor cores take tf32 only if the summed axis is contiguous in
# both factors, so the weights are transposed first for the gradient of x.
TRANSPOSED = {4: True, 2: False}
TUNING = {
    ("forward", 4): {"ROWS": 64, "COLUMNS": 128, "DEPTH": 32, "num_warps": 4, "num_stages": 3},
    ("forward", 2): {"ROWS": 64, "COLUMNS": 128, "DEPTH": 128, "num_warps": 4, "num_stages": 1},
    ("backward", 4): {"ROWS": 64, "COLUMNS": 128, "DEPTH": 32, "num_warps": 4, "num_stages": 3},
    ("backward", 2): {"ROWS": 64, "COLUMNS": 128, "DEPTH": 128, "num_warps": 4, "num_stages": 1},
}


@triton.jit
def half_tanh(x):
    """(1 + tanh(u)) / 2 with the u of GELU: the logistic function of 2 u. GELU(x) is x times it."""
    return tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def forward_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, rows, weight_stride, bias_stride,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BIAS: tl.constexpr, GELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A tile of y: its rows, and its columns of the outputs."""
    blocks = tl.cdiv(rows, ROWS)
    member = (tl.program_id(0) // blocks).to(tl.int64)
    n = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    o = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    x_ptr += member * rows * INPUTS
    weight_ptr += member * weight_stride
    y_NO = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, INPUTS, DEPTH):
        i = start + tl.arange(0, DEPTH)
        x_mask = (n < rows)[:, None] & (i < INPUTS)[None, :]
        x_NI = tl.load(x_ptr + n[:, None] * INPUTS + i[None, :], x_mask, 0.0)
        w_mask = (i < INPUTS)[:, None] & (o < OUTPUTS)[None, :]
        w_IO = tl.load(weight_ptr + o[None, :] * INPUTS + i[:, None], w_mask, 0.0)
        if GELU:
            wide_NI = x_NI.to(tl.float32)
            x_NI = (wide_NI * half_tanh(wide_NI)).to(x_NI.dtype)
        y_NO = tl.dot(x_NI, w_IO.to(x_NI.dtype), y_NO, input_precision="tf32")
    if BIAS:
        y_NO += tl.load(bias_ptr + member * bias_stride + o, o < OUTPUTS, 0.0)[None, :]
    y_mask = (n < rows)[:, None] & (o < OUTPUTS)[None, :]
    y_ptr += member * rows * OUTPUTS
    tl.store(y_ptr + n[:, None] * OUTPUTS + o[None, :], y_NO.to(y_ptr.dtype.element_ty), y_mask)


@triton.jit
def backward_kernel(
    grad_ptr, x_ptr, weight_ptr, dx_ptr, db_ptr, activated_ptr, rows, weight_stride,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, GELU: tl.constexpr, TRANSPOSED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of x: its rows, and its columns of the inputs.

    Also the bias's gradient over these rows, and GELU(x), which the weight's gradient needs.
    """
    blocks = tl.cdiv(rows, ROWS)
    member = (tl.program_id(0) // blocks).to(tl.int64)
    n = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    i = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    grad_ptr += member * rows * OUTPUTS
    weight_ptr += member * weight_stride
    dx_NI = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, OUTPUTS, DEPTH):
        o = start + tl.arange(0, DEPTH)
        grad_mask = (n < rows)[:, None] & (o < OUTPUTS)[None, :]
        grad_NO = tl.load(grad_ptr + n[:, None] * OUTPUTS + o[None, :], grad_mask, 0.0)
        if tl.program_id(1) == 0:
            db_O = tl.sum(grad_NO.to(tl.float32), axis=0)
            tl.store(db_ptr + tl.program_id(0) * OUTPUTS + o, db_O, o < OUTPUTS)
        w_mask = (o < OUTPUTS)[:, None] & (i < INPUTS)[None, :]
        if TRANSPOSED:
            w_OI = tl.load(weight_ptr + i[None, :] * OUTPUTS + o[:, None], w_mask, 0.0)
        else:
            w_OI = tl.load(weight_ptr + o[:, None] * INPUTS + i[None, :], w_mask, 0.0)
        dx_NI = tl.dot(grad_NO, w_OI.to(grad_NO.dtype), dx_NI, input_precision="tf32")
    at = member * rows * INPUTS + n[:, None] * INPUTS + i[None, :]
    mask = (n < rows)[:, None] & (i < INPUTS)[None, :]
    if GELU:
        x_NI = tl.load(x_ptr + at, mask, 0.0).to(tl.float32)
        s_NI = half_tanh(x_NI)
        slope = s_NI + x_NI * s_NI * (1 - s_NI) * 1.5957691216057308 * (1 + 0.134145 * x_NI * x_NI)
        dx_NI *= slope
        tl.store(activated_ptr + at, (x_NI * s_NI).to(dx_ptr.dtype.element_ty), mask)
    tl.store(dx_ptr + at, dx_NI.to(dx_ptr.dtype.element_ty), mask)


def tiles(kernel: str, rows: int, columns: int, depth: int, width: int) -> dict[str, int]:
    """Tiles and launch options; no tile is larger than its axis, up to a power of two."""
    tuning = dict(TUNING[kernel, width])
    for name, size in (("ROWS", rows), ("COLUMNS", columns), ("DEPTH", depth)):
        tuning[name] = min(tuning[name], max(16, triton.next_power_of_2(size)))
    return tuning


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool) -> Tensor:
    """The output `[M, N, O]`, in the dtype of x."""
    (members, rows, inputs), outputs = x.shape, weight.shape[1]
    weight, bias = _rows(weight), None if bias is None else _rows(bias)
    y = empty((members, rows, outputs), x)
    tuning = tiles("forward", rows, outputs, inputs, x.element_size())
    grid = (members * triton.cdiv(rows, tuning["ROWS"]), triton.cdiv(outputs, tuning["COLUMNS"]))
    some_bias, stride = (weight, 0) if bias is None else (bias, bias.stride(0))
    forward_kernel[grid](
        x, weight, some_bias, y, rows, weight.stride(0), stride,
        INPUTS=inputs, OUTPUTS=outputs, BIAS=bias is not None, GELU=gelu, **tuning,
    )  # fmt: skip
    return y


def backward(grad: Tensor, x: Tensor, weight: Tensor, gelu: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, of the weight and of a bias."""
    (members, rows, inputs), outputs = x.shape, weight.shape[1]
    transposed = TRANSPOSED[x.element_size()]
    w = weight.mT.contiguous() if transposed else _rows(weight)
    tuning = tiles("backward", rows, inputs, outputs, x.element_size())
    blocks = triton.cdiv(rows, tuning["ROWS"])
    dx, activated = empty(x.shape, x), empty(x.shape, x) if gelu else x
    db_parts = empty((members, blocks, outputs), x, torch.float32)
    backward_kernel[members * blocks, triton.cdiv(inputs, tuning["COLUMNS"])](
        grad, x, w, dx, db_parts, activated, rows, w.stride(0),
        INPUTS=inputs, OUTPUTS=outputs, GELU=gelu, TRANSPOSED=transposed, **tuning,
    )  # fmt: skip
    # A sum over all rows would be a few blocks for a whole GPU. So it is one of sums over parts.
    parts = _parts(members, rows)
    grad_PNO, x_PNI = (y.view(members * parts, rows // parts, -1) for y in (grad, activated))
    dw_parts = torch.bmm(grad_PNO.mT, x_PNI, **_in_fp32(x))
    dw = dw_parts if parts == 1 else dw_parts.unflatten(0, (members, parts)).sum(dim=1)
    return dx, dw, db_parts.sum(dim=1)


def _parts(members: int, rows: int) -> int:
    """Into how many equal parts rows are split, so that all members together make `PARTS`."""
    most = max(1, min(PARTS // members, rows // LEAST_ROWS_OF_PART))
    return next(parts for parts in range(most, 0, -1) if rows % parts == 0)


def _in_fp32(x: Tensor) -> dict[str, Any]:
    """Products of half precision that are not rounded to it; only CUDA has them."""
    return {"out_dtype": torch.float32} if x.is_cuda and x.dtype != torch.float32 else {}


def _rows(parameter: Tensor) -> Tensor:
    """A parameter whose members may lie apart, but each in one piece."""
    return parameter if parameter[0].is_contiguous() else parameter.contiguous()


def empty(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for a result; a test fills it with NaN first."""
    return like.new_empty(shape, dtype=like.dtype if dtype is None else dtype)
