"""Run the CUDA kernels of hyla.attention on the CPU, compiled by g++ with a CUDA emulation."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hyla.attention import kernels
from hyla.attention.kernels import cuda, wide

HERE = Path(__file__).parent
GXX = ("g++", "-std=c++20", "-O1", "-w", "-fPIC")


def emulate(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Kernels are compiled into the folder and run here; their results start as NaN."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++, which compiles the kernels for the CPU")

    def compile_kernel(
        _: torch.device, source: Path, name: str, defines: cuda.Options, shared_bytes: int = 0
    ) -> Callable[..., None]:
        launch = compiled(folder, source, name, defines)

        def run(grid: tuple[int, ...], block: tuple[int, ...], arguments: list[Any]) -> None:
            values = [as_c(argument) for argument in arguments]
            pointers = (ctypes.c_void_p * len(values))(
                *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
            )
            launch(*grid[:2], block[0], pointers)
            assert source != wide.SOURCE or shared_bytes == launch.shared_bytes

        return run

    def poisoned(shape: Any, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return like.new_full(tuple(shape), torch.nan, dtype=dtype or like.dtype)

    monkeypatch.setattr(cuda, "compile_kernel", compile_kernel)
    monkeypatch.setattr(kernels, "empty", poisoned)


def as_c(argument: Tensor | int | float) -> Any:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int(argument) if isinstance(argument, int) else ctypes.c_double(argument)


@cache
def precompiled_header(folder: Path) -> str:
    """The name of a copy of cuda_on_cpu.h: parsing it takes longer than compiling a kernel."""
    header = folder / "cuda_on_cpu.h"
    header.write_text((HERE / header.name).read_text())
    subprocess.run([*GXX, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return header.name


@cache
def compiled(folder: Path, kernel: Path, name: str, defines: cuda.Options) -> Any:
    source = folder / f"{abs(hash((kernel, name, defines)))}.cpp"
    library = source.with_suffix(".so")
    options = "".join(f"#define {key} {value}\n" for key, value in defines)
    tensor_cores, shared = "", "0"
    if kernel == wide.SOURCE:
        tensor_cores = f'#include "{HERE / "tensor_cores_on_cpu.h"}"\n'
        shared = "sizeof(Shared)"
    source.write_text(
        f'#include "{precompiled_header(folder)}"\n{options}{tensor_cores}#include "{kernel}"\n'
        'extern "C" void launch(unsigned x, unsigned y, unsigned threads, void** given) {\n'
        f"  arguments = given;\n  body = [] {{ call({name}); }};\n  run_grid(x, y, threads);\n}}\n"
        f'extern "C" int shared_bytes = {shared};\n'
    )
    subprocess.run([*GXX, "-shared", source, "-o", library], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.launch.shared_bytes = ctypes.c_int.in_dll(loaded, "shared_bytes").value
    return loaded.launch
