"""Linear layers and AdamW in C++, for CPUs on which PyTorch's float32 products are slow.

PyTorch multiplies float32 matrices with MKL, which takes slow paths on non-Intel processors: on an
AMD EPYC (Zen 5) it reached 237 GFLOP/s, products.cpp 490. On Intel processors, or if the library
cannot be loaded, PyTorch's own products are used.

Within `in_bf16` the factors are rounded to bfloat16, which doubles the speed where the processor
has bfloat16 products; sums, results and everything else stay float32.

Shapes: N rows, K inputs, E outputs, P parameters.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from hyla import native

# For smaller products, calling the library or packing the weights costs more than it saves.
SMALLEST, FEWEST = 2**18, 128  # N * K * E, N
INTEL = "GenuineIntel"

HALF, GELU = 1, 2  # as in products.cpp
_rounds = False  # set by `in_bf16`


@contextmanager
def in_bf16(rounds: bool = True) -> Iterator[None]:
    """Multiply in bfloat16 within a `with` block, in all threads; the backward does so too."""
    global _rounds
    before, _rounds = _rounds, rounds
    try:
        yield
    finally:
        _rounds = before


def suits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether `linear` supports these arguments and is faster, or must round for `in_bf16`.

    False while exporting: an exported program should not depend on this package.
    """
    return (
        x.device.type == "cpu"
        and _fit(x, weight, bias)
        and (_rounds or x.numel() >= max(FEWEST * x.shape[-1], SMALLEST // weight.shape[0]))
        and not torch.is_autocast_enabled("cpu")
        and forward_ad._current_level < 0
        and not torch._C._are_functorch_transforms_active()
        and not torch.compiler.is_exporting()
        and is_available()
    )


def _fit(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    biases = weight.shape[:1] if bias is None else bias.shape
    dtypes = {x.dtype, weight.dtype, *(() if bias is None else (bias.dtype,))}
    shapes = x.ndim >= 2 and x.shape[-1:] == weight.shape[1:] and biases == weight.shape[:1]
    return shapes and x.numel() > 0 and weight.numel() > 0 and dtypes == {torch.float32}


def is_available() -> bool:
    """Whether this processor benefits and the library can be loaded."""
    return native.vendor() != INTEL and _library() is not None


native.hide_from_compiler(is_available)


def _library() -> ctypes.CDLL | None:
    library = native.load("products")
    return None if library is None else _typed(library)


@cache
def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    numbers, pointer, count = ctypes.c_int, ctypes.c_void_p, ctypes.c_int64
    library.hyla_linear.argtypes = (*[numbers] * 2, *[count] * 3, *[pointer] * 4)
    library.hyla_linear_backward.argtypes = (*[numbers] * 2, *[count] * 3, *[pointer] * 6)
    library.hyla_adamw.argtypes = (numbers, count, *[pointer] * 5, *[ctypes.c_float] * 6)
    return library


def _check(status: int) -> None:
    if status:
        raise MemoryError("not enough memory for the packed panels of a matrix product")


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, gelu: bool = False) -> Tensor:
    """Compute x W^T + b from x `[N, K]` and W `[E, K]`; gelu: use gelu(x) in place of x."""
    return operator(x, weight, bias, HALF * _rounds + GELU * gelu)


@torch.library.custom_op("hyla::linear", mutates_args=())
def operator(x: Tensor, weight: Tensor, bias: Tensor | None, options: int) -> Tensor:
    """`linear`, with the options of products.cpp as bits."""
    if x.ndim != 2 or not _fit(x, weight, bias):
        raise ValueError("hyla::linear: expected float32 x [N, K], W [E, K] and b [E], not empty")
    x, weight = x.contiguous(), weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    y = x.new_empty(x.shape[0], weight.shape[0])
    library = _library()
    assert library is not None
    pointers = map(_pointer, (x, weight, bias, y))
    sizes = (torch.get_num_threads(), options, *y.shape, x.shape[1])
    _check(library.hyla_linear(*sizes, *pointers))
    return y


@operator.register_fake
def _(x, weight, bias, options):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("hyla::linear_backward", mutates_args=())
def linear_backward(
    grad: Tensor, x: Tensor, weight: Tensor, options: int, need_x: bool, need_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of x, W and b; unneeded ones are empty."""
    grad, x, weight = grad.contiguous(), x.contiguous(), weight.contiguous()
    dx = torch.empty_like(x) if need_x else x.new_empty(0)
    dbias = x.new_empty(weight.shape[0] if need_bias else 0)
    dweight = torch.empty_like(weight)
    library = _library()
    assert library is not None
    results = (dx if need_x else None, dweight, dbias if need_bias else None)
    pointers = map(_pointer, (grad, x, weight, *results))
    sizes = (torch.get_num_threads(), options, *grad.shape, x.shape[1])
    _check(library.hyla_linear_backward(*sizes, *pointers))
    return dx, dweight, dbias


@linear_backward.register_fake
def _(grad, x, weight, options, need_x, need_bias):  # type: ignore[no-untyped-def]
    dx = x.new_empty(x.shape if need_x else 0)
    return dx, weight.new_empty(weight.shape), x.new_empty(weight.shape[0] if need_bias else 0)


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, weight, bias, options = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias, ctx.options = bias is not None, options


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    need_x, need_bias = ctx.needs_input_grad[0], ctx.has_bias
    dx, dweight, dbias = linear_backward(grad, *ctx.saved_tensors, ctx.options, need_x, need_bias)
    return dx if need_x else None, dweight, dbias if need_bias else None, None


def _setup_second(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:3])
    ctx.options, *ctx.needs = inputs[3:]


def _second(ctx, *grads):  # type: ignore[no-untyped-def]
    """Differentiate the gradients dx = g W f'(x), dW = g^T f(x) and db = sum g in plain PyTorch."""
    again = torch.is_grad_enabled()  # third derivatives may follow
    with torch.enable_grad():
        # Aliases, since `grads` may depend on the same tensors, which must not be traversed here.
        inputs = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
                  for x in ctx.saved_tensors]  # fmt: skip
        grad, x, weight = inputs
        active = F.gelu(x, approximate="tanh") if ctx.options & GELU else x * 1.0
        dx = torch.autograd.grad(active, x, grad @ weight, create_graph=True)[0]
        results, needed = (dx, grad.mT @ active, grad.sum(0)), (ctx.needs[0], True, ctx.needs[1])
        each = zip(results, needed, grads, strict=True)
        total = sum((result * given).sum() for result, wanted, given in each if wanted)
        found = torch.autograd.grad(total, inputs, allow_unused=True, create_graph=again)
    return *found, None, None, None


operator.register_autograd(_backward, setup_context=_setup)
linear_backward.register_autograd(_second, setup_context=_setup_second)


def has_adamw(parameters: Tensor) -> bool:
    """Whether to use `adamw_`; not under torch.compile, which fuses the plain version itself."""
    on_cpu = parameters.device.type == "cpu" and parameters.dtype == torch.float32
    return on_cpu and not torch.compiler.is_compiling() and _library() is not None


def adamw_(
    parameters: Tensor,
    first: Tensor,
    second: Tensor,
    gradients: Tensor,
    decayed: Tensor,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    rate: float,
    shrink: float,
    root: float,
) -> None:
    """Take one AdamW step in place on contiguous parameters `[P]`; see `hyla.train.optimiser`."""
    library = _library()
    assert library is not None
    rows = map(_pointer, (parameters, first, second, gradients, decayed))
    numbers = (beta1, beta2, epsilon, rate, shrink, root)
    library.hyla_adamw(torch.get_num_threads(), parameters.numel(), *rows, *numbers)
