"""Choose how a run is computed: on which devices, compiled or not, how many members at once."""

import gc
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

import hyla
from hyla.attention.kernels.choice import choose
from hyla.attention.variants import find_kind
from hyla.errors import bad_value
from hyla.train.config import RunConfig
from hyla.train.population import AUTOCAST_DTYPES, Population, rounds_products

# On a CPU, compiling takes a minute or more and makes a step 1.1 to 1.7 times as fast.
WORTH_COMPILING = 600.0  # compile runs that would take longer than this uncompiled, in seconds

Say = Callable[[str], None]


@dataclass(frozen=True)
class Placement:
    """The devices of a run, whether steps are compiled, and the most members per population."""

    devices: tuple[torch.device, ...]
    compiled: bool
    members_at_once: int

    def parts(self, members: int) -> list[tuple[range, torch.device]]:
        """Split the members into ranges of nearly equal size, each with its device.

        >>> cpu = torch.device("cpu")
        >>> [list(part) for part, _ in Placement((cpu,), False, members_at_once=2).parts(5)]
        [[0, 1], [2, 3], [4]]
        """
        rounds = -(-members // (self.members_at_once * len(self.devices)))
        count = min(members, rounds * len(self.devices))
        sizes = [members // count + (part < members % count) for part in range(count)]
        ends = [sum(sizes[: part + 1]) for part in range(count)]
        ranges = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        return [(part, self.devices[i % len(self.devices)]) for i, part in enumerate(ranges)]


def find_devices(name: str, precision: str) -> tuple[torch.device, ...]:
    """Return the devices for a name: `cuda` is all GPUs, `auto` all GPUs or else the CPU."""
    gpus = tuple(torch.device("cuda", i) for i in range(torch.cuda.device_count()))
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    found: tuple[torch.device, ...] = ()
    if device is not None and device.type == "cpu":
        found = (torch.device("cpu"),)
    elif device is not None and device.type == "cuda":
        found = gpus if device.index is None else tuple(gpu for gpu in gpus if gpu == device)
    if not found:
        here = ", ".join(["auto", "cpu", *(["cuda", *map(str, gpus)] if gpus else [])])
        given = f"{name!r}" if gpus else f"{name!r} (PyTorch sees no CUDA GPU)"
        raise bad_value("device", given, f"a device of this machine: {here}")
    if precision == "tf32" and found[0].type != "cuda":
        raise bad_value("precision", "'tf32' on a CPU", "fp32, bf16 or fp64 (tf32 needs a GPU)")
    return found


def environment(placement: Placement) -> dict[str, Any]:
    """Return the versions and devices that a run is computed with."""
    first = placement.devices[0]
    on_gpu = first.type == "cuda"
    return {
        "hyla": hyla.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
        "device": torch.cuda.get_device_name(first) if on_gpu else platform.machine(),
        "devices": [str(device) for device in placement.devices],
        "threads": torch.get_num_threads(),
        "compiled": placement.compiled,
        "members_at_once": placement.members_at_once,
    }


def attention_of(config: RunConfig, device: torch.device) -> str:
    """Return the attention backend that a training step uses on a device."""
    model = config.model
    shape = (config.batch, config.task.tokens, model.heads, model.head_size)
    half = AUTOCAST_DTYPES.get(config.precision)
    rounds = rounds_products(config.precision, device)
    dtype = torch.float64 if config.precision == "fp64" else torch.float32
    q = torch.empty(shape, dtype=dtype if half is None or rounds else half, device=device)
    kind, biased = find_kind(model.kind), model.positions == "t5"
    chosen = choose(None, q, q, q, kind, model.activation, biased, bool(model.attention_dropout))
    plain = (kind.normaliser, kind.value_network, kind.nonlinear) == ("softmax", "linear", False)
    return "PyTorch" if plain and not biased and not model.attention_dropout else chosen


def in_words(config: RunConfig, placement: Placement) -> str:
    """Describe how a run is computed, for a message."""
    first = placement.devices[0]
    on_cpu = first.type == "cpu"
    where = f"{torch.get_num_threads()} threads" if on_cpu else f"{len(placement.devices)} GPU(s)"
    attention = attention_of(config, first)
    others = {"reference": "reference attention", "PyTorch": "PyTorch's attention"}
    how = others.get(attention, f"fused attention ({attention})")
    compiled = "compiled" if placement.compiled else "not compiled"
    return f"{where}, {config.precision}, {how}, {compiled}"


def choose_placement(
    config: RunConfig,
    device: str,
    compiled: bool | None,
    members_at_once: int | None,
    recorded: dict[str, Any],
) -> Placement:
    """Choose what was requested, else what the run folder records, else the best here."""
    devices, members = find_devices(device, config.precision), len(config.members)
    on_gpu = devices[0].type == "cuda"
    same_devices = recorded.get("devices") == [str(device) for device in devices]
    if members_at_once is not None and members_at_once < 1:
        raise bad_value("members_at_once", members_at_once, "a whole number of at least 1")
    if members_at_once is None and same_devices and _is_count(recorded.get("members_at_once")):
        members_at_once = recorded["members_at_once"]
    if members_at_once is None:
        members_at_once = members
    members_at_once = min(members_at_once, members)
    if compiled is None and same_devices and isinstance(recorded.get("compiled"), bool):
        compiled = recorded["compiled"]
    if compiled is None:
        compiled = on_gpu or _worth_compiling(config, members_at_once)
    return Placement(devices, compiled, members_at_once)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _worth_compiling(config: RunConfig, members_at_once: int) -> bool:
    """Whether a CPU run is long enough for compilation to pay off, judged by timing one step."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++", "cl")):
        return False
    if config.precision == "fp16":  # so slow on a CPU that even the trial takes too long
        return False
    trial = Population(config, range(members_at_once), torch.device("cpu"), compiled=False)
    trial.warm_up_kernels()
    start = time.perf_counter()
    trial.warm_up_kernels()
    seconds = time.perf_counter() - start
    return seconds * config.steps * len(config.members) / members_at_once > WORTH_COMPILING


def make_populations(
    config: RunConfig, placement: Placement, say: Say
) -> tuple[Placement, list[Population]]:
    """Make the populations of a run, ready to train; split them if memory does not suffice.

    Populations on one GPU take turns, so the memory for their steps is shared.
    """
    while True:
        largest = max(len(part) for part, _ in placement.parts(len(config.members)))
        try:
            return placement, _prepared(config, placement)
        except torch.OutOfMemoryError as error:
            if largest == 1:
                expected = f"a size that fits the memory of {placement.devices[0]} for one member"
                raise bad_value("batch", config.batch, expected) from error
        # Outside the handler: there the exception would keep the failed step's memory alive.
        gc.collect()
        torch.cuda.empty_cache()
        placement = replace(placement, members_at_once=-(-largest // 2))
        parts = [len(part) for part, _ in placement.parts(len(config.members))]
        say(f"out of memory: {len(config.members)} members split into {parts}")


def _no_limit_to_recompilation() -> AbstractContextManager[None]:
    """Lift PyTorch's limit of 8 recompilations: each size, device and run needs its own."""
    from torch._dynamo import config  # slow to import, and not needed without compilation

    return config.patch(recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize)


def _prepared(config: RunConfig, placement: Placement) -> list[Population]:
    populations = [
        Population(config, which, device, compiled=placement.compiled)
        for which, device in placement.parts(len(config.members))
    ]
    # All rehearsals before all captures: a captured CUDA graph keeps its memory.
    with _no_limit_to_recompilation() if placement.compiled else nullcontext():
        for population in populations:
            population.warm_up_kernels(config.splits)
    if any(population.device.type == "cuda" for population in populations):
        # A capture can neither reuse nor free the memory that rehearsals cached.
        gc.collect()
        torch.cuda.empty_cache()
    pools: dict[torch.device, Any] = {}
    for population in populations:
        pools[population.device] = population.capture(pools.get(population.device))
    return populations
