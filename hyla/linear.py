"""The linear layers of a population as one torch operator: bias, GELU and gradients with it.

A batched product of PyTorch leaves the bias, the activation and the bias's gradient to further
passes over memory, and makes the gradient of a weight with a few blocks of the GPU. Here they are
part of two kernels. Shapes: as in `linear_kernels`, with M members.
"""

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

# Looked up here: torch.compile does not follow the search. Nothing is imported.
HAS_TRITON = importlib.util.find_spec("triton") is not None
LEAST_ROWS = 256  # of a member; for less, a kernel of one's own is not worth it
MULTIPLE = 16  # of inputs and outputs: what tensor cores take


def suits(x_MNI: Tensor, weight_MOI: Tensor) -> bool:
    """Whether the operator is for these tensors."""
    outputs, inputs = weight_MOI.shape[-2:]
    return (
        x_MNI.device.type == "cuda"
        and HAS_TRITON
        and not torch.version.hip
        and weight_MOI.dtype == torch.float32
        and x_MNI.dtype in (torch.float32, torch.bfloat16)
        and outputs % MULTIPLE == 0
        and inputs % MULTIPLE == 0
        and x_MNI.shape[1] >= LEAST_ROWS
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def linear(x_MNI: Tensor, weight_MOI: Tensor, bias_MO: Tensor | None, gelu: bool) -> Tensor:
    """x W^T + b for each member, of GELU(x) if so asked; under autocast in its dtype."""
    if torch.is_autocast_enabled(x_MNI.device.type):
        x_MNI = x_MNI.to(torch.get_autocast_dtype(x_MNI.device.type))
    result: Tensor = operator(x_MNI, weight_MOI, bias_MO, gelu)
    return result


def _exact(x: Tensor) -> bool:
    """Whether products must be those of fp32, which is not what tensor cores do."""
    return x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"


def _kernels() -> ModuleType:
    # At the first use: Triton takes a second to import.
    return importlib.import_module("hyla.linear_kernels")


@torch.library.custom_op("hyla::linear", mutates_args=())
def operator(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool) -> Tensor:
    """`[M, N, O]`, in the dtype of x."""
    if not _exact(x):
        result: Tensor = _kernels().forward(x.contiguous(), weight, bias, gelu)
        return result
    y = torch.bmm(F.gelu(x, approximate="tanh") if gelu else x, weight.mT)
    return y if bias is None else y.add_(bias.unsqueeze(1))


@operator.register_fake
def _(x, weight, bias, gelu):  # type: ignore[no-untyped-def]
    return x.new_empty((*x.shape[:2], weight.shape[1]))


@torch.library.custom_op("hyla::linear_backward", mutates_args=())
def backward_operator(
    grad: Tensor, x: Tensor, weight: Tensor, gelu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, of the weight and of a bias, `[M, N, I]`, `[M, O, I]`, `[M, O]`."""
    if not _exact(x):
        dx, dw, db = _kernels().backward(grad.contiguous(), x.contiguous(), weight, gelu)
        return dx, dw, db
    dx = torch.bmm(grad, weight)
    if gelu:
        dx = torch.ops.aten.gelu_backward(dx, x, approximate="tanh")
        x = F.gelu(x, approximate="tanh")
    return dx, torch.bmm(grad.mT, x), grad.sum(dim=1)


@backward_operator.register_fake
def _(grad, x, weight, gelu):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape[:2])


def _setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, weight, _, gelu = inputs
    ctx.save_for_backward(x, weight)
    ctx.gelu = gelu


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dx, dw, db = backward_operator(grad, x, weight, ctx.gelu)
    return dx, dw, db if ctx.needs_input_grad[2] else None, None


operator.register_autograd(_backward, setup_context=_setup)
