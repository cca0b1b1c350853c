"""Kernels for short sequences with thin heads, in CUDA through PyTorch's run-time compiler.

See thin.cu for the design. CUDA, because Triton cannot control which numbers share a thread.
Shapes: as in `hyla.attention.kernels`.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hyla.attention import kernels
from hyla.attention.kernels import Call, cuda
from hyla.attention.kernels.cuda import LANES, TYPES, aligned
from hyla.attention.variants import Kind

SHARED_BYTES = 48 * 1024
MULTIPROCESSORS = 132  # of an H200, which TUNING is for
SOURCE = Path(__file__).with_name("thin.cu")
KERNELS = ("forward", "query_gradient", "key_gradient")
NORMALISERS = ("none", "rms_head", "softmax")
VALUE_NETWORKS = ("linear", "mlp", "deep")
ACTIVATIONS = ("relu",)
# For each kernel: the most numbers of a head block that one thread holds, the rows of a thread, the
# warps of a block, the blocks of a multiprocessor, the most tokens in shared memory at a time. Many
# sequences in 16 bits let a thread of the forward hold more numbers, if it has no sums of a softmax
# besides; the gradients of linear values want fewer. With a deep value network threads hold more
# besides, query_gradient the gradient of its matrices; nothing is spilled.
TUNING = {
    "forward": (16, 3, 4, 3, 4),
    "forward_many": (32, 3, 4, 2, 4),
    "query_gradient": (16, 1, 4, 4, 4),
    "key_gradient": (16, 1, 4, 4, 4),
    "query_gradient_linear": (8, 1, 6, 3, 4),
    "key_gradient_linear": (8, 1, 6, 3, 4),
    "forward_deep": (16, 2, 4, 3, 4),
    "query_gradient_deep": (16, 1, 4, 2, 4),
    "key_gradient_deep": (16, 1, 4, 3, 4),
}


def unsupported_device(q: Tensor) -> str | None:
    """Why the kernels do not run where q is: they need asynchronous copies."""
    return cuda.unsupported_device(q, (8, 0), (99, 0), "8.0 or more")


def unsupported_sizes(
    q: Tensor, v: Tensor, dtype: torch.dtype, kind: Kind, biased: bool, factored: bool
) -> str | None:
    """What the kernels would need for a call of this size."""
    heads, sizes, parts = q.shape[-2], (q.shape[-1], v.shape[-1]), slices(q, v)
    too_large = parts > 1 and (heads * max(sizes) > 64 or any(size % parts for size in sizes))
    if heads > 64 or too_large:
        few = "heads x size of at most 64; one above 16: both even; above 32: multiples of 4"
        return f"at most 64 heads of size 16 (or {few}), not {heads} of {sizes}"
    # The gradient of its matrices stays in registers.
    if kind.value_network == "deep" and (v.shape[-1] > 4 or parts > 1):
        return f"sizes of at most 16, of values 4, for a deep value network, not {sizes}"
    return None


def slices(q: Tensor, v: Tensor) -> int:
    """Over how many threads a head is split: none takes more than 16 of its numbers."""
    return 1 << (-(-max(q.shape[-1], v.shape[-1]) // 16) - 1).bit_length()


class _Problem:
    """The arguments that the three kernels share, and how to launch one of them."""

    def __init__(self, call: Call) -> None:
        self.q, self.k, self.v = (aligned(x) for x in call[:3])
        sets = [x.shape[0] for x in (call.bias, call.deep, call.factors) if x is not None]
        self.members = max(sets, default=1)
        # A thread wants the heads of a pair side by side.
        self.bias = None if call.bias is None else self._of_members(call.bias.permute(0, 2, 3, 1))
        self.deep = None if call.deep is None else self._of_members(call.deep)
        self.factors = None if call.factors is None else self._of_members(call.factors)
        self.lengths = call.lengths
        self.slices = slices(self.q, self.v)
        self.spec = call.spec

    def _of_members(self, sets: Tensor) -> Tensor:
        """One set for each member; where there are fewer, each is of as many that lie together."""
        each = self.members // sets.shape[0]
        return aligned(sets if each == 1 else sets.repeat_interleave(each, 0))

    def blocks(self, name: str) -> int:
        """How many groups of sequences a kernel is launched for; none of them mixes members."""
        per_member = self.q.shape[0] // self.members
        return self.members * -(-per_member // (LANES // self._group(name)))

    def launch(
        self, name: str, arguments: Sequence[Tensor], *, bias_gradient: bool = False
    ) -> None:
        queries, heads, keys = self.q.shape[1], self.q.shape[2], self.k.shape[1]
        size, value_size = (x.shape[-1] // self.slices for x in (self.q, self.v))  # of a part
        _, rows, warps, blocks, chunk = self._tuning(name)
        group = self._group(name)
        held, width = -(-heads * self.slices // group), self.q.element_size()
        units = sum(-(-held * s * width // 16) | 1 for s in (size, value_size))
        per_pair = heads if self.factors is None else heads + 2  # one for the padding of the struct
        token_bytes = 2 * (LANES * 16 * units + 4 * warps * rows * per_pair)
        deep_bytes = 0 if self.deep is None else 16 * group * (-(-held * value_size**2 // 4) | 1)
        defines = {
            "KERNEL": KERNELS.index(name), "HEADS": heads, "SLICES": self.slices,
            "D": size, "V": value_size, "GROUP": group, "ROWS": rows, "WARPS": warps,
            "BLOCKS": blocks,
            "CHUNK": max(1, min(chunk, (SHARED_BYTES - deep_bytes) // token_bytes)),
            "NORMALISER": NORMALISERS.index(self.spec.normaliser),
            "MLP": self.spec.value_network != "linear", "DEEP": self.deep is not None,
            "RELU": self.spec.relu,
            "CAUSAL": self.spec.causal, "BIAS": self.bias is not None,
            "BIAS_GRADIENT": bias_gradient, "LENGTHS": self.lengths is not None,
            "FACTORS": self.factors is not None,
            "TYPE": TYPES.index(self.q.dtype),
        }  # fmt: skip
        kernel = cuda.compile_kernel(self.q.device, SOURCE, name, cuda.options(defines))
        tokens = keys if name == "key_gradient" else queries
        grid = (self.blocks(name), -(-tokens // (warps * rows)), 1)
        scalars = [self.q.shape[0] // self.members, queries, keys, self.spec.scale, self.spec.eps]
        kernel(grid, (warps * LANES, 1, 1), [*arguments, *scalars])

    def _group(self, name: str) -> int:
        """Over how many lanes the heads of a row are split, so that none holds too much."""
        heads, size, group = self.q.shape[2], max(self.q.shape[3], self.v.shape[3]), 1
        if self.slices > 1:
            return self.slices << (heads - 1).bit_length()
        while group < min(heads, LANES) and -(-heads // group) * size > self._tuning(name)[0]:
            group *= 2
        return group

    def _tuning(self, name: str) -> tuple[int, int, int, int, int]:
        if self.deep is not None:
            return TUNING[f"{name}_deep"]
        if name == "forward":
            numbers, rows, warps, blocks, _ = TUNING["forward_many"]
            threads = self.q.numel() // (numbers * rows)
            many = threads >= MULTIPROCESSORS * blocks * warps * LANES
            many &= self.q.dtype != torch.float32 and self.spec.normaliser != "softmax"
            return TUNING["forward_many" if many else name]
        return TUNING[f"{name}_linear" if self.spec.value_network == "linear" else name]

    def pointers(self) -> tuple[Tensor, ...]:
        # An absent tensor still needs a pointer; the kernel does not look at it.
        optional = (self.bias, self.lengths, self.deep, self.factors)
        return (self.q, self.k, self.v, *(self.q if x is None else x for x in optional))


def forward(call: Call) -> tuple[Tensor, Tensor | None]:
    """The output, and for softmax codes the logarithms of their sums `[N, Q, H]`."""
    problem = _Problem(call)
    v = problem.v
    out = kernels.empty((*problem.q.shape[:3], v.shape[-1]), v)
    lse = None
    if call.spec.normaliser == "softmax":
        lse = kernels.empty(problem.q.shape[:3], v, torch.float32)
    problem.launch("forward", [*problem.pointers(), out, out if lse is None else lse])
    return out, lse


def backward(
    call: Call, grad_NQHV: Tensor, out_NQHV: Tensor, lse: Tensor | None, *, need_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of q, k, v, if needed of the bias, and of a deep value network."""
    problem = _Problem(call)
    grad, out = aligned(grad_NQHV), aligned(out_NQHV)
    dq, dk, dv = (kernels.empty(x.shape, x) for x in call[:3])
    # Each block adds the gradients of bias and deep over its own sequences; PyTorch adds the rest.
    blocks = problem.blocks("query_gradient")
    bias_parts = deep_parts = dq
    if need_bias:
        assert problem.bias is not None
        bias_parts = kernels.empty((blocks, *problem.bias.shape[1:]), dq, torch.float32)
    if problem.deep is not None:
        shape = (blocks, dq.shape[1], *problem.deep.shape[1:])
        deep_parts = kernels.empty(shape, dq, torch.float32)
    lse_or_any = dq if lse is None else aligned(lse)
    delta = dq if lse is None else kernels.empty(lse.shape, lse)
    inputs = (grad, *problem.pointers(), lse_or_any)
    outputs = (dq, delta, bias_parts, deep_parts)
    problem.launch("query_gradient", [*inputs, out, *outputs], bias_gradient=need_bias)
    problem.launch("key_gradient", [*inputs, delta, dk, dv])
    dbias = ddeep = None
    if need_bias:
        assert call.bias is not None
        dbias = _added(bias_parts, call.bias.shape[0]).permute(0, 3, 1, 2)
    if call.deep is not None:
        ddeep = _added(deep_parts.sum(dim=1), call.deep.shape[0]).to(call.deep.dtype)
    return dq, dk, dv, dbias, ddeep


def _added(parts: Tensor, sets: int) -> Tensor:
    """The sum of what blocks have added up, for each of the sets that were given."""
    return parts.unflatten(0, (sets, -1)).sum(dim=1)
