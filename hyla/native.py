"""Compiled libraries: prebuilt in the wheel, or built on first use and cached.

Importing this module touches neither files nor compiler. If a library is unavailable, `load` warns
once on stderr and the caller falls back to PyTorch.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
SOURCES = {
    "attention": PACKAGE / "attention" / "kernels" / "cpu.cpp",
    "products": PACKAGE / "products.cpp",
}
PREBUILT = PACKAGE / "_native"
FLAGS = (
    *("-O3", "-std=c++17", "-shared", "-fPIC", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math", "-w"),
)
COMPILE_SECONDS = 600
# CPU flags (as in /proc/cpuinfo) that each prebuilt variant needs on top of those below it.
VARIANTS = {
    "x86-64-v4-bf16": {"avx512_bf16"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"},
    "x86-64-v2": {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"},
}
BF16 = "-bf16"
LEVEL = "HYLA_CPU"  # environment variable that selects a lower variant, for tests and benchmarks


class BuildError(Exception):
    """A library cannot be built; the message says why and what to do."""


_lock = threading.RLock()
_libraries: dict[str, ctypes.CDLL | None] = {}
_reports: dict[str, dict[str, Any]] = {}


def load(name: str) -> ctypes.CDLL | None:
    """Return a library of `SOURCES`, or None; `describe` then gives the reason.

    Tries a prebuilt library for this processor, then the cache, then the compiler.
    """
    with _lock:
        if name not in _libraries:
            report: dict[str, Any] = {"prebuilt": None, "path": None, "reason": None}
            _reports[name] = report
            _libraries[name] = _load(name, report)
        return _libraries[name]


def _load(name: str, report: dict[str, Any]) -> ctypes.CDLL | None:
    import torch  # noqa: F401  Must come first: the libraries use PyTorch's OpenMP threads.

    for variant in allowed_variants():
        path = PREBUILT / f"{name}-{variant}.so"
        if path.is_file():
            with contextlib.suppress(OSError):
                library = ctypes.CDLL(str(path))
                report |= {"prebuilt": variant, "path": str(path)}
                return library
    path = Path()
    try:
        path = build(name, os.environ.get(LEVEL) or "native")
        library = ctypes.CDLL(str(path))
    except (BuildError, OSError) as error:
        if path.is_file():
            path.unlink(missing_ok=True)  # so that the next process rebuilds it
        report["reason"] = str(error)
        _say(f"no CPU kernels: {error}. The slower reference is used.")
        return None
    report["path"] = str(path)
    return library


def build(name: str, march: str = "native") -> Path:
    """Return the path of a library compiled for a processor; compile it unless cached.

    march: the compiler's -march; `native` is this processor.
    """
    source, command = SOURCES[name], compiler()
    if command is None:
        raise BuildError("no C++ compiler found; install g++ or set CXX")
    arguments = [*command, *FLAGS, *_march(march)]
    identity = [source.read_text(), *arguments, compiler_version(), *processor()]
    key = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:20]
    path = cache_folder() / f"{name}-{march}-{key}.so"
    if _intact(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".so")
    except OSError as error:
        folder = _temporary_folder()
        _say(
            f"cannot write to {path.parent} ({error.strerror}): set XDG_CACHE_HOME to cache kernels"
        )
        path = folder / path.name
        if _intact(path):
            return path
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".so")
    os.close(handle)
    try:
        _say(f"compiling the CPU kernels with {arguments[0]}, once (about 10 s)")
        _compile(source, arguments, Path(temporary))
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def build_variants(folder: Path) -> list[Path]:
    """Compile every library for every variant, for a wheel."""
    command, made = compiler(), []
    assert command is not None
    for name, source in SOURCES.items():
        for variant in VARIANTS:
            if variant.endswith(BF16) and "__AVX512BF16__" not in source.read_text():
                continue
            path = folder / f"{name}-{variant}.so"
            _compile(source, [*command, *FLAGS, *_march(variant)], path)
            made.append(path)
    return made


def _march(variant: str) -> list[str]:
    level = variant.removesuffix(BF16)
    return [f"-march={level}", *(["-mavx512bf16"] if level != variant else [])]


def _compile(source: Path, arguments: list[str], path: Path) -> None:
    try:
        done = subprocess.run(
            [*arguments, str(source), "-o", str(path)],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{arguments[0]} failed ({error}); install g++ 12 or newer") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        why = lines[0].strip() or f"exit code {done.returncode}"
        raise BuildError(f"{arguments[0]} failed ({why}); install g++ 12 or newer")
    # Append a checksum: loading a truncated library could crash the process.
    with path.open("rb+") as file:
        checksum = hashlib.sha256(file.read()).digest()
        file.write(checksum)


def _intact(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-32]).digest() == content[-32:]


@contextlib.contextmanager
def using(name: str, library: ctypes.CDLL | None) -> Iterator[None]:
    """Replace a library within a `with` block, for tests."""
    with _lock:
        before = dict(_libraries)
        _libraries[name] = library
    try:
        yield
    finally:
        with _lock:
            _libraries.clear()
            _libraries.update(before)


def describe() -> dict[str, Any]:
    """Return the state of compiler, cache and libraries without building anything.

    >>> sorted(describe())
    ['cache', 'compiler', 'libraries', 'variants', 'version']
    """
    command = compiler()
    return {
        "compiler": None if command is None else shlex.join(command),
        "version": None if command is None else compiler_version(),
        "cache": str(cache_folder()),
        "variants": supported_variants(),
        "libraries": {name: dict(report) for name, report in _reports.items()},
    }


def cache_folder() -> Path:
    """Return the folder for compiled libraries."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path("~/.cache").expanduser()) / "hyla"
    except RuntimeError:  # no home directory
        return Path("/nonexistent")


def compiler() -> list[str] | None:
    """Return the command of the C++ compiler: $CXX, g++ or clang++; None without one."""
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError:  # unbalanced quotes
        chosen = []
    for command in (chosen, ["g++"], ["clang++"]):
        if command and shutil.which(command[0]):
            return command
    return None


def compiler_version() -> str:
    """Return the first line of the compiler's `--version`; empty without a compiler."""
    command = compiler()
    if command is None:
        return ""
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.splitlines() or [""])[0]


@cache
def processor() -> tuple[str, ...]:
    """Return architecture, model, vendor and flags of the processor."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    flags = sorted(found.get("flags", "").split())
    model = found.get("model name", platform.processor())
    return platform.machine(), model, found.get("vendor_id", ""), *flags


def vendor() -> str:
    """Return the processor's vendor, such as AuthenticAMD."""
    return processor()[2]


def hide_from_compiler(function: Callable[[], bool]) -> None:
    """Make `torch.compile` treat a function's result as constant instead of tracing it.

    Same as `torch.compiler.assume_constant_result`, without importing the whole compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def keep_memory() -> None:
    """Make glibc keep freed memory, which the next training step allocates again.

    Otherwise every large tensor gets new pages, whose faults took a fifth of a step.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        threshold_of_mapping, threshold_of_trimming = -3, -1
        adjust = ctypes.CDLL(None).mallopt
        adjust(threshold_of_mapping, 2**30)
        adjust(threshold_of_trimming, 2**31 - 1)


def has_bf16() -> bool:
    """Whether the processor has bfloat16 products in hardware."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor()[3:])


def allowed_variants() -> list[str]:
    """Return the supported variants, highest first, limited by $HYLA_CPU."""
    found, level = supported_variants(), os.environ.get(LEVEL)
    if not level:
        return found
    if level not in found:
        raise ValueError(f"{LEVEL}: expected one of {', '.join(found)}, got {level!r}.")
    return found[found.index(level) :]


def supported_variants() -> list[str]:
    """Return the variants that this processor supports, highest first."""
    found: list[str] = []
    flags = set(processor()[3:])
    needed: set[str] = set()
    for variant in reversed(VARIANTS):
        needed = needed | VARIANTS[variant]
        if needed <= flags:
            found.insert(0, variant)
    return found


@cache
def _temporary_folder() -> Path:
    # `_kept` holds the object, so that the folder is removed at exit and not before.
    folder = tempfile.TemporaryDirectory(prefix="hyla-")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _say(message: str) -> None:
    sys.stderr.write(f"hyla: {message}\n")
