"""Where a run is computed: devices, splits, compiled or not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, tiny_run

from hyla.train import RunConfig, placement, train
from hyla.train.placement import Placement, choose_placement, find_devices, make_populations
from hyla.train.population import Population

CPU = torch.device("cpu")
GPUS = tuple(torch.device("cuda", i) for i in range(3))


@pytest.mark.parametrize("members", [1, 2, 7, 32])
@pytest.mark.parametrize("at_once", [1, 2, 5, 32])
@pytest.mark.parametrize("devices", [GPUS[:1], GPUS])
def test_parts_cover_all_members_within_the_limit(
    members: int, at_once: int, devices: tuple[torch.device, ...]
) -> None:
    parts = Placement(devices, compiled=True, members_at_once=at_once).parts(members)
    assert [m for part, _ in parts for m in part] == list(range(members))
    sizes = [len(part) for part, _ in parts]
    assert max(sizes) <= at_once
    assert max(sizes) - min(sizes) <= 1
    used = [sum(device == gpu for _, device in parts) for gpu in devices]
    assert max(used) - min(used) <= 1
    if members >= len(devices):
        assert min(used) >= 1


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert find_devices("auto", "tf32") == GPUS
    assert find_devices("cuda", "bf16") == GPUS
    assert find_devices("cuda:2", "fp32") == GPUS[2:]
    assert find_devices("cpu", "fp32") == (CPU,)
    with pytest.raises(ValueError, match=r"device: expected .*auto, cpu, cuda"):
        find_devices("cuda:3", "fp32")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert find_devices("auto", "fp32") == (CPU,)
    for name in ("cuda", "mps", "gpu"):
        with pytest.raises(ValueError, match=f"device: expected .* auto, cpu, got '{name}'"):
            find_devices(name, "fp32")
    with pytest.raises(ValueError, match="precision: expected "):
        find_devices("auto", "tf32")


class Small(Population):
    """Of which no more than two members fit the memory."""

    def warm_up_kernels(self, splits: Any = ()) -> None:
        if len(self.active) > 2:
            raise torch.OutOfMemoryError
        super().warm_up_kernels(splits)


def test_the_folder_records_how_a_population_was_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "Population", Small)
    config = tiny_run("sraven")
    for stop, attempts in ((3, 1), (None, 0)):  # a resumed run does not repeat the failed attempt
        watcher = Recorder()
        train(config, tmp_path, device="cpu", compiled=False, stop_at=stop, watchers=[watcher])
        assert sum("split into [2, 1]" in text for text in watcher.said) == attempts
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["environment"]["members_at_once"] == 2
    assert RunConfig.from_dict(saved["config"]) == config


def test_a_population_too_large_for_the_memory_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "Population", Small)
    config = tiny_run("sraven")
    config = tiny_run("sraven", members=config.members * 2)
    said: list[str] = []
    placed, populations = make_populations(config, Placement((CPU,), False, 6), said.append)
    assert [len(population.active) for population in populations] == [2, 2, 2]
    assert placed.members_at_once == 2
    assert said[-1].endswith("6 members split into [2, 2, 2]")


def test_on_several_devices_the_largest_part_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[list[int]] = []

    def attempt(config: Any, placed: Placement) -> list[Population]:
        sizes.append([len(part) for part, _ in placed.parts(len(config.members))])
        if max(sizes[-1]) > 1:
            raise torch.OutOfMemoryError
        return []

    monkeypatch.setattr(placement, "_prepared", attempt)
    config = tiny_run("sraven", members=tiny_run("sraven").members * 4)
    make_populations(config, Placement(GPUS, True, 12), lambda text: None)
    assert sizes == [[4, 4, 4], [2] * 6, [1] * 12]


def test_a_member_too_large_for_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never(Population):
        def warm_up_kernels(self, splits: Any = ()) -> None:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(placement, "Population", Never)
    with pytest.raises(ValueError, match="batch: expected a size that fits the memory of cpu"):
        make_populations(tiny_run("sraven"), Placement((CPU,), False, 3), lambda text: None)


def test_what_the_folder_recorded_is_kept(tmp_path: Path) -> None:
    config = tiny_run("sraven")
    recorded = {"devices": ["cpu"], "compiled": True, "members_at_once": 2}
    placed = choose_placement(config, "cpu", None, None, recorded)
    assert (placed.compiled, placed.members_at_once) == (True, 2)
    placed = choose_placement(config, "cpu", False, 1, recorded)
    assert (placed.compiled, placed.members_at_once) == (False, 1)
    for odd in ({}, {"compiled": "yes"}, {"members_at_once": 0}, {"members_at_once": "3"}):
        placed = choose_placement(config, "cpu", None, None, {"devices": ["cpu"]} | odd)
        assert (placed.compiled, placed.members_at_once) == (False, 3)
    with pytest.raises(ValueError, match="members_at_once: expected a whole number of at least 1"):
        train(config, tmp_path / "run", members_at_once=0)
    assert not (tmp_path / "run").exists()


def test_only_a_long_run_is_compiled_on_a_cpu() -> None:
    short = choose_placement(tiny_run("fuzzy_logic"), "cpu", None, None, {})
    long = choose_placement(tiny_run("fuzzy_logic", steps=10**9), "cpu", None, None, {})
    assert (short.compiled, long.compiled) == (False, True)


@pytest.mark.slow
def test_populations_of_several_sizes_are_each_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import config as dynamo

    torch.compiler.reset()
    monkeypatch.setattr(dynamo, "recompile_limit", 1)
    config = tiny_run("fuzzy_logic", precision="fp64")
    _, parts = make_populations(config, Placement((CPU,), True, 2), lambda text: None)
    _, [whole] = make_populations(config, Placement((CPU,), False, 3), lambda text: None)
    for population in (*parts, whole):
        population.advance()
    assert [len(part.active) for part in parts] == [2, 1]
    torch.testing.assert_close(torch.cat([part.loss_sum for part in parts]), whole.loss_sum)
