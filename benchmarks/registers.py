"""Check registers and spills of the CUDA kernels, without a GPU: `python benchmarks/registers.py`.

Compiles the kernels of a call of each shape with nvcc. Fails if a kernel uses more registers or
spills more bytes than registers.json allows, which would reduce occupancy; `--write` updates that
file. With nvcc 13.0, one kernel spills: `sraven-hyla` on sm_90, 16 bytes.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from hyla.attention.kernels import Call, KernelSpec, cuda, thin, wide
from hyla.attention.variants import KINDS


class Shape(NamedTuple):
    """A call, and the architectures for which its kernels are compiled."""

    kernels: ModuleType
    kind: str
    dtype: torch.dtype
    tokens: int
    heads: int
    size: int
    bias: bool
    architectures: tuple[str, ...]
    dropout: bool = False


BOTH, HOPPER = ("sm_80", "sm_90"), ("sm_90",)
SHAPES = {
    "sraven-hyla": Shape(thin, "hyla", torch.bfloat16, 36, 16, 4, True, BOTH),
    "sraven-softmax": Shape(thin, "softmax", torch.bfloat16, 36, 16, 4, True, BOTH),
    "sraven-linear": Shape(thin, "linear", torch.bfloat16, 36, 16, 4, True, BOTH),
    "sraven-hyla-fp32": Shape(thin, "hyla", torch.float32, 36, 16, 4, True, BOTH),
    "sraven-64-heads": Shape(thin, "hyla", torch.bfloat16, 36, 64, 4, True, HOPPER),
    "sraven-64-heads-fp32": Shape(thin, "hyla", torch.float32, 36, 64, 4, True, HOPPER),
    "sraven-64-heads-dropout": Shape(thin, "hyla", torch.float32, 36, 64, 4, True, HOPPER, True),
    "fuzzy-hyla": Shape(thin, "hyla", torch.float32, 32, 8, 2, True, BOTH),
    "sraven-hyla-dropout": Shape(thin, "hyla", torch.bfloat16, 36, 16, 4, True, BOTH, True),
    "sraven-softmax-dropout": Shape(thin, "softmax", torch.bfloat16, 36, 16, 4, True, BOTH, True),
    "language-hyla": Shape(wide, "hyla", torch.bfloat16, 1024, 8, 64, False, HOPPER),
}
USED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.S)


class Kernel(NamedTuple):
    """Source, name and macros of a kernel."""

    source: Path
    name: str
    defines: tuple[tuple[str, int], ...]


def kernels_of(shape: Shape) -> list[Kernel]:
    """Return the kernels that forward and backward would launch."""
    found: dict[Kernel, None] = {}

    def compile_kernel(
        device: torch.device, source: Path, name: str, defines: Any, shared_bytes: int = 0
    ) -> Callable[..., None]:
        found[Kernel(source, name, defines)] = None
        return lambda *arguments: None

    kind = KINDS[shape.kind]
    parts = kind.normaliser, kind.value_network, kind.nonlinear
    spec = KernelSpec(*parts, not shape.bias, 0.5, 1e-6)
    sequences = 2048 if shape.kernels is thin else 2  # the batch that the kernels are tuned for
    q = torch.zeros(sequences, shape.tokens, shape.heads, shape.size, dtype=shape.dtype)
    pairs = (shape.tokens, shape.tokens)
    bias = torch.zeros(1, shape.heads, *pairs) if shape.bias else None
    call = Call(q, q, q, bias, None, None, torch.ones(1, *pairs) if shape.dropout else None, spec)
    before, cuda.compile_kernel = cuda.compile_kernel, compile_kernel  # type: ignore[assignment]
    try:
        out, lse = shape.kernels.forward(call)
        shape.kernels.backward(call, q, out, lse, need_bias=shape.bias)
    finally:
        cuda.compile_kernel = before
    return list(found)


def measure(kernel: Kernel, architecture: str, nvcc: str) -> tuple[int, int]:
    """Return spilled bytes and registers per thread."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            nvcc, "-x", "cu", "-cubin", "--std=c++17", f"-arch={architecture}", "-Xptxas", "-v",
            "-diag-suppress=177", *(f"-D{name}={value}" for name, value in kernel.defines),
            "-o", f"{folder}/kernel.cubin", str(kernel.source),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = USED.findall(done.stderr)
    if done.returncode or not found:
        raise SystemExit(f"{kernel.name}, {architecture}: nvcc failed\n{done.stderr[-2000:]}")
    spilled = max(int(stores) + int(loads) for stores, loads, _ in found)
    return spilled, max(int(registers) for *_, registers in found)


def measured(names: list[str], nvcc: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, spilled bytes and registers of every kernel of these shapes."""
    for name in names:
        for architecture in SHAPES[name].architectures:
            for number, kernel in enumerate(kernels_of(SHAPES[name])):
                defines = dict(kernel.defines)
                part = defines.get("KERNEL", defines.get("MODE", number))
                yield f"{name}, {architecture}, kernel {part}", *measure(kernel, architecture, nvcc)


LIMITS = Path(__file__).with_name("registers.json")  # by name: registers, spilled bytes


def main() -> None:
    """Compile, print and compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, metavar="SHAPE", default=[*SHAPES])
    parser.add_argument("--write", action="store_true", help="save the measured numbers as limits")
    options = parser.parse_args()
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit("nvcc not found: install the CUDA toolkit")
    limits = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    wrong = False
    for name, spilled, registers in measured(options.shape, nvcc):
        found = [registers, spilled]
        limit = limits[name] = found if options.write else limits.get(name, [0, 0])
        bad = registers > limit[0] or spilled > limit[1]
        wrong |= bad
        note = f"  WRONG: {limit[0]} and {limit[1]} allowed" if bad else ""
        sys.stdout.write(f"{name}: {registers} registers, {spilled} bytes spilled{note}\n")
        sys.stdout.flush()
    if options.write:
        LIMITS.write_text(json.dumps(limits, indent=1) + "\n")
    raise SystemExit(int(wrong))


if __name__ == "__main__":
    main()
