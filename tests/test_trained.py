"""The models of a run folder."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import tiny_run

from hyla import member
from hyla.train import load_run, train
from hyla.train.population import FIRST_EVALUATION_INSTANCE, Population
from hyla.train.trained import keep_members


def test_the_loaded_models_are_those_that_were_measured(tmp_path: Path) -> None:
    config = tiny_run("sraven")
    summary = train(config, tmp_path, device="cpu", compiled=False)
    loaded, population = load_run(tmp_path)
    assert loaded == config
    task = Population(config, range(3), torch.device("cpu"), compiled=False).objective.task
    index = range(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + 23)
    batch = task.batch("held_out", index)
    for m in range(3):
        with torch.no_grad():
            logits = member(population, m)(batch.inputs[m])[:, -config.task.features :]
        right = (logits.argmax(dim=-1) == batch.targets[m]).all(dim=-1)
        measured = summary["members"][m]["evaluation"]["held_out"]["accuracy"]
        assert right.double().mean().item() == pytest.approx(measured)
    codes = population.latent_codes(batch.inputs, queries=[-1], keys=[-1])
    assert codes[1].shape == (3, 23, 1, 1, config.model.heads)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    train(tiny_run("sraven"), tmp_path, device="cpu", compiled=False, stop_at=1)
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"expected a run with a checkpoint, got .* steps: none"):
        load_run(tmp_path)
    with pytest.raises(ValueError, match="nowhere: expected the folder of a run"):
        load_run(tmp_path / "nowhere")


def test_an_older_checkpoint_is_loaded_on_request_only(tmp_path: Path) -> None:
    for stop in (3, 7):
        train(tiny_run("sraven"), tmp_path, device="cpu", compiled=False, stop_at=stop)
    older, newer = (load_run(tmp_path, step)[1] for step in (3, 7))
    assert load_run(tmp_path)[1].norm.weight.equal(newer.norm.weight)
    assert not older.norm.weight.equal(newer.norm.weight)
    with pytest.raises(ValueError, match=r"expected one with that of step 5, got .* steps: 7, 3"):
        load_run(tmp_path, 5)
    newest = tmp_path / "checkpoints" / "step-000000007.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match="step-000000007"):
        load_run(tmp_path)


def test_members_that_are_kept_are_the_same_and_finished(tmp_path: Path) -> None:
    config = tiny_run("sraven")
    whole = train(config, tmp_path / "run", device="cpu", compiled=False)
    for members in ([1], [2, 0]):  # the second replaces the first
        keep_members(tmp_path / "run", members, tmp_path / "kept", {"members": 3})
    kept_config, kept = load_run(tmp_path / "kept")
    assert kept_config == replace(config, members=(config.members[2], config.members[0]))
    _, population = load_run(tmp_path / "run")
    for name, parameter in kept.named_parameters():
        assert parameter.equal(dict(population.named_parameters())[name][[2, 0]])
    summary = train(kept_config, tmp_path / "kept", device="cpu", compiled=False)
    assert summary["state"] == "finished"
    assert summary["members"][0]["evaluation"] == whole["members"][2]["evaluation"]
    assert summary["origin"] == {"members": 3}
    assert {path.name for path in tmp_path.iterdir()} == {"run", "kept"}
