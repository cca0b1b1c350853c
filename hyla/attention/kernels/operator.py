"""The fused kernels as one torch operator: autograd, `torch.func`, fake tensors.

Shapes: as in `hyla.attention.kernels`.
"""

import importlib
from collections.abc import Sequence
from dataclasses import astuple
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hyla.attention.kernels import Call, KernelSpec


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spec: KernelSpec,
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
        bias = broadcast_per_member(bias.float(), batch, (heads, queries, keys))
    if deep is not None:
        deep = broadcast_per_member(deep.to(v.dtype), batch, tuple(deep.shape[-3:]))
    if factors is not None:
        factors = broadcast_per_member(factors.float(), batch, (queries, keys))
    if lengths is not None:
        lengths = lengths.clamp(max=keys).reshape(-1).to(torch.int32)
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    apply: Any = _Function.apply if _in_transformation() else operator
    out, _ = apply(q, k, v, bias, lengths, deep, factors, *astuple(spec), backend)
    return out.reshape(*batch, *out.shape[1:])


def _in_transformation() -> bool:
    """Whether this is under `torch.func`, where the autograd of an operator does not work."""
    return torch._C._are_functorch_transforms_active()


def broadcast_per_member(x: Tensor, batch: Sequence[int], axes: tuple[int, ...]) -> Tensor:
    """`[M, *axes]`: one set for each sequence, or for as many outer axes as have their own."""
    x = x.reshape(*(1,) * (len(batch) + len(axes) - x.ndim), *x.shape)
    own = len(batch)
    while own and x.shape[own - 1] == 1:
        own -= 1
    expanded = x.expand(*batch[:own], *(1,) * (len(batch) - own), *axes)
    return expanded.reshape(-1, *axes).contiguous()


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    lengths: Tensor | None,
    deep: Tensor | None,
    factors: Tensor | None,
    spec: KernelSpec,
    backend: str,
) -> Call:
    """The tensors as kernels read them."""
    if backend != "cpu":
        q = q.contiguous()
        k, v = (x if x[0].is_contiguous() else x.contiguous() for x in (k, v))
    others = (bias, lengths, deep, factors)
    bias, lengths, deep, factors = (None if x is None else x.contiguous() for x in others)
    return Call(q, k, v, bias, lengths, deep, factors, spec)


def _kernels(backend: str) -> ModuleType:
    # At the first use: Triton takes a second to import.
    return importlib.import_module(f"hyla.attention.kernels.{backend}")


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
    spec = KernelSpec(normaliser, value_network, relu, causal, scale, eps)
    out, lse = _kernels(backend).forward(
        _call(q, k, v, bias, lengths, deep, factors, spec, backend)
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
    spec = KernelSpec(normaliser, value_network, relu, causal, scale, eps)
    sums = lse if normaliser == "softmax" else None
    call = _call(q, k, v, bias, lengths, deep, factors, spec, backend)
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
