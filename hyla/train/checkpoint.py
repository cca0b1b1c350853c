"""Checkpoints: whole files that tell when they are damaged, the newest few of which are kept."""

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

# The one entry in the metadata of the safetensors header: the checksum, a space, and what it
# covers beside the tensors. (The library would write several entries in a random order.)
ENTRY = "hyla_checkpoint"
NAME = re.compile(r"step-([0-9]{9,})\.safetensors")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class DamagedCheckpoint(ValueError):  # noqa: N818
    """A file that is not the checkpoint that was once saved; the message says what is wrong."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved at a step, the tensors on the CPU."""

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
    """Writes a checkpoint, then deletes all but the newest `keep`; one process at a time.

    Those of later steps are deleted too: they are of a past that training went back on.

    metadata: plain JSON values.
    damaged: checkpoints that do not count as kept and are deleted.

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
    # Before the new file is written: after a crash on a full disk they may be what fills it.
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
    # Copies, since safetensors refuses tensors that share memory.
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
    """The checkpoint in a file; DamagedCheckpoint if a single bit of it is not as it was saved."""
    data = path.read_bytes()
    if not data:
        raise _damaged(path, "the file is empty")
    try:
        tensors = from_bytes(data)
        length = int.from_bytes(data[:8], "little")
        entries = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except (SafetensorError, ValueError, KeyError, AssertionError, RuntimeError) as error:
        raise _damaged(path, f"not a whole safetensors file ({error})") from None
    checksum, _, text = entries.get(ENTRY, "").partition(" ")
    if not checksum:
        raise _damaged(path, "it has no checksum")
    if checksum != _checksum(text, tensors):
        raise _damaged(path, "its content does not agree with its checksum")
    content = json.loads(text)
    found = Checkpoint(path, content["step"], tensors, content["metadata"])
    if NAME.fullmatch(path.name) and step_of(path) != found.step:
        raise _damaged(path, f"it is of step {found.step}, not of the step in its name")
    return found


def _damaged(path: Path, problem: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"{path}: damaged checkpoint: {problem}.")


def latest(
    folder: Path, problem: Callable[[Checkpoint], str] = lambda found: ""
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is not damaged, and a message for each one passed over.

    A file that cannot be read is not passed over: that may be a matter of the moment.

    problem: says why a checkpoint that is whole cannot be used all the same; nothing if it can.
    """
    messages = []
    for path in paths(folder):
        try:
            found = load(path)
        except DamagedCheckpoint as error:
            messages.append(f"passed over {error}")
            continue
        if not (reason := problem(found)):
            return found, messages
        messages.append(f"passed over {path}: {reason}.")
    return None, messages


def paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder by their names, the newest first, damaged or not."""
    if not folder.is_dir():
        return []
    return sorted((one for one in folder.iterdir() if NAME.fullmatch(one.name)), key=step_of)[::-1]


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step goes."""
    return folder / f"step-{step:09d}.safetensors"


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint.

    >>> step_of(Path("step-000012345.safetensors"))
    12345
    """
    match = NAME.fullmatch(path.name)
    if match is None:
        raise bad_value(str(path), repr(path.name), "a name like 'step-000012345.safetensors'")
    return int(match[1])
