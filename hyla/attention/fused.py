"""The fused kernels as one torch operator: which of them suits, autograd, fake tensors.

Shapes: N sequences (all leading axes), M sets of biases (one for all sequences, or one for each
member of a population), Q queries, K keys, H heads, D and V head sizes.
"""

import importlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hyla import native
from hyla.attention.variants import Kind
from hyla.errors import unknown_name

BACKENDS = ("reference", "cpu", "thin", "wide", "tiles")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# thin needs asynchronous copies, wide and tiles 227 KiB of shared memory for a block.
CAPABILITIES = {"thin": "8.0 or more", "wide": "9 to 11", "tiles": "9 to 11"}
# What the kernels of a backend implement; of anything else they would compute something else.
IMPLEMENTED = {
    "cpu": {"softmax", "none", "rms_head", "linear", "mlp", "deep"},
    "thin": {"softmax", "none", "rms_head", "linear", "mlp", "deep"},
    "tiles": {"softmax", "none", "rms_head", "linear", "mlp", "deep"},
    "wide": {"none", "rms_head", "mlp"},
}
MOST_DEEP_ON_CPU = 16  # also in cpu.cpp
# What a grid of blocks can count.
MAX_TOKENS = 262_140
# Looked up here: torch.compile does not follow the search. Nothing is imported.
HAS_TRITON = importlib.util.find_spec("triton") is not None


@dataclass(frozen=True)
class Form:
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
    form: Form


def choose(
    backend: str | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kind: Kind,
    activation: str,
    biased: bool,
    factored: bool = False,
) -> str:
    """The backend for these tensors: the one that is asked for, or the fastest that can do it.

    Asking for one that cannot do it is an error that says why. biased: there is a bias or a mask.
    factored: there are factors of the code.
    """
    if backend == "reference":
        return backend
    if backend is not None:
        if backend not in BACKENDS:
            raise unknown_name("backend", backend, BACKENDS)
        reason = refusal(backend, q, k, v, kind, activation, biased, factored)
        if reason is not None:
            message = f"backend: {backend!r} needs {reason}; None takes what can do the call."
            raise ValueError(message)
        return backend
    if q.device.type == "cpu":
        # An exported program should not need this package.
        if torch.compiler.is_exporting():
            return "reference"
        suits = refusal("cpu", q, k, v, kind, activation, biased, factored) is None
        return "cpu" if suits else "reference"
    if q.device.type != "cuda":
        return "reference"
    sequences, queries, keys = q.shape[:-3].numel(), q.shape[-3], k.shape[-3]
    preferred: tuple[str, ...] = ("wide", "tiles", "thin")
    if sequences >= 64 and queries <= 256 and keys <= 256:
        # A thread for each sequence, few keys to wait for; large heads rather in tensor cores.
        large = slices(q, v) > 1
        preferred = ("wide", "thin", "tiles") if large else ("thin", "wide", "tiles")
    elif queries < 16:
        preferred = "tiles", "thin", "wide"  # tiles also splits the keys of a query over the GPU
    for candidate in preferred:
        if refusal(candidate, q, k, v, kind, activation, biased, factored) is None:
            return candidate
    return "reference"


def refusal(
    backend: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kind: Kind,
    activation: str,
    biased: bool,
    factored: bool = False,
) -> str | None:
    """What a kernel would need and does not find; None if it can do the call."""
    reason = _refusal_of_device(backend, q) or _refusal_of_all(
        backend, q, kind, activation, factored
    )
    if reason is not None:
        return reason
    if 0 in (q.numel(), k.numel(), v.numel()):
        return "tensors that are not empty"
    if backend == "cpu":
        return _refusal_of_cpu(v, kind)
    if max(q.shape[-3], k.shape[-3]) > MAX_TOKENS:
        return f"at most {MAX_TOKENS} tokens, not {max(q.shape[-3], k.shape[-3])}"
    if backend == "tiles":
        return _refusal_of_tiles(q, v, input_dtype(q), kind)
    if backend == "thin":
        return _refusal_of_thin(q, v, kind)
    return _refusal_of_wide(q, v, input_dtype(q), kind, biased)


def _refusal_of_device(backend: str, q: Tensor) -> str | None:
    if backend == "cpu":
        return None if q.device.type == "cpu" else f"tensors on a CPU, not on {q.device}"
    if backend == "tiles" and _interpreted(q):
        return None
    if q.device.type != "cuda":
        return f"tensors on {'a' if backend == 'tiles' else 'an NVIDIA'} GPU, not on {q.device}"
    least, above = ((8, 0), (99, 0)) if backend == "thin" else ((9, 0), (12, 0))
    if torch.version.hip or not least <= torch.cuda.get_device_capability(q.device) < above:
        return f"an NVIDIA GPU of compute capability {CAPABILITIES[backend]}"
    return None


def _refusal_of_all(
    backend: str, q: Tensor, kind: Kind, activation: str, factored: bool
) -> str | None:
    for part in (kind.normaliser, kind.value_network):
        if part not in IMPLEMENTED[backend]:
            return f"a kind made of {', '.join(sorted(IMPLEMENTED[backend]))}, not of {part!r}"
    if input_dtype(q) not in DTYPES:
        return f"float32, bfloat16 or float16 tensors, not {input_dtype(q)}"
    if kind.nonlinear and activation != "relu":
        return f"the activation 'relu', not {activation!r}"
    if factored and backend == "wide":
        return "no factors of the code"
    if forward_ad._current_level >= 0:
        return "reverse mode: kernels have no forward-mode derivatives"
    return None


def input_dtype(q: Tensor) -> torch.dtype:
    """What a kernel gets: under autocast not the dtype of q."""
    if q.dtype in DTYPES and torch.is_autocast_enabled(q.device.type):
        return torch.get_autocast_dtype(q.device.type)
    return q.dtype


def _interpreted(q: Tensor) -> bool:
    return q.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"


def _refusal_of_tiles(q: Tensor, v: Tensor, dtype: torch.dtype, kind: Kind) -> str | None:
    heads, size = q.shape[-2], max(q.shape[-1], v.shape[-1])
    if not HAS_TRITON:
        return "Triton (pip install 'triton>=3.6')"
    if _interpreted(q) and dtype == torch.bfloat16:
        return "float32 or float16 in Triton's interpreter, which multiplies bfloat16 wrongly"
    if size > 128 or heads > 32:
        return f"at most 32 heads of size 128, not {heads} of {size}"
    # Of a deep value network all numbers of all heads must fit into the memory of a multiprocessor.
    padded = max(16, 1 << (heads - 1).bit_length()) * max(16, 1 << (size - 1).bit_length())
    most = 2048 if dtype.itemsize == 2 else 512
    if kind.value_network == "deep" and padded > most:
        expected = f"heads x size of at most {most} for a deep value network in {dtype}"
        return f"{expected} (both at least 16, and powers of two), not {heads} x {size}"
    return None


def _refusal_of_cpu(v: Tensor, kind: Kind) -> str | None:
    if kind.value_network == "deep" and v.shape[-1] > MOST_DEEP_ON_CPU:
        most = f"values of a size of at most {MOST_DEEP_ON_CPU}"
        return f"{most} for a deep value network, not {v.shape[-1]}"
    if not _cpu_library():
        return "a library of CPU kernels: a C++ compiler, such as g++ (or see $CXX)"
    return None


def _cpu_library() -> bool:
    return native.load("attention") is not None


native.hide_from_compiler(_cpu_library)


def slices(q: Tensor, v: Tensor) -> int:
    """Over how many threads `thin` splits a head: none takes more than 16 of its numbers."""
    return 1 << (-(-max(q.shape[-1], v.shape[-1]) // 16) - 1).bit_length()


def _refusal_of_thin(q: Tensor, v: Tensor, kind: Kind) -> str | None:
    heads, sizes, parts = q.shape[-2], (q.shape[-1], v.shape[-1]), slices(q, v)
    too_large = parts > 1 and (heads * max(sizes) > 64 or any(size % parts for size in sizes))
    if heads > 64 or too_large:
        few = "heads x size of at most 64; one above 16: both even; above 32: multiples of 4"
        return f"at most 64 heads of size 16 (or {few}), not {heads} of {sizes}"
    # The gradient of its matrices stays in registers.
    if kind.value_network == "deep" and (v.shape[-1] > 4 or parts > 1):
        return f"sizes of at most 16, of values 4, for a deep value network, not {sizes}"
    return None


def _refusal_of_wide(
    q: Tensor, v: Tensor, dtype: torch.dtype, kind: Kind, biased: bool
) -> str | None:
    heads, sizes = q.shape[-2], (q.shape[-1], v.shape[-1])
    if dtype == torch.float32:
        return "bfloat16 or float16 tensors, not float32"
    if biased:
        return "no bias and no mask"
    if sizes not in ((32, 32), (64, 64)) or heads > 16:
        return f"at most 16 heads of size 32 or 64, not {heads} of {sizes}"
    return None


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    form: Form,
    backend: str,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    deep: Tensor | None = None,
    factors: Tensor | None = None,
) -> Tensor:
    """`hyla.attend` through a fused kernel, for arguments that `choose` found fit."""
    batch, (queries, heads, _), keys = q.shape[:-3], q.shape[-3:], k.shape[-3]
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if mask is not None:
        bias = torch.where(mask, 0.0 if bias is None else bias.float(), -torch.inf)
    if bias is not None:
        bias = _sets(bias.float(), batch, (heads, queries, keys))
    if deep is not None:
        deep = _sets(deep.to(v.dtype), batch, tuple(deep.shape[-3:]))
    if factors is not None:
        factors = _sets(factors.float(), batch, (queries, keys))
    if lengths is not None:
        lengths = lengths.clamp(max=keys).reshape(-1).to(torch.int32)
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    apply: Any = _Function.apply if _in_transformation() else operator
    out, _ = apply(q, k, v, bias, lengths, deep, factors, *astuple(form), backend)
    return out.reshape(*batch, *out.shape[1:])


def _in_transformation() -> bool:
    """Whether this is under `torch.func`, where the autograd of an operator does not work."""
    return torch._C._are_functorch_transforms_active()


def _sets(x: Tensor, batch: Sequence[int], axes: tuple[int, ...]) -> Tensor:
    """`[M, *axes]`: one set for each sequence, or for as many outer axes as have their own."""
    x = x.reshape(*(1,) * (len(batch) + len(axes) - x.ndim), *x.shape)
    own = len(batch)
    while own and x.shape[own - 1] == 1:
        own -= 1
    expanded = x.expand(*batch[:own], *(1,) * (len(batch) - own), *axes)
    return expanded.reshape(-1, *axes).contiguous()


def empty(shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for a result; a test fills it with NaN first."""
    return like.new_empty(tuple(shape), dtype=like.dtype if dtype is None else dtype)


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    lengths: Tensor | None,
    deep: Tensor | None,
    factors: Tensor | None,
    form: Form,
    backend: str,
) -> Call:
    """The tensors as kernels read them."""
    if backend != "cpu":
        q = q.contiguous()
        k, v = (x if x[0].is_contiguous() else x.contiguous() for x in (k, v))
    others = (bias, lengths, deep, factors)
    bias, lengths, deep, factors = (None if x is None else x.contiguous() for x in others)
    return Call(q, k, v, bias, lengths, deep, factors, form)


def _kernels(backend: str) -> ModuleType:
    # At the first use: Triton takes a second to import.
    return importlib.import_module(f"hyla.attention.{backend}")


@torch.library.custom_op("hyla::attend", mutates_args=())
def operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    lengths: Tensor | None,
    deep: Tensor | None,
    factors: Tensor | None,
    normaliser: str,
    value_network: str,
    relu: bool,
    causal: bool,
    scale: float,
    eps: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """The output `[N, Q, H, V]`, and of a softmax the log-sum-exp: N Q H numbers, in the order
    that suits the kernels of this backend; nothing on a CPU."""
    form = Form(normaliser, value_network, relu, causal, scale, eps)
    out, lse = _kernels(backend).forward(
        _call(q, k, v, bias, lengths, deep, factors, form, backend)
    )
    return out, q.new_empty(0, dtype=torch.float32) if lse is None else lse.flatten()


@operator.register_fake
def _(q, k, v, bias, lengths, deep, factors, normaliser, *options):  # type: ignore[no-untyped-def]
    backend = options[-1]
    lse = q.shape[:3].numel() if normaliser == "softmax" and backend != "cpu" else 0
    return q.new_empty((*q.shape[:3], v.shape[-1])), q.new_empty(lse, dtype=torch.float32)


@torch.library.custom_op("hyla::attend_backward", mutates_args=())
def backward_operator(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    lengths: Tensor | None,
    deep: Tensor | None,
    factors: Tensor | None,
    out: Tensor,
    lse: Tensor,
    normaliser: str,
    value_network: str,
    relu: bool,
    causal: bool,
    scale: float,
    eps: float,
    backend: str,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v, bias and deep; an empty tensor for one that is not there."""
    form = Form(normaliser, value_network, relu, causal, scale, eps)
    sums = lse if normaliser == "softmax" else None
    call = _call(q, k, v, bias, lengths, deep, factors, form, backend)
    dq, dk, dv, dbias, ddeep = _kernels(backend).backward(
        call, grad.contiguous(), out, sums, need_bias=need_bias
    )
    none = q.new_empty(0)
    dbias = none.float() if dbias is None else dbias.contiguous()
    return dq, dk, dv, dbias, none.clone() if ddeep is None else ddeep


@backward_operator.register_fake
def _(grad, q, k, v, bias, lengths, deep, factors, out, lse, *options):  # type: ignore[no-untyped-def]
    need_bias = options[-1]
    dbias = q.new_empty(bias.shape if need_bias else 0, dtype=torch.float32)
    ddeep = q.new_empty(0 if deep is None else deep.shape)
    # Gradients are contiguous, also those of views.
    return *(x.new_empty(x.shape) for x in (q, k, v)), dbias, ddeep


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    *tensors, normaliser, value_network, relu, causal, scale, eps, backend = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.options = (normaliser, value_network, relu, causal, scale, eps, backend)


def _backward(ctx, grad, _):  # type: ignore[no-untyped-def]
    need_bias = ctx.needs_input_grad[3]
    saved = ctx.saved_tensors  # once: activation checkpointing computes them for a single look
    apply: Any = _BackwardFunction.apply if _in_transformation() else backward_operator
    dq, dk, dv, dbias, ddeep = apply(grad, *saved, *ctx.options, need_bias)
    has_deep = saved[5] is not None
    gradients = (dq, dk, dv, dbias if need_bias else None, None, ddeep if has_deep else None)
    return (*gradients, None, *(None for _ in ctx.options))


def _second(ctx, *grads):  # type: ignore[no-untyped-def]
    raise NotImplementedError("second derivatives of attention need backend='reference'")


operator.register_autograd(_backward, setup_context=_setup)
backward_operator.register_autograd(_second)


class _Function(torch.autograd.Function):
    """The operator, for the transformations of `torch.func`."""

    generate_vmap_rule = True
    forward = staticmethod(operator)
    setup_context = staticmethod(_setup)
    backward = staticmethod(_backward)


class _BackwardFunction(torch.autograd.Function):
    generate_vmap_rule = True
    forward = staticmethod(backward_operator)
    setup_context = staticmethod(lambda ctx, inputs, output: None)
    backward = staticmethod(_second)


def _fold(
    info: Any,
    in_dims: Sequence[int | None],
    tensors: Sequence[Tensor | None],
    sets: tuple[int, ...],
) -> list[Tensor | None]:
    """Tensors that have taken the axis of `torch.func.vmap` into their first, sequences or sets.

    sets: those that may stay as they are if all sequences share them.
    """
    folded: list[Tensor | None] = []
    for index, (x, axis) in enumerate(zip(tensors, in_dims, strict=False)):
        if x is None or (axis is None and index in sets and x.shape[0] == 1):
            folded.append(x)
            continue
        x = x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)
        folded.append(x.flatten(0, 1))
    return folded


def _unfold(info: Any, results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    size = info.batch_size
    return tuple(x.reshape(size, x.shape[0] // size, *x.shape[1:]) for x in results)


@operator.register_vmap
def _(info, in_dims, *arguments):  # type: ignore[no-untyped-def]
    tensors, options = arguments[:7], arguments[7:]
    results = operator(*_fold(info, in_dims, tensors, sets=(3, 5, 6)), *options)
    return _unfold(info, results), (0, 0)


@backward_operator.register_vmap
def _(info, in_dims, *arguments):  # type: ignore[no-untyped-def]
    tensors, options = arguments[:10], arguments[10:]
    # A gradient that is wanted is wanted by each call.
    sets = (7,) if options[-1] else (4, 7)
    results = backward_operator(*_fold(info, in_dims, tensors, sets), *options)
    return _unfold(info, results), (0,) * 5
