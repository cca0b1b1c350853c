"""The command `hyla analyse`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_run

import hyla
from hyla.analysis import collect_run, decode, load_codes, mean_codes
from hyla.cli.analyse import analyse
from hyla.tasks.base import FIRST_EVALUATION_INSTANCE
from hyla.tasks.sraven import Sraven
from hyla.tasks.sraven.answers import agreement_after_row_swap, arithmetic_answers
from hyla.tasks.sraven.commands import sraven_answers
from hyla.train import load_run, train


@pytest.fixture(scope="module", params=["sraven", "fuzzy_logic"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("analyse") / request.param
    train(tiny_run(request.param), folder, device="cpu", compiled=False, stop_at=3)
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: Any, **options: Any) -> str:
    analyse(*arguments, **options)
    output = capsys.readouterr()
    assert not output.err
    return output.out


def test_it_prints_what_the_library_measures(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = {"output": tmp_path / "codes.npz", "figure": tmp_path / "codes.png"}
    text = printed(capsys, run, member=1, instances=101, json=True, **files)
    assert text.count("\n") == 1
    record = json.loads(text)
    held_out = collect_run(run, 1, "held_out", 101)
    label = {"sraven": "rule", "fuzzy_logic": "terms"}[run.name]
    found = decode(collect_run(run, 1, "train", 101), held_out, label)
    assert record["label"] == label
    assert record["measured"]["macro_f1"] == found.measured.macro_f1.tolist()
    assert record["shuffled"]["macro_f1"] == found.control.macro_f1.tolist()
    assert record["majority_accuracy"] == found.majority_accuracy
    assert sorted(record["measured"]["f1"]) == sorted(found.names)
    if run.name == "sraven":
        means = mean_codes(held_out, "rule", -1)
        names, cosine = list(means.names), means.cosine.tolist()
        assert record["similarity"] == {"layer": 1, "names": names, "cosine": cosine}
    else:
        assert record["similarity"] is None
    assert (load_codes(files["output"]).codes == held_out.codes).all()
    assert files["figure"].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="an existing file"):
        analyse(run, instances=101, output=files["output"])
    table = printed(capsys, run, member=1, instances=101, output=files["output"], overwrite=True)
    assert f"{found.measured.macro_f1[1]:.3f}" in table
    assert f"{found.control.macro_f1[1]:.3f}" in table
    assert f"{label} decoded, held out" in table
    assert "Explained is - where codes do not vary" in table
    assert "nan" not in table
    model = load_run(run)[0].model
    sizes = f"{model.kind}, {model.layers} layers, {model.heads} heads, seed 5"
    assert table.startswith(f"{run}, member 1: {sizes}\n")
    assert ("Cosine similarity" in table) == (run.name == "sraven")
    assert f"Wrote {files['output']}" in table


def test_wrong_arguments_are_named(run: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ({"member": 3}, "member: expected a whole number from 0 to 2, got 3"),
        ({"layer": 2}, "layer: expected a whole number from -2 to 1, got 2"),
        ({"instances": 0}, "instances: expected"),
        ({"instances": 5}, "expected at least 10, got 5 instances"),
        ({"figure": Path("a.pdf")}, "unknown name 'pdf'"),
        ({"output": Path("a.csv")}, r"expected the name of a \.npz file, got a\.csv"),
        ({"device": "nowhere"}, "device: expected a device of this machine"),
        ({"probe": ("kesy=self",)}, "probe of .*: unknown name 'kesy'"),
        ({"probe": ("keys",)}, "probe: expected NAME=VALUE"),
    ):
        with pytest.raises(ValueError, match=message):
            analyse(run, **arguments)
    with pytest.raises(ValueError, match="expected the folder of a run"):
        analyse(tmp_path)


def test_answers_are_those_that_the_library_measures(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if run.name != "sraven":
        with pytest.raises(ValueError, match="a model of sraven"):
            sraven_answers(run)
        return
    sraven_answers(run, member=1, instances=101, json=True)
    record = json.loads(capsys.readouterr().out)
    config, population = load_run(run)
    numbers = range(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + 101)
    batch = Sraven(config.task, config.members[1].seed).batch("held_out", numbers)
    one = hyla.member(population, 1)
    for rule, part in arithmetic_answers(one, batch).items():
        assert record["arithmetic"][rule] == asdict(part) | {"told_apart": part.told_apart}
    assert record["agreement_after_row_swap"] == agreement_after_row_swap(one, batch)
    sraven_answers(run, member=1, instances=101)
    shown = capsys.readouterr().out
    part = arithmetic_answers(one, batch)["subtraction"]
    assert f"{100 * part.right:.1f} %" in shown
    assert str(part.count) in shown
