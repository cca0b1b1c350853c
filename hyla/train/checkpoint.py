"""Checkpoints: checksummed files, written atomically; only the newest few are kept."""

import hashlib
import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from hyla.errors import bad_value
from hyla.files import new_file, remove_partial

# The only entry in the safetensors metadata: the checksum, a space, and the JSON text that it
# covers besides the tensors. (The library writes several entries in random order.)
ENTRY = "hyla_checkpoint"
NAME = re.compile(r"step-([0-9]{9,})\.safetensors")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class DamagedCheckpoint(ValueError):  # noqa: N818
    """A checkpoint file is corrupt; the message says how."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved at a step; tensors are on the CPU."""

    path: Path
    step: int
    tensors: dict[str, Tensor]
    metadata: dict[str, Any]


def save(
    folder: Path,
    step: int,
    tensors: dict[str, Tensor],
    metadata: dict[str, Any],
    keep: int = 2,
    damaged: Collection[Path] = (),
) -> Path:
    """Write a checkpoint, then delete all but the newest `keep`; for one process at a time.

    Checkpoints of later steps are deleted too: they come from an abandoned continuation.

    metadata: plain JSON values.
    damaged: checkpoints to delete that do not count towards `keep`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = save(Path(folder), 12, {"weight": torch.ones(3)}, {"seed": 5})
    ...     found = load(path)
    >>> path.name, found.step, found.tensors, found.metadata
    ('step-000000012.safetensors', 12, {'weight': tensor([1., 1., 1.])}, {'seed': 5})
    """
    if step < 0:
        raise bad_value("step", step, "a whole number of at least 0")
    if keep < 1:
        raise bad_value("keep", keep, "a whole number of at least 1")
    data = _serialise(step, tensors, metadata)
    # Before writing: leftovers of a crash on a full disk may be what fills it.
    remove_partial(folder)
    path = path_of(folder, step)
    with new_file(path, overwrite=True) as handle:
        handle.write(data)
    found = paths(folder)
    past = [one for one in found if one == path or (step_of(one) < step and one not in damaged)]
    for old in set(found) - set(past[:keep]):
        old.unlink(missing_ok=True)
    return path


def _serialise(step: int, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> bytes:
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS + INTEGERS:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS + INTEGERS)
            raise bad_value(f"tensors[{name!r}].dtype", tensor.dtype, f"one of {allowed}")
    try:
        text = json.dumps({"step": step, "metadata": metadata}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise bad_value("metadata", error, "plain JSON values") from None
    # Copies, because safetensors rejects tensors that share memory.
    copies = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    return to_bytes(copies, {ENTRY: f"{_checksum(text, copies)} {text}"})


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    names = sorted(tensors)
    parts = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(json.dumps([text, parts]).encode())
    for name in names:
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load(path: Path) -> Checkpoint:
    """Load a checkpoint; DamagedCheckpoint if even one bit of the file has changed."""
    data = path.read_bytes()
    if not data:
        raise _damaged(path, "the file is empty")
    try:
        tensors = from_bytes(data)
        length = int.from_bytes(data[:8], "little")
        entries = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except (SafetensorError, ValueError, KeyError, AssertionError, RuntimeError) as error:
        raise _damaged(path, f"not a complete safetensors file ({error})") from None
    checksum, _, text = entries.get(ENTRY, "").partition(" ")
    if not checksum:
        raise _damaged(path, "it has no checksum")
    if checksum != _checksum(text, tensors):
        raise _damaged(path, "its content does not match its checksum")
    content = json.loads(text)
    found = Checkpoint(path, content["step"], tensors, content["metadata"])
    if NAME.fullmatch(path.name) and step_of(path) != found.step:
        raise _damaged(path, f"it holds step {found.step}, unlike its name")
    return found


def _damaged(path: Path, problem: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"{path}: damaged checkpoint: {problem}.")


def latest(
    folder: Path, problem: Callable[[Checkpoint], str] = lambda found: ""
) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest usable checkpoint and a message for each one skipped.

    A read error is raised rather than skipped, because it may be temporary.

    problem: returns why an intact checkpoint cannot be used, or "" if it can.
    """
    messages = []
    for path in paths(folder):
        try:
            found = load(path)
        except DamagedCheckpoint as error:
            messages.append(f"skipped {error}")
            continue
        if not (reason := problem(found)):
            return found, messages
        messages.append(f"skipped {path}: {reason}.")
    return None, messages


def paths(folder: Path) -> list[Path]:
    """List the checkpoints in a folder by name, newest first, damaged or not."""
    if not folder.is_dir():
        return []
    return sorted((one for one in folder.iterdir() if NAME.fullmatch(one.name)), key=step_of)[::-1]


def path_of(folder: Path, step: int) -> Path:
    """Return the path of a step's checkpoint."""
    return folder / f"step-{step:09d}.safetensors"


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint.

    >>> step_of(Path("step-000012345.safetensors"))
    12345
    """
    match = NAME.fullmatch(path.name)
    if match is None:
        raise bad_value(str(path), repr(path.name), "a name like 'step-000012345.safetensors'")
    return int(match[1])
