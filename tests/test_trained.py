"""The models of a run folder."""

from pathlib import Path

import pytest
import torch
from helpers import tiny_run

from hyla import member
from hyla.train import load_run, train
from hyla.train.population import FIRST_EVALUATION_INSTANCE, Population


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
    with pytest.raises(ValueError, match="expected a run with a whole checkpoint, got none"):
        load_run(tmp_path)
    with pytest.raises((ValueError, OSError)):
        load_run(tmp_path / "nowhere")
