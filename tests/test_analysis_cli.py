"""The command `hyla analyse`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_run

import hyla
from hyla.analysis import (
    arithmetic_answers,
    collect_run,
    decode,
    kept_answers,
    load_codes,
    mean_codes,
)
from hyla.cli.analyse import analyse
from hyla.tasks.sraven import Sraven
from hyla.train import load_run, train
from hyla.train.population import FIRST_EVALUATION_INSTANCE


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
        assert set(record["arithmetic"]) == {"addition", "subtraction"}
        config, population = load_run(run)
        numbers = range(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + 101)
        batch = Sraven(config.task, config.members[1].seed).batch("held_out", numbers)
        expected = arithmetic_answers(hyla.member(population, 1), batch)
        for rule, part in expected.items():
            assert record["arithmetic"][rule] == asdict(part) | {"told_apart": part.told_apart}
        stay = kept_answers(hyla.member(population, 1), batch)
        assert record["kept_answers"] == stay
    else:
        assert record["similarity"] is None
        assert record["arithmetic"] == record["kept_answers"] == {}
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
    told = [line for line in table.splitlines() if line.startswith("Answers under ")]
    assert len(told) == 2 * (run.name == "sraven")
    if told:
        part = expected["subtraction"]
        words = f"{100 * part.right:.1f} % the difference, {100 * part.other:.1f} % the sum"
        assert f"Answers under subtraction, held out: {words} (of {part.count}" in told[1]
        right = sum(x.right * x.count for x in expected.values())
        either = right + sum(x.other * x.count for x in expected.values())
        words = "of the answers that are the sum or the difference"
        shown = f"{100 * right / either:.1f} ± {50 / either**0.5:.1f} %"
        assert f"\nTold apart: {words} {shown} are right, 50 by chance\n" in table
        words = ", ".join(f"the {row} {100 * part:.1f} %" for row, part in stay.items())
        assert f"\nAnswers that stay if a row is replaced by another instance's: {words} (" in table
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
        ({"keys": "all"}, "keys: unknown name 'all'"),
    ):
        with pytest.raises(ValueError, match=message):
            analyse(run, **arguments)
    with pytest.raises(ValueError, match="expected the folder of a run"):
        analyse(tmp_path)
