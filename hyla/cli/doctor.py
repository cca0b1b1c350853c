"""`hyla doctor`: which kernels this machine can use, and how to enable the others."""

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from rich.table import Table

import hyla
from hyla import native, products
from hyla.attention.kernels import choice, tiles
from hyla.attention.variants import find_kind
from hyla.cli.shared import output, write_json

CPU_KERNELS = {"attention": "attention on a CPU", "products": "float32 layers and AdamW on a CPU"}


@dataclass(frozen=True)
class Finding:
    """The result of one check. mend: a command or step that would fix it."""

    name: str
    works: bool
    found: str
    mend: str | None = None


def doctor(json: bool = False) -> None:
    """Show which kernels this machine can use, why others fail, and how to fix them.

    Args:
        json: Print JSON only.
    """
    findings = [*_machine(), *_cpu(), *_gpu()]
    if json:
        write_json([asdict(finding) for finding in findings])
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        table.add_row(finding.name, "yes" if finding.works else "no", finding.found)
    console = output()
    console.print(table, markup=False)
    broken = [finding for finding in findings if finding.mend]
    for finding in broken:
        console.print(f"{finding.name}: {finding.mend}", soft_wrap=True, markup=False)
    if not broken:
        console.print("Everything that this machine supports works.")


def _machine() -> Iterator[Finding]:
    versions = f"hyla {hyla.__version__}, PyTorch {torch.__version__}"
    yield Finding("versions", True, f"{versions}, Python {platform.python_version()}")
    levels = [*native.supported_variants(), *(["bf16"] if native.has_bf16() else [])]
    cores = f"{torch.get_num_threads()} threads of {os.cpu_count()}"
    yield Finding("processor", True, f"{native.processor()[1]}, {cores}, {', '.join(levels)}")


def _cpu() -> Iterator[Finding]:
    about = native.describe()
    yield Finding("C++ compiler", about["compiler"] is not None, about["version"] or "not found")
    for library, name in CPU_KERNELS.items():
        loaded = native.load(library) is not None
        report = native.describe()["libraries"][library]
        kind = f"prebuilt for {report['prebuilt']}" if report["prebuilt"] else report["path"]
        mend = None if loaded else "apt-get install g++, or set CXX to a working compiler"
        if library == "products" and native.vendor() == products.INTEL:
            yield Finding(name, True, "PyTorch's own, which is fast on this processor")
            continue
        if loaded and not report["prebuilt"] and not str(report["path"]).startswith(about["cache"]):
            mend = f"{about['cache']} is not writable: set XDG_CACHE_HOME to a writable folder"
        yield Finding(name, loaded, kind if loaded else report["reason"], mend)


def _gpu() -> Iterator[Finding]:
    count = torch.cuda.device_count()
    if not count:
        driver = shutil.which("nvidia-smi") is not None
        mend = None
        if driver and torch.version.cuda is None:
            mend = "install PyTorch with CUDA; this build is CPU-only"
        elif driver:
            mend = "to see why PyTorch finds no GPU, run: python -m torch.utils.collect_env"
        yield Finding("GPU", False, "PyTorch sees no CUDA GPU", mend)
        return
    for index in range(count):
        about = torch.cuda.get_device_properties(index)
        found = f"{about.name}, compute capability {about.major}.{about.minor}"
        yield Finding("GPU", True, found)
        for backend in choice.BACKENDS:
            if backend not in ("reference", "cpu"):
                yield _gpu_kernel(backend, torch.device("cuda", index))


def _gpu_kernel(backend: str, device: torch.device) -> Finding:
    """Test a kernel with what every kernel supports: HYLA, bf16, two heads of size 32."""
    q = torch.zeros(1, 64, 2, 32, dtype=torch.bfloat16, device=device)
    reason = choice.unsupported_reason(backend, q, q, q, find_kind("hyla"), "relu", biased=False)
    name, where = f"kernel {backend}", f"on {device}"
    if reason is None:
        try:
            hyla.attend(q, q, q, kind="hyla", backend=backend)
        except Exception as error:  # compilers and drivers raise anything; show it
            reason = str(error).splitlines()[0]
            return Finding(name, False, reason, "report it with: python -m torch.utils.collect_env")
    mend = "pip install 'triton>=3.6'" if backend == "tiles" and not tiles.HAS_TRITON else None
    return Finding(name, reason is None, where if reason is None else f"needs {reason}", mend)
