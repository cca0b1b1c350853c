"""Kernels for short sequences with thin heads, in CUDA through PyTorch's run-time compiler.

The design is told in thin.cu: it needs to say which numbers share a thread, as Triton cannot.
Shapes: as in `fused`.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hyla.attention import cuda, fused
from hyla.attention.cuda import LANES, TYPES, aligned
from hyla.attention.fused import Call

SHARED_BYTES = 48 * 1024
SOURCE = Path(__file__).with_name("thin.cu")
KERNELS = ("forward", "query_gradient", "key_gradient")
NORMALISERS = ("none", "rms_head", "softmax")
# For each kernel: the most numbers of a head block that one thread holds, the rows of a thread, the
# warps of a block, the blocks of a multiprocessor, the most tokens in shared memory at a time. In
# fp32 the forward wants fewer numbers in a thread.
TUNING = {
    "forward": (32, 3, 4, 2, 4),
    "forward_fp32": (16, 3, 4, 3, 4),
    "query_gradient": (16, 1, 4, 4, 4),
    "key_gradient": (16, 1, 4, 4, 4),
}


class _Problem:
    """The arguments that the three kernels share, and how to launch one of them."""

    def __init__(self, call: Call) -> None:
        self.q, self.k, self.v = (aligned(x) for x in call[:3])
        # A thread wants the heads of a pair side by side.
        bias = call.bias
        self.bias = None if bias is None else aligned(bias.permute(0, 2, 3, 1))
        self.lengths = call.lengths
        self.members = 1 if bias is None else bias.shape[0]
        self.form = call.form

    def blocks(self, name: str) -> int:
        """How many groups of sequences a kernel is launched for; none of them mixes members."""
        per_member = self.q.shape[0] // self.members
        return self.members * -(-per_member // (LANES // self._group(name)))

    def launch(
        self, name: str, arguments: Sequence[Tensor], *, bias_gradient: bool = False
    ) -> None:
        queries, heads, size = self.q.shape[1:]
        keys, value_size = self.k.shape[1], self.v.shape[-1]
        _, rows, warps, blocks, chunk = self._tuning(name)
        group = self._group(name)
        held, width = -(-heads // group), self.q.element_size()
        units = sum(-(-held * s * width // 16) | 1 for s in (size, value_size))
        token_bytes = 2 * (LANES * 16 * units + 4 * warps * rows * heads)
        defines = {
            "KERNEL": KERNELS.index(name), "HEADS": heads, "D": size, "V": value_size,
            "GROUP": group, "ROWS": rows, "WARPS": warps, "BLOCKS": blocks,
            "CHUNK": max(1, min(chunk, SHARED_BYTES // token_bytes)),
            "NORMALISER": NORMALISERS.index(self.form.normaliser),
            "MLP": self.form.value_network == "mlp", "RELU": self.form.relu,
            "CAUSAL": self.form.causal, "BIAS": self.bias is not None,
            "BIAS_GRADIENT": bias_gradient, "LENGTHS": self.lengths is not None,
            "TYPE": TYPES.index(self.q.dtype),
        }  # fmt: skip
        kernel = cuda.compile_kernel(self.q.device, SOURCE, name, cuda.options(defines))
        tokens = keys if name == "key_gradient" else queries
        grid = (self.blocks(name), -(-tokens // (warps * rows)), 1)
        scalars = [self.q.shape[0] // self.members, queries, keys, self.form.scale, self.form.eps]
        kernel(grid, (warps * LANES, 1, 1), [*arguments, *scalars])

    def _group(self, name: str) -> int:
        """Over how many lanes the heads of a row are split, so that none holds too much."""
        heads, size, group = self.q.shape[2], max(self.q.shape[3], self.v.shape[3]), 1
        while group < min(heads, LANES) and -(-heads // group) * size > self._tuning(name)[0]:
            group *= 2
        return group

    def _tuning(self, name: str) -> tuple[int, int, int, int, int]:
        fp32 = name == "forward" and self.q.dtype == torch.float32
        return TUNING["forward_fp32" if fp32 else name]

    def pointers(self) -> tuple[Tensor, ...]:
        # An absent tensor still needs a pointer; the kernel does not look at it.
        return (
            self.q, self.k, self.v, self.q if self.bias is None else self.bias,
            self.q if self.lengths is None else self.lengths,
        )  # fmt: skip


def forward(call: Call) -> tuple[Tensor, Tensor | None]:
    """The output, and for softmax codes the logarithms of their sums `[N, Q, H]`."""
    problem = _Problem(call)
    v = problem.v
    out = fused.empty((*problem.q.shape[:3], v.shape[-1]), v)
    lse = None
    if call.form.normaliser == "softmax":
        lse = fused.empty(problem.q.shape[:3], v, torch.float32)
    problem.launch("forward", [*problem.pointers(), out, out if lse is None else lse])
    return out, lse


def backward(
    call: Call, grad_NQHV: Tensor, out_NQHV: Tensor, lse: Tensor | None, *, need_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
    """The gradients of q, k, v and, if needed, of the bias."""
    problem = _Problem(call)
    grad = aligned(grad_NQHV)
    dq, dk, dv = (fused.empty(x.shape, x) for x in call[:3])
    # Each block adds the gradient of the bias over its own sequences; PyTorch adds the rest.
    parts = dq
    if need_bias:
        assert problem.bias is not None
        blocks = problem.blocks("query_gradient")
        parts = fused.empty((blocks, *problem.bias.shape[1:]), dq, torch.float32)
    lse_or_any = dq if lse is None else aligned(lse)
    delta = dq if lse is None else fused.empty(lse.shape, lse)
    inputs = (grad, *problem.pointers(), lse_or_any)
    problem.launch("query_gradient", [*inputs, dq, delta, parts], bias_gradient=need_bias)
    problem.launch("key_gradient", [*inputs, delta, dk, dv])
    if not need_bias:
        return dq, dk, dv, None, None
    parts_MBQKH = parts.unflatten(0, (problem.members, -1))
    return dq, dk, dv, parts_MBQKH.sum(dim=1).permute(0, 3, 1, 2), None
