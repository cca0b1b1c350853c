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

import torch
from torch import Tensor

from hyla.attention.variants import Kind
from hyla.errors import bad_value, unknown_name

BACKENDS = ("reference", "thin", "tiles")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Form:
    """What a kernel is made for, apart from sizes: the kind and how its scores are made."""

    normaliser: str
    value_network: str
    relu: bool
    causal: bool
    scale: float
    eps: float


def choose(
    backend: str | None, q: Tensor, k: Tensor, v: Tensor, kind: Kind, activation: str, bias: bool
) -> str:
    """The backend for these tensors: the one that is asked for, or the fastest that can do it.

    Asking for one that cannot do it is an error that says why.
    """
    if backend == "reference":
        return backend
    if backend is not None:
        if backend not in BACKENDS:
            raise unknown_name("backend", backend, BACKENDS)
        reason = refusal(backend, q, k, v, kind, activation)
        if reason is not None:
            raise bad_value("backend", backend, reason)
        return backend
    if q.device.type != "cuda":
        return "reference"
    if kind.normaliser == "softmax" and kind.value_network == "linear" and not bias:
        return "reference"  # which is PyTorch's own fused attention
    for candidate in ("thin", "tiles") if _is_short(q, k) else ("tiles", "thin"):
        if refusal(candidate, q, k, v, kind, activation) is None:
            return candidate
    return "reference"


def _is_short(q: Tensor, k: Tensor) -> bool:
    """Whether there are enough sequences for a thread each, and few enough keys to wait for."""
    return q[..., 0, 0, 0].numel() >= 64 and q.shape[-3] <= 256 and k.shape[-3] <= 256


def refusal(
    backend: str, q: Tensor, k: Tensor, v: Tensor, kind: Kind, activation: str
) -> str | None:
    """What a kernel would need and these tensors are not; None if it can do them."""
    (heads, size), value_size = q.shape[-2:], v.shape[-1]
    if q.dtype not in DTYPES:
        return f"float32, bfloat16 or float16 tensors, not {q.dtype}"
    if kind.nonlinear and activation != "relu":
        return f"the activation 'relu', not {activation!r}"
    if 0 in (q.numel(), k.numel(), v.numel()):
        return "tensors that are not empty"
    if backend == "thin":
        if q.device.type != "cuda" or torch.version.hip:
            return f"tensors on an NVIDIA GPU, not on {q.device}"
        if kind.value_network == "deep":
            return "a kind without the deep value network"
        if max(size, value_size) > 16 or heads > 64:
            return f"at most 64 heads of size 16, not {heads} of {max(size, value_size)}"
        return None
    interpreted = q.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if q.device.type != "cuda" and not interpreted:
        return f"tensors on a GPU, not on {q.device}"
    if importlib.util.find_spec("triton") is None:
        return "Triton (pip install triton)"
    if max(size, value_size) > 128 or heads > 32:
        return f"at most 32 heads of size 128, not {heads} of {max(size, value_size)}"
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
    if lengths is not None:
        lengths = lengths.reshape(-1).to(torch.int32)
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    out, _ = operator(q, k, v, bias, lengths, deep, *astuple(form), backend)
    return out.reshape(*batch, *out.shape[1:])


def _sets(x: Tensor, batch: Sequence[int], axes: tuple[int, ...]) -> Tensor:
    """`[M, *axes]`: a set for every sequence, or for as many of the outer axes as have their own."""
    x = x.reshape(*(1,) * (len(batch) + len(axes) - x.ndim), *x.shape)
    own = len(batch)
    while own and x.shape[own - 1] == 1:
        own -= 1
    expanded = x.expand(*batch[:own], *(1,) * (len(batch) - own), *axes)
    return expanded.reshape(-1, *axes).contiguous()


def empty(shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for a result; a test fills it with NaN first."""
    return like.new_empty(tuple(shape), dtype=like.dtype if dtype is None else dtype)


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
    normaliser: str,
    value_network: str,
    relu: bool,
    causal: bool,
    scale: float,
    eps: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """The output `[N, Q, H, V]` and what the backward wants to know of a softmax, if it is one."""
    form = Form(normaliser, value_network, relu, causal, scale, eps)
    out, lse = _kernels(backend).forward(q, k, v, bias, lengths, deep, form)
    return out, q.new_empty(0, dtype=torch.float32) if lse is None else lse


@operator.register_fake
def _(q, k, v, bias, lengths, deep, normaliser, value_network, relu, causal, scale, eps, backend):  # type: ignore[no-untyped-def]
    lse = (*q.shape[:3],) if normaliser == "softmax" else (0,)
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
    dq, dk, dv, dbias, ddeep = _kernels(backend).backward(
        grad.contiguous(), q, k, v, bias, lengths, deep, out, sums, form, need_bias=need_bias
    )
    none = q.new_empty(0)
    dbias = none.float() if dbias is None else dbias.contiguous()
    return dq, dk, dv, dbias, none.clone() if ddeep is None else ddeep


@backward_operator.register_fake
def _(grad, q, k, v, bias, lengths, deep, out, lse, *options):  # type: ignore[no-untyped-def]
    need_bias = options[-1]
    dbias = torch.empty_like(bias) if need_bias else q.new_empty(0, dtype=torch.float32)
    ddeep = q.new_empty(0) if deep is None else torch.empty_like(deep)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dbias, ddeep


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    *tensors, normaliser, value_network, relu, causal, scale, eps, backend = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.options = (normaliser, value_network, relu, causal, scale, eps, backend)


def _backward(ctx, grad, _):  # type: ignore[no-untyped-def]
    need_bias = ctx.needs_input_grad[3]
    dq, dk, dv, dbias, ddeep = backward_operator(
        grad, *ctx.saved_tensors, *ctx.options, need_bias
    )
    has_deep = ctx.saved_tensors[5] is not None
    gradients = (dq, dk, dv, dbias if need_bias else None, None, ddeep if has_deep else None)
    return (*gradients, *(None for _ in ctx.options))


operator.register_autograd(_backward, setup_context=_setup)
