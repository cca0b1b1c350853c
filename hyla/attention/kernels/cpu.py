"""Fused attention for CPUs: how the library of cpu.cpp is called.

Shapes: as in `hyla.attention.kernels`.
"""

import ctypes
from functools import cache

import torch
from torch import Tensor

from hyla import native
from hyla.attention import kernels
from hyla.attention.kernels import Call
from hyla.attention.variants import Kind

# As the enumerations of cpu.cpp.
NORMALISERS = ("none", "rms_head", "softmax")
VALUE_NETWORKS = ("linear", "mlp", "deep")
ACTIVATIONS = ("relu",)
MOST_DEEP = 16
TYPES = (torch.float32, torch.bfloat16, torch.float16)
COUNTS = (
    *("threads", "type", "normaliser", "network", "relu", "causal"),
    *("N", "Q", "K", "H", "D", "V", "M"),
    *("q_sequence", "q_token", "k_sequence", "k_token", "v_sequence", "v_token"),
)
POINTERS = (
    *("q", "k", "v", "bias", "factors", "deep", "lengths", "out", "grad"),
    *("dq", "dk", "dv", "dbias", "ddeep"),
)


def unsupported_device(q: Tensor) -> str | None:
    """Why the kernels do not run where q is."""
    return None if q.device.type == "cpu" else f"tensors on a CPU, not on {q.device}"


def unsupported_sizes(
    q: Tensor, v: Tensor, dtype: torch.dtype, kind: Kind, biased: bool, factored: bool
) -> str | None:
    """What the kernels would need for a call of this size."""
    if kind.value_network == "deep" and v.shape[-1] > MOST_DEEP:
        most = f"values of a size of at most {MOST_DEEP}"
        return f"{most} for a deep value network, not {v.shape[-1]}"
    if not _has_library():
        return "a library of CPU kernels: a C++ compiler, such as g++ (or see $CXX)"
    return None


def _has_library() -> bool:
    return native.load("attention") is not None


native.hide_from_compiler(_has_library)


class _Arguments(ctypes.Structure):
    """The struct `Call` of cpu.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in COUNTS),
        *((name, ctypes.c_double) for name in ("scale", "eps")),
        *((name, ctypes.c_void_p) for name in POINTERS),
    )


def forward(call: Call) -> tuple[Tensor, None]:
    """The output; nothing else is kept for the backward."""
    out = kernels.empty((*call.q.shape[:3], call.v.shape[-1]), call.v)
    _run("forward", call, _sets(call), {"out": out})
    return out, None


def backward(
    call: Call, grad_NQHV: Tensor, out_NQHV: Tensor, lse: Tensor | None, *, need_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of q, k, v, if needed of the bias, and of a deep value network."""
    dq, dk, dv = (kernels.empty(x.shape, x) for x in call[:3])
    sets, dbias, ddeep = _sets(call), None, None
    results = {"dq": dq, "dk": dk, "dv": dv}
    if need_bias:
        results["dbias"] = kernels.empty(sets["bias"].shape, sets["bias"])
    if call.deep is not None:
        results["ddeep"] = kernels.empty(sets["deep"].shape, sets["deep"])
    _run("backward", call, sets, {"grad": grad_NQHV, **results})
    if call.bias is not None and need_bias:
        dbias = _added(results["dbias"], call.bias)
    if call.deep is not None:
        ddeep = _added(results["ddeep"], call.deep)
    return dq, dk, dv, dbias, ddeep


def _sets(call: Call) -> dict[str, Tensor]:
    """Bias, factors and deep matrices in float32: as many sets of one as of the others."""
    given = {"bias": call.bias, "factors": call.factors, "deep": call.deep}
    there = {name: x.float() for name, x in given.items() if x is not None}
    most = max((len(x) for x in there.values()), default=1)
    return {
        name: x if len(x) == most else x.repeat_interleave(most // len(x), 0)
        for name, x in there.items()
    }


def _added(gradients: Tensor, given: Tensor) -> Tensor:
    """The sum over the sets that were made of each of those given."""
    if len(gradients) != len(given):
        gradients = gradients.unflatten(0, (len(given), -1)).sum(1)
    return gradients.to(given.dtype)


def _run(name: str, call: Call, sets: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    spec, q, k, v = call.spec, *(_rows(x) for x in call[:3])
    tensors = {"q": q, "k": k, "v": v, **sets, **others}
    if call.lengths is not None:
        tensors["lengths"] = call.lengths
    members = max((len(x) for x in sets.values()), default=1)
    arguments = _Arguments(
        *(torch.get_num_threads(), TYPES.index(q.dtype)),
        *(NORMALISERS.index(spec.normaliser), VALUE_NETWORKS.index(spec.value_network)),
        *(spec.relu, spec.causal, *q.shape[:2], k.shape[1], *q.shape[2:], v.shape[3], members),
        *(stride for x in (q, k, v) for stride in x.stride()[:2]),
        *(spec.scale, spec.eps),
        **{name: x.data_ptr() for name, x in tensors.items()},
    )
    if _functions()[name](ctypes.byref(arguments)):
        raise MemoryError("no memory for attention")


def _rows(x_NTHD: Tensor) -> Tensor:
    """The tensor if its tokens are contiguous rows, as they are in parts of one product."""
    return x_NTHD if x_NTHD[0, 0].is_contiguous() else x_NTHD.contiguous()


@cache
def _of_library(library: ctypes.CDLL) -> dict[str, "ctypes._NamedFuncPointer"]:
    functions = {n: library[f"hyla_attention_{n}"] for n in ("forward", "backward")}
    for function in functions.values():
        function.argtypes = (ctypes.POINTER(_Arguments),)
    return functions


def _functions() -> dict[str, "ctypes._NamedFuncPointer"]:
    library = native.load("attention")
    assert library is not None
    return _of_library(library)
