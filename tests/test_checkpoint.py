"""Checkpoints load exactly what was saved, or are detected as damaged."""

import errno
import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from hyla.train.checkpoint import (
    DamagedCheckpoint,
    latest,
    load,
    path_of,
    paths,
    save,
    step_of,
)

METADATA = {"metrics_bytes": 17, "Größe": [1.5e-7, None, True], "nested": {"a": "b c"}}


def tensors() -> dict[str, Tensor]:
    """All kinds: of no elements, of no dimensions, not contiguous, sharing memory, not finite."""
    shared = torch.randn(7)
    return {
        "float32": torch.randn(5, 3).t(),
        "float64": torch.randn(3, dtype=torch.float64),
        "half": torch.randn(2).half(),
        "bf16": torch.randn(3).bfloat16(),
        "int64": torch.tensor(2**62 + 1),
        "uint8": torch.arange(5, dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 3),
        "expanded": torch.randn(1, 3).expand(2, 3),
        "not finite": torch.tensor([float("nan"), float("inf"), -0.0]),
        "shared": shared,
        "shared too": shared[2:5],
        "learned": torch.nn.Parameter(torch.randn(2)),
    }


def same_bits(one: Tensor, other: Tensor) -> bool:
    alike = (one.dtype, one.shape) == (other.dtype, other.shape)
    return alike and bool(one.numpy().tobytes() == other.numpy().tobytes())


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    given = tensors()
    path = save(tmp_path, 12, given, METADATA)
    found = load(path)
    assert path == tmp_path / "step-000000012.safetensors" == found.path
    assert (found.step, found.metadata) == (12, METADATA)
    assert found.tensors.keys() == given.keys()
    for name, tensor in given.items():
        if tensor.dtype == torch.bfloat16:  # NumPy has no such type
            assert found.tensors[name].dtype == torch.bfloat16
            tensor, found.tensors[name] = tensor.float(), found.tensors[name].float()
        assert same_bits(found.tensors[name], tensor.detach().contiguous()), name
    found.tensors["float64"] += 1  # they are nobody else's


def test_the_same_content_makes_the_same_bytes(tmp_path: Path) -> None:
    given, digests = tensors(), set()
    for attempt in range(5):
        (tmp_path / str(attempt)).mkdir()
        path = save(tmp_path / str(attempt), 3, given, METADATA)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.gpu
def test_tensors_of_a_gpu_are_loaded_on_the_cpu(tmp_path: Path) -> None:
    given = torch.randn(5, 3, device="cuda").t()
    found = load(save(tmp_path, 1, {"a": given}, {})).tensors["a"]
    assert found.device.type == "cpu"
    assert found.equal(given.cpu())


def test_nothing_can_be_saved_too(tmp_path: Path) -> None:
    found = load(save(tmp_path, 0, {}, {}))
    assert (found.step, found.tensors, found.metadata) == (0, {}, {})


def test_any_truncation_and_any_extension_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, 12, tensors(), METADATA)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DamagedCheckpoint, match="safetensors: damaged checkpoint: "):
            load(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(DamagedCheckpoint):
        load(path)


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, 12, tensors(), METADATA)
    data, chance = path.read_bytes(), random.Random(0)
    header = 8 + int.from_bytes(data[:8], "little")
    places = [(byte, bit) for byte in range(8) for bit in range(8)]  # the length of the header
    places += [(byte, bit) for byte in range(8, header) for bit in chance.sample(range(8), 3)]
    places += [(byte, chance.randrange(8)) for byte in range(header, len(data))]
    for byte, bit in places:
        changed = bytearray(data)
        changed[byte] ^= 1 << bit
        path.write_bytes(changed)
        with pytest.raises(DamagedCheckpoint):
            load(path)


def test_a_region_of_zeros_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, 12, tensors(), METADATA)
    data, chance = path.read_bytes(), random.Random(1)
    for _ in range(100):
        start = chance.randrange(len(data) - 64)
        path.write_bytes(data[:start] + bytes(64) + data[start + 64 :])
        with pytest.raises(DamagedCheckpoint):
            load(path)


def header_only(entry: object) -> bytes:
    text = json.dumps({"__metadata__": entry}).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"", "the file is empty"),
        (b"PK\x03\x04 this is something else", "safetensors file"),
        (b"\xff" * 100, "safetensors file"),
        (header_only({}), "it has no checksum"),
        (header_only({"hyla_checkpoint": ""}), "it has no checksum"),
        (header_only({"hyla_checkpoint": "0123"}), "its checksum"),
    ],
)
def test_the_message_says_what_is_wrong(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "step-000000012.safetensors"
    path.write_bytes(content)
    with pytest.raises(DamagedCheckpoint, match=problem):
        load(path)


def test_a_file_of_other_tensors_or_another_step_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "step-000000012.safetensors"
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(DamagedCheckpoint, match="it has no checksum"):
        load(path)
    save(tmp_path, 11, {}, {}).replace(path)
    with pytest.raises(DamagedCheckpoint, match="step 11"):
        load(path)
    assert load(path.rename(tmp_path / "best.safetensors")).step == 11


def steps(folder: Path) -> list[int]:
    return [step_of(path) for path in paths(folder)]


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_the_newest_undamaged_one_is_found(tmp_path: Path) -> None:
    assert latest(tmp_path / "missing") == latest(tmp_path) == (None, [])
    for step in (9, 10, 100, 1_000_000_000, 10_000_000_000):
        save(tmp_path, step, {"a": torch.tensor(step)}, {}, keep=9)
    (tmp_path / "step-7.safetensors").touch()  # not one of ours
    for passed_over, step in enumerate([10_000_000_000, 1_000_000_000, 100, 10, 9]):
        found, messages = latest(tmp_path)
        assert found is not None
        assert found.step == step == int(found.tensors["a"])
        assert len(messages) == passed_over
        damage(path_of(tmp_path, step))
    found, messages = latest(tmp_path)
    assert found is None
    assert len(steps(tmp_path)) == len(messages) == 5


def test_the_newest_few_are_kept_and_later_ones_are_stale(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step, {}, {}, keep=2)
    assert steps(tmp_path) == [30, 20]
    damage(path_of(tmp_path, 30))
    save(tmp_path, 25, {}, {}, keep=2)
    assert steps(tmp_path) == [25, 20]
    damage(path_of(tmp_path, 25))
    save(tmp_path, 30, {}, {}, keep=2, damaged=[path_of(tmp_path, 25)])
    assert steps(tmp_path) == [30, 20]
    damage(path_of(tmp_path, 30))
    save(tmp_path, 30, {}, {"again": 1}, keep=1, damaged=[path_of(tmp_path, 30)])
    assert steps(tmp_path) == [30]
    assert load(path_of(tmp_path, 30)).metadata == {"again": 1}


def test_what_a_killed_process_left_is_removed_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / ".step-000000005.safetensors.0123abcd.partial").touch()
    (tmp_path / "notes.txt").touch()
    path = save(tmp_path, 5, {}, {})
    assert set(tmp_path.iterdir()) == {path, tmp_path / "notes.txt"}


@pytest.mark.parametrize("owner, name", [(os, "fsync"), (Path, "replace")])
@pytest.mark.parametrize("step", [10, 20])
def test_a_full_disk_leaves_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, step: int
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    old = [save(tmp_path, number, {"a": torch.tensor(number)}, {}) for number in (5, 10)]
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, fail)
        with pytest.raises(OSError, match="No space"):
            save(tmp_path, step, {"a": torch.ones(999)}, {}, keep=1)
    assert set(tmp_path.iterdir()) == set(old)
    assert [int(load(path).tensors["a"]) for path in old] == [5, 10]
    save(tmp_path, step, {}, {})
    assert latest(tmp_path)[0] == load(path_of(tmp_path, step))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"step": -1}, "step: expected a whole number of at least 0, got -1"),
        ({"keep": 0}, "keep: expected a whole number of at least 1, got 0"),
        (
            {"tensors": {"a": torch.ones(1, dtype=torch.complex128)}},
            r"tensors\['a'\].dtype: .*bool",
        ),
        ({"metadata": {"a": float("nan")}}, "metadata: expected plain JSON values"),
        ({"metadata": {"a": torch.ones(1)}}, "metadata: expected plain JSON values, got .*Tensor"),
        ({"folder": Path("/missing")}, "expected an existing folder"),
    ],
)
def test_what_cannot_be_saved_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    old = save(tmp_path, 1, {}, {})
    arguments = {"folder": tmp_path, "step": 2, "tensors": {}, "metadata": {}} | changes
    with pytest.raises(ValueError, match=message):
        save(**arguments)
    assert list(tmp_path.iterdir()) == [old]
