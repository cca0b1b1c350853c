"""The attention family of "Attention as a Hypernetwork", behind one function: `attend`.

Shapes as in `reference`: B leading axes, Q queries, K keys, H heads, D and V head sizes.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from hyla.attention import reference
from hyla.attention.kernels import KernelSpec, choice, input_dtype, operator
from hyla.attention.registry import (
    ACTIVATIONS,
    register_activation,
    register_normaliser,
    register_value_network,
)
from hyla.attention.variants import (
    KINDS,
    Kind,
    find_activation,
    find_kind,
    identity,
    import_kind,
    register_kind,
)
from hyla.errors import bad_value

__all__ = [
    "ACTIVATIONS",
    "KINDS",
    "Kind",
    "attend",
    "import_kind",
    "latent_codes",
    "register_activation",
    "register_kind",
    "register_normaliser",
    "register_value_network",
]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kind: str | Kind = "hyla",
    activation: str = "relu",
    causal: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    deep: Tensor | None = None,
    factors: Tensor | None = None,
    scale: float | None = None,
    eps: float = 1e-6,
    backend: str | None = None,
) -> Tensor:
    """Multi-head attention of any kind: makes the latent code, applies the value network.

    q: `[batch, queries, heads, size]`, k and v: `[batch, keys, heads, size]`. There may be more
        leading axes (a population, say), the same in all three; v may have a size of its own.
    kind: a name of `KINDS`, or a `Kind`. activation: its nonlinearity, if it has one.
    causal: a query sees the keys up to its own position; the last query stands at the last key.
    mask: boolean, True = attend, broadcastable to `[batch, heads, queries, keys]`.
    lengths: integers `[batch]`; only the first `lengths[b]` keys of sequence b take part.
    bias: added to the scaled scores, broadcastable like the mask; -inf masks the pair.
        A large finite number does not: without a softmax it is a score like any other.
        Mask and bias have the axes `[keys]`, `[queries, keys]` or all of them.
    deep: `[heads, size, size]`, the second value matrices of a kind with the `deep` value network;
        with a population, `[member, 1, heads, size, size]`.
    factors: `[queries, keys]`, of the code of all heads; with a population, `[member, 1, queries,
        keys]`. They get no gradient.
    scale: of the scores, 1 / sqrt(size) by default. eps: under the root of RMSHead.
    backend: `reference`, or a fused kernel, whose memory is linear in the tokens: `cpu`, or on a
        GPU `thin` (many short sequences, thin heads), `wide` (long sequences, heads of 32 or 64)
        or `tiles` (all else). By default the fastest that can do the call.

    A masked pair contributes nothing, for every kind (its key and value must still be finite); a
    query without any key gets 0.

    >>> q = k = v = torch.randn(2, 5, 3, 4)
    >>> attend(q, k, v, kind="hyla", causal=True).shape
    torch.Size([2, 5, 3, 4])
    """
    kind = find_kind(kind)
    phi = find_activation(kind, activation)
    scale = _check_scores(q, k, causal, mask, lengths, bias, scale, eps)
    _check_values(k, v, kind, deep)
    factors = _check_factors(q, k, factors)
    standard = kind.normaliser == "softmax" and kind.value_network == "linear" and phi is identity
    standard = standard and bias is factors is None and backend is None
    if standard and forward_ad._current_level < 0:
        return _standard_attention(q, k, v, causal, mask, lengths, scale)
    biased = bias is not None or mask is not None
    chosen = choice.choose(backend, q, k, v, kind, activation, biased, factors is not None)
    if chosen != "reference":
        relu = phi is not identity
        spec = KernelSpec(kind.normaliser, kind.value_network, relu, causal, scale, eps)
        options = {"mask": mask, "lengths": lengths, "bias": bias, "deep": deep, "factors": factors}
        return operator.attend(q, k, v, spec, chosen, **options)
    allowed = _allowed(q, k, causal, mask, lengths, bias)

    def reference_attend(q: Tensor, k: Tensor, v: Tensor, deep: Tensor | None) -> Tensor:
        code_BHQK = reference.latent_code(
            q, k, kind.normaliser, scale=scale, eps=eps, bias=bias, allowed=allowed
        )
        if factors is not None:
            code_BHQK = code_BHQK * factors.to(code_BHQK.dtype).unsqueeze(-3)
        code_BHQK = code_BHQK.to(v.dtype)
        return reference.apply_value_network(code_BHQK, v, kind.value_network, phi, deep)

    dtype = input_dtype(q) if q.device.type == "cpu" else None
    if dtype not in (torch.bfloat16, torch.float16):
        return reference_attend(q, k, v, deep)
    # Float32 inside, as in the kernels.
    q, k, v = (x.to(dtype).float() for x in (q, k, v))
    deep = None if deep is None else deep.to(dtype).float()
    with torch.autocast("cpu", enabled=False):
        return reference_attend(q, k, v, deep).to(dtype)


def latent_codes(
    q: Tensor,
    k: Tensor,
    *,
    kind: str | Kind = "hyla",
    causal: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """The latent codes that `attend` would use, `[batch, queries, keys, heads]`.

    >>> q = k = torch.randn(2, 5, 3, 4)
    >>> latent_codes(q, k, kind="softmax").sum(dim=2).allclose(torch.ones(2, 5, 3))
    True
    """
    scale = _check_scores(q, k, causal, mask, lengths, bias, scale, eps)
    allowed = _allowed(q, k, causal, mask, lengths, bias)
    code_BHQK = reference.latent_code(
        q, k, find_kind(kind).normaliser, scale=scale, eps=eps, bias=bias, allowed=allowed
    )
    return code_BHQK.movedim(-3, -1)


def _allowed(
    q: Tensor,
    k: Tensor,
    causal: bool,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
) -> Tensor | None:
    keys = torch.arange(k.shape[-3], device=k.device)
    queries = torch.arange(k.shape[-3] - q.shape[-3], k.shape[-3], device=k.device)
    return reference.allowed_pairs(
        queries, keys, causal=causal, mask=mask, lengths=lengths, bias=bias
    )


def _standard_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    mask: Tensor | None,
    lengths: Tensor | None,
    scale: float,
) -> Tensor:
    """The softmax kind through PyTorch's own attention.

    Not used with a bias: on the CPU its gradient does not work under `torch.func.vmap`. With
    `is_causal` a scale of 0 or below makes its masked scores NaN or the largest of all.
    """
    square = q.shape[-3] == k.shape[-3]
    square_causal = causal and square and scale > 0 and mask is lengths is None
    pairs = None if square_causal else _allowed(q, k, causal, mask, lengths, None)
    lead = q.shape[:-3]
    if pairs is None:  # PyTorch 2.13 cannot compile `is_causal` with more than four axes
        q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    out_BHQV = F.scaled_dot_product_attention(
        q.transpose(-3, -2),
        k.transpose(-3, -2),
        v.transpose(-3, -2),
        attn_mask=None if pairs is None else torch.atleast_2d(pairs),
        is_causal=square_causal,
        scale=scale,
    )
    out_BQHV = out_BHQV.transpose(-3, -2)
    return out_BQHV if pairs is not None else out_BQHV.reshape(*lead, *out_BQHV.shape[-3:])


def _check_scores(
    q: Tensor,
    k: Tensor,
    causal: bool,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    scale: float | None,
    eps: float,
) -> float:
    """Refuses what cannot be computed; returns the scale of the scores."""
    if q.ndim < 4 or k.ndim != q.ndim:
        shapes = f"q {list(q.shape)} and k {list(k.shape)}"
        raise bad_value("q, k", shapes, "[batch, tokens, heads, size], with as many axes each")
    batch, queries, heads, size = q.shape[:-3], q.shape[-3], q.shape[-2], q.shape[-1]
    keys = k.shape[-3]
    if size < 1:
        raise bad_value("q", list(q.shape), "a head size of at least 1")
    if k.shape[:-3] != batch or k.shape[-2:] != q.shape[-2:]:
        expected = f"the batch, heads and size of q, {[*batch, 'keys', heads, size]}"
        raise bad_value("k", list(k.shape), expected)
    if not q.dtype.is_floating_point or k.dtype != q.dtype:
        raise bad_value("q, k", f"{q.dtype} and {k.dtype}", "one floating-point dtype")
    if causal and queries > keys:
        raise bad_value("causal", f"{queries} queries and {keys} keys", "at most one query a key")
    check_pairs((*batch, heads, queries, keys), mask, lengths, bias)
    check_eps(eps)
    if scale is None:
        return size**-0.5
    if not -math.inf < scale < math.inf:
        raise bad_value("scale", scale, "a finite number")
    return scale


def check_eps(eps: float) -> None:
    """Refuses an epsilon of RMSHead that leads to NaN: a masked score is 0, and 0 / 0 is NaN."""
    tiny = torch.finfo(torch.float32).tiny
    if not tiny <= eps < math.inf:
        raise bad_value("eps", eps, f"a finite number of at least {tiny:.1e}, the least of float32")


def check_pairs(
    pairs: tuple[int, ...], mask: Tensor | None, lengths: Tensor | None, bias: Tensor | None
) -> None:
    """Refuses a mask, lengths or a bias that do not fit `[batch, heads, queries, keys]`."""
    for name, argument in (("mask", mask), ("lengths", lengths), ("bias", bias)):
        if argument is not None and not isinstance(argument, Tensor):
            raise bad_value(name, type(argument).__name__, "a tensor")
    batch = pairs[:-3]
    if mask is not None:
        if mask.dtype != torch.bool:
            expected = "a boolean tensor (True = attend); additive terms go to bias"
            raise bad_value("mask", mask.dtype, expected)
        _check_broadcast("mask", mask, pairs)
    if bias is not None:
        if not bias.dtype.is_floating_point:
            expected = "a floating-point tensor; a boolean mask goes to mask"
            raise bad_value("bias", bias.dtype, expected)
        _check_broadcast("bias", bias, pairs)
    if lengths is not None and (
        tuple(lengths.shape) != batch or lengths.dtype not in (torch.int32, torch.int64)
    ):
        given = f"{lengths.dtype} {list(lengths.shape)}"
        raise bad_value("lengths", given, f"integers of shape {list(batch)}, one a sequence")


def _check_broadcast(name: str, tensor: Tensor, target: tuple[int, ...]) -> None:
    sizes = tuple(tensor.shape)
    # Three axes could be the heads' or the sequences': refused rather than guessed.
    fits = len(sizes) in (1, 2, len(target)) and all(
        size in (1, wanted) for size, wanted in zip(reversed(sizes), reversed(target), strict=False)
    )
    if not fits:
        axes = f"[batch, heads, queries, keys] = {list(target)}"
        expected = f"[keys], [queries, keys], or all axes broadcastable to {axes} "
        expected += "(one for each sequence: [batch, 1, 1, keys])"
        raise bad_value(name, list(sizes), expected)


def _check_values(k: Tensor, v: Tensor, kind: Kind, deep: Tensor | None) -> None:
    if v.ndim != k.ndim or v.shape[:-1] != k.shape[:-1] or v.dtype != k.dtype:
        given = f"{v.dtype} {list(v.shape)}"
        raise bad_value("v", given, f"{k.dtype} {[*k.shape[:-1], 'size']}, as k")
    if not kind.uses_deep:
        if deep is not None:
            raise bad_value("deep", list(deep.shape), f"None for the kind {kind.title!r}")
        return
    *batch, _, heads, size = v.shape
    if (
        deep is None
        or tuple(deep.shape[-3:]) != (heads, size, size)
        or len(deep.shape) > len(v.shape)
        or any(s not in (1, b) for s, b in zip(deep.shape[-4::-1], batch[::-1], strict=False))
    ):
        expected = f"[heads, size, size] = {[heads, size, size]} for the kind {kind.title!r}"
        expected += f", or with axes before these that broadcast to {batch}"
        raise bad_value("deep", None if deep is None else list(deep.shape), expected)


def _check_factors(q: Tensor, k: Tensor, factors: Tensor | None) -> Tensor | None:
    """Refuses factors that do not fit; returns them without a gradient."""
    if factors is None:
        return None
    target = (*q.shape[:-3], q.shape[-3], k.shape[-3])
    *outer, queries, keys = factors.shape if factors.ndim > 1 else (0, 0)
    fits = (queries, keys) == target[-2:] and len(outer) <= len(target) - 2
    if not fits or any(a not in (1, b) for a, b in zip(outer[::-1], target[-3::-1], strict=False)):
        expected = f"[queries, keys] = {list(target[-2:])}"
        expected += f", or with axes before these that broadcast to {list(target[:-2])}"
        raise bad_value("factors", list(factors.shape), expected)
    return factors.detach()
