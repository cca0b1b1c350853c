"""What `thin` and `wide` need to compile and launch kernels written in CUDA."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LANES = 32
# By the number that the kernels call TYPE.
TYPES = (torch.float32, torch.bfloat16, torch.float16)

Options = tuple[tuple[str, int], ...]


def options(defines: Mapping[str, int]) -> Options:
    """Definitions for the compiler, in a form that can be looked up."""
    return tuple((name, int(value)) for name, value in defines.items())


def unsupported_device(
    q: Tensor, least: tuple[int, int], above: tuple[int, int], capability: str
) -> str | None:
    """Why kernels for some GPUs do not run where q is; capability: of these GPUs, in words."""
    if q.device.type != "cuda":
        return f"tensors on an NVIDIA GPU, not on {q.device}"
    if torch.version.hip or not least <= torch.cuda.get_device_capability(q.device) < above:
        return f"an NVIDIA GPU of compute capability {capability}"
    return None


@cache
def compile_kernel(
    device: torch.device, source: Path, name: str, defines: Options, shared_bytes: int = 0
) -> Callable[..., None]:
    """A kernel for these sizes, as a function of grid, block and arguments."""
    flags = ["--std=c++17", *(f"-D{key}={value}" for key, value in defines)]
    with torch.cuda.device(device):
        _bind_context()
        # Private, but nothing else in PyTorch compiles CUDA without a toolkit being installed.
        kernel = torch.cuda._compile_kernel(source.read_text(), name, nvcc_options=flags)
        kernel.set_shared_memory_config(shared_bytes)

    def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments: list[Any]) -> None:
        with torch.cuda.device(device):
            _bind_context()
            kernel(grid, block, arguments, shared_bytes)

    return launch


def _bind_context() -> None:
    """A new thread, as autograd's, has no CUDA context before its first call of the runtime."""
    torch.cuda.is_current_stream_capturing()


def aligned(x: Tensor) -> Tensor:
    """Contiguous, and at an address from which 16 bytes can be copied at once."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()
