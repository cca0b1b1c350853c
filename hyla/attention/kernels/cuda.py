"""Compile and launch the CUDA kernels of `thin` and `wide`."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LANES = 32
# Indexed by the macro TYPE of the kernels.
TYPES = (torch.float32, torch.bfloat16, torch.float16)

Options = tuple[tuple[str, int], ...]


def options(defines: Mapping[str, int]) -> Options:
    """Return macro definitions in hashable form."""
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
    """Compile a kernel with these macros; return a function of grid, block and arguments."""
    flags = ["--std=c++17", *(f"-D{key}={value}" for key, value in defines)]
    with torch.cuda.device(device):
        _bind_context()
        # Private, but PyTorch's only way to compile CUDA without an installed toolkit.
        kernel = torch.cuda._compile_kernel(source.read_text(), name, nvcc_options=flags)
        kernel.set_shared_memory_config(shared_bytes)

    def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments: list[Any]) -> None:
        with torch.cuda.device(device):
            _bind_context()
            kernel(grid, block, arguments, shared_bytes)

    return launch


def _bind_context() -> None:
    """Make sure that this thread has a CUDA context, which new threads (autograd's) lack."""
    torch.cuda.is_current_stream_capturing()


def aligned(x: Tensor) -> Tensor:
    """Return x contiguous and aligned to 16 bytes, copied if necessary."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()
