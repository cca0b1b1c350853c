"""Loading trained models: run folders and the models inside the package."""

from pathlib import Path

import pytest
import torch
from helpers import tiny_run

import hyla
from hyla import member
from hyla.analysis import collect, collect_run
from hyla.files import read_object
from hyla.pretrained import CODE_ERRORS, NAMES, folder
from hyla.tasks.base import FIRST_EVALUATION_INSTANCE, Tally, predict
from hyla.train import load_run, train
from hyla.train.checkpoint import load, paths, save
from hyla.train.population import Population
from hyla.train.store import Store, read_run

ROOT = Path(__file__).parent.parent


def test_the_loaded_models_are_those_that_were_measured(tmp_path: Path) -> None:
    config = tiny_run("sraven")
    summary = train(config, tmp_path, device="cpu", compiled=False)
    loaded, population = load_run(tmp_path)
    assert loaded == config
    task = Population(config, range(3), torch.device("cpu"), compiled=False).task
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
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"expected the folder of a run, got one without config"):
        load_run(tmp_path)


def test_an_older_checkpoint_is_loaded_on_request_only(tmp_path: Path) -> None:
    for stop in (3, 7):
        train(tiny_run("sraven"), tmp_path, device="cpu", compiled=False, stop_at=stop)
    older, newer = (load_run(tmp_path, step)[1] for step in (3, 7))
    assert load_run(tmp_path)[1].norm.weight.equal(newer.norm.weight)
    assert not older.norm.weight.equal(newer.norm.weight)
    assert hyla.load(tmp_path, 1, step=3).norm.weight.equal(older.norm.weight[1])
    with pytest.raises(ValueError, match=r"expected one with that of step 5, got .* steps: 7, 3"):
        load_run(tmp_path, 5)
    newest = tmp_path / "checkpoints" / "step-000000007.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match="step-000000007"):
        load_run(tmp_path)


def test_load_gives_one_member_as_an_ordinary_model(tmp_path: Path) -> None:
    config = tiny_run("fuzzy_logic")
    train(config, tmp_path, device="cpu", compiled=False, stop_at=1)
    _, population = load_run(tmp_path)
    for m in range(3):
        model = hyla.load(str(tmp_path), m)
        assert model.config == config.model
        assert not model.training
        for name, parameter in model.named_parameters():
            assert parameter.equal(population.get_parameter(name)[m])
    for m in (3, -1):
        message = f"member: expected a whole number from 0 to 2, got {m}"
        with pytest.raises(ValueError, match=message):
            hyla.load(tmp_path, m)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_precision_is_loaded_as_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    train(tiny_run("sraven"), tmp_path, device="cpu", compiled=False, stop_at=1)
    (path,) = paths(tmp_path / "checkpoints")
    found = load(path)
    tensors = {name: x.to(dtype) for name, x in found.tensors.items() if x.is_floating_point()}
    save(tmp_path / "checkpoints", found.step, tensors, found.metadata)
    _, population = load_run(tmp_path)
    for name, parameter in population.named_parameters():
        assert parameter.dtype == (torch.float32 if dtype.itemsize == 2 else dtype)
        assert parameter.equal(tensors[f"parameters.{name}"].to(parameter.dtype))


def test_an_existing_path_takes_precedence_over_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny_run("sraven")
    assert load_run("sraven-hyla")[0] != config
    train(config, Path("sraven-hyla"), device="cpu", compiled=False, stop_at=1)
    for name_or_path in ("sraven-hyla", Path("sraven-hyla")):
        assert load_run(name_or_path)[0] == config
    assert load_run("sraven-linear")[0] == load_run(Path("sraven-linear"))[0]


def test_neither_a_path_nor_a_name_is_refused_with_all_names(tmp_path: Path) -> None:
    for given in ("sraven-hila", tmp_path / "nowhere", tmp_path / "sraven-hyla"):
        with pytest.raises(ValueError, match="expected the folder of a run or the name") as caught:
            load_run(given)
        message = str(caught.value)
        assert message.startswith(f"{given}: ")
        assert all(name in message for name in NAMES)


def test_the_packaged_models_are_small_and_published() -> None:
    place = folder(NAMES[0]).parent
    assert {path.name for path in place.iterdir() if (path / "config.json").exists()} == {*NAMES}
    assert sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) < 8 << 20
    published = {one.key: one for one in Store.open(None, ROOT / "results").published}
    for name in NAMES:
        (packaged,) = read_run(folder(name))
        original = published[packaged.key]
        assert packaged.run == original.run
        assert packaged.origin.date == original.origin.date
        config, population = load_run(name)
        task, kind = name.split("-")
        assert config.task_name.startswith(task)
        assert (config.model.kind, config.members[0].seed) == (kind, 0)
        assert {parameter.dtype for parameter in population.parameters()} == {torch.float32}
        measure = config.task.main_measure
        # Those of fuzzy logic were published from the GPU and measured again on a CPU.
        expected = pytest.approx(original.measure("held_out", measure), abs=1e-4)
        assert packaged.measure("held_out", measure) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_packaged_model_reaches_its_published_measure(name: str) -> None:
    instances, batch = 2048, 256
    config, population = load_run(name)
    task = config.task.bind([config.members[0].seed])
    tally = Tally(task)
    index = torch.arange(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + instances)
    with torch.no_grad():
        numbers_BS = torch.cat(
            [
                tally(task.outputs(predict(population), one), one)[0]
                for one in (task.batch("held_out", part) for part in index.split(batch))
            ]
        )
    measure = config.task.main_measure
    found = tally.measures(numbers_BS.sum(dim=0).tolist())[measure]
    values_B = numbers_BS[:, 2]  # accuracy or R2 of each instance
    assert values_B.mean().item() == pytest.approx(found)
    standard_error = values_B.std().item() / instances**0.5
    assert standard_error < 0.035
    (packaged,) = read_run(folder(name))
    expected = packaged.measure("held_out", measure)
    assert found == pytest.approx(expected, abs=4 * standard_error)


@pytest.mark.parametrize("name", NAMES)
def test_the_codes_of_a_packaged_model_are_within_the_stated_bound(name: str) -> None:
    # The reference codes belong to the instances that rounding to float16 changes most.
    references = read_object(folder(name) / "summary.json")["float32_codes"]
    index = torch.tensor([one["instance"] for one in references])
    exact_LH = torch.tensor([one["codes"] for one in references])
    layers = torch.arange(len(references))
    assert [one["layer"] for one in references] == layers.tolist()

    def error(codes_LBH: torch.Tensor) -> float:
        return (codes_LBH[layers, layers] - exact_LH).abs().max().item()

    found = torch.from_numpy(collect_run(name, 0, "held_out", index).codes)
    assert CODE_ERRORS[name] / 2 < error(found) <= CODE_ERRORS[name]
    coarse, task = hyla.load(name).bfloat16().float(), load_run(name)[0].task
    codes = torch.from_numpy(collect(coarse, task, "held_out", index, seed=0).codes)
    assert error(codes) > CODE_ERRORS[name]
