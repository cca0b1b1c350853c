"""Which kernel suits a call: the one that is named, or the fastest that can do it.

Shapes: q `[batch, queries, heads, size]`, k and v `[batch, keys, heads, size]`.
"""

from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hyla.attention.kernels import DTYPES, cpu, input_dtype, thin, tiles, wide
from hyla.attention.variants import Kind
from hyla.errors import unknown_name

KERNELS: dict[str, ModuleType] = {"cpu": cpu, "thin": thin, "wide": wide, "tiles": tiles}
BACKENDS = ("reference", *KERNELS)
# What a grid of blocks can count.
MAX_TOKENS = 262_140


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
    """Return the backend for these tensors: the requested one, or the fastest that supports them.

    Asking for one that cannot do it is an error that says why. biased: there is a bias or a mask.
    factored: there are factors of the code.
    """
    if backend == "reference":
        return backend
    if backend is not None:
        if backend not in BACKENDS:
            raise unknown_name("backend", backend, BACKENDS)
        reason = unsupported_reason(backend, q, k, v, kind, activation, biased, factored)
        if reason is not None:
            message = f"backend: {backend!r} needs {reason}; None takes what can do the call."
            raise ValueError(message)
        return backend
    if q.device.type == "cpu":
        # An exported program should not need this package.
        if torch.compiler.is_exporting():
            return "reference"
        suits = unsupported_reason("cpu", q, k, v, kind, activation, biased, factored) is None
        return "cpu" if suits else "reference"
    if q.device.type != "cuda":
        return "reference"
    sequences, queries, keys = q.shape[:-3].numel(), q.shape[-3], k.shape[-3]
    preferred: tuple[str, ...] = ("wide", "tiles", "thin")
    if sequences >= 64 and queries <= 256 and keys <= 256:
        # A thread for each sequence, few keys to wait for; large heads rather in tensor cores.
        large = thin.slices(q, v) > 1
        preferred = ("wide", "thin", "tiles") if large else ("thin", "wide", "tiles")
    elif queries < 16:
        preferred = "tiles", "thin", "wide"  # tiles also splits the keys of a query over the GPU
    for candidate in preferred:
        if unsupported_reason(candidate, q, k, v, kind, activation, biased, factored) is None:
            return candidate
    return "reference"


def unsupported_reason(
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
    kernel, dtype = KERNELS[backend], input_dtype(q)
    reason = kernel.unsupported_device(q) or unsupported_kind(backend, kind, activation)
    if reason is not None:
        return reason
    if dtype not in DTYPES:
        return f"float32, bfloat16 or float16 tensors, not {dtype}"
    if forward_ad._current_level >= 0:
        return "reverse mode: kernels have no forward-mode derivatives"
    if 0 in (q.numel(), k.numel(), v.numel()):
        return "tensors that are not empty"
    tokens = max(q.shape[-3], k.shape[-3])
    if backend != "cpu" and tokens > MAX_TOKENS:
        return f"at most {MAX_TOKENS} tokens, not {tokens}"
    return kernel.unsupported_sizes(q, v, dtype, kind, biased, factored)


def unsupported_kind(backend: str, kind: Kind, activation: str) -> str | None:
    """Why a kernel does not compute this kind: one of its parts is not among those it lists."""
    kernel = KERNELS[backend]
    if kind.normaliser not in kernel.NORMALISERS:
        return f"the normaliser {' or '.join(kernel.NORMALISERS)}, not {kind.normaliser!r}"
    if kind.value_network not in kernel.VALUE_NETWORKS:
        networks = " or ".join(kernel.VALUE_NETWORKS)
        return f"the value network {networks}, not {kind.value_network!r}"
    if kind.nonlinear and activation not in kernel.ACTIVATIONS:
        return f"the activation {' or '.join(map(repr, kernel.ACTIVATIONS))}, not {activation!r}"
    return None
