"""The command `hyla`: what it prints and writes, and its one-line errors."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch
from commands import Hyla

from hyla import cli
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig, describe, evaluate
from hyla.tasks.fuzzy_logic.baselines import BASELINES, explained
from hyla.tasks.sraven import Sraven, SravenConfig
from hyla.tasks.sraven.stats import statistics

COMMANDS = [
    "sraven show",
    "sraven solve",
    "sraven stats",
    "sraven export",
    "fuzzy show",
    "fuzzy stats",
]


@pytest.mark.parametrize("command", ["", "sraven", "fuzzy", *COMMANDS])
def test_help(hyla: Hyla, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert f"usage: {' '.join(['hyla', command]).strip()}" in text
    assert "--json" in text or command not in COMMANDS


def test_show_is_the_instance_of_its_address(hyla: Hyla) -> None:
    settings = "--features 3 --values 5 --held-out 0.3 --no-permute --seed 7"
    record = hyla.json(f"sraven show --index 12 --split held-out {settings}")
    task = Sraven(SravenConfig(3, 5, 0.3, False), seed=7)
    batch = task.batch("held_out", range(12, 13))
    assert (record["seed"], record["split"], record["index"]) == (7, "held_out", 12)
    assert record["panels"] == batch.panels[0].tolist()
    assert record["orders"] == batch.orders[0].tolist() == [[0, 1, 2]] * 3
    assert hyla.json(f"sraven show --index 12 --split held_out {settings}") == record


@pytest.mark.parametrize("index", range(5))
def test_show_prints_matrix_rules_and_answers(hyla: Hyla, index: int) -> None:
    settings = f"--index {index} --values 4"
    record, text = hyla.json(f"sraven show {settings}"), hyla(f"sraven show {settings}")
    panels = [" ".join(map(str, panel)) for row in record["panels"] for panel in row]
    for panel in panels:
        assert panel in text
    for rule in record["rules"]:
        assert rule in text
    for order in record["orders"]:
        assert " ".join(map(str, order)) in text
    for answer, probability in zip(record["answers"], record["probabilities"], strict=True):
        assert f"{' '.join(map(str, answer))} │ {probability:.6f}" in text
    assert "?" in text
    assert f"from {record['hypotheses']} hypothes" in text


def test_unambiguous_instances_have_one_answer(hyla: Hyla) -> None:
    shown = [hyla.json(f"sraven show --values 4 --index {i} --unambiguous") for i in range(5)]
    assert all(record["answers"] == [record["answer"]] for record in shown)
    assert any(hyla.json(f"sraven show --values 4 --index {i}")["ambiguous"] for i in range(5))


@pytest.mark.parametrize("permute", ["", " --no-permute"])
def test_what_show_prints_solve_answers(hyla: Hyla, permute: str) -> None:
    for index in range(5):
        record = hyla.json(f"sraven show --values 4 --index {index}{permute}")
        result = hyla.json("sraven solve", hyla.file(record))
        assert record["answer"] in result["answers"]
        assert result["answers"] == record["answers"]
        assert result["probabilities"] == record["probabilities"]
        assert result["given"] == record["answer"]
        text = hyla("sraven solve", hyla.file(record))
        for answer in result["answers"]:
            assert " ".join(map(str, answer)) in text


def test_solve_needs_neither_the_answer_nor_the_values(hyla: Hyla) -> None:
    panels = [[[1], [2], [3]], [[6], [7], [0]], [[3], [4]]]
    result = hyla.json("sraven solve", hyla.file({"panels": panels}), "--values", "8")
    assert result["answers"] == [[5]]
    assert "given" not in result
    assert (
        hyla.json("sraven solve", hyla.file({"panels": panels}), "--values", "9")["answers"] == []
    )
    assert "No rules fit" in hyla("sraven solve", hyla.file({"panels": panels, "values": 9}))


def test_solve_names_what_is_wrong(hyla: Hyla) -> None:
    panels = [[[1], [2], [9]], [[6], [7], [0]], [[3], [4]]]
    file = hyla.file({"panels": panels, "values": 8})
    expected = "row 0, column 2, feature 0: expected a symbol from 0 to 7, got 9."
    assert hyla.error("sraven solve", file) == f"error: {expected}\n"
    assert "missing.json" in hyla.error("sraven solve", str(hyla.folder / "missing.json"))
    assert "expected one JSON object" in hyla.error("sraven solve", hyla.file("no json"))


@pytest.mark.parametrize("split", ["all", "train", "held-out"])
def test_stats_are_those_of_the_library(hyla: Hyla, split: str) -> None:
    given = hyla.json(f"sraven stats --features 3 --values 5 --instances 300 --split {split}")
    measured = statistics(SravenConfig(3, 5), split.replace("-", "_"), 300)
    assert (given["features"], given["values"], given["instances"]) == (3, 5, 300)
    for name in ("ambiguous", "ambiguous_every_feature_loose", "ceiling", "top_posterior"):
        assert given[name] == vars(getattr(measured, name))
        assert set(given[name]) == {"value", "standard_error"}
    text = hyla(f"sraven stats --features 3 --values 5 --instances 300 --split {split}")
    assert f"{measured.ceiling.value:.5f}" in text
    for rule, estimate in measured.feature_accuracy_by_rule.items():
        assert given["feature_accuracy_by_rule"][rule] == vars(estimate)
        assert f"under {rule}" in text


def test_export_says_what_it_wrote(hyla: Hyla) -> None:
    path = hyla.folder / "a.data"
    result = hyla.json("sraven export --instances 5 --start 3 --format jsonl", str(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["index"] for row in rows] == [3, 4, 5, 6, 7]
    assert result["instances"] == 5
    assert result["bytes"] == path.stat().st_size
    assert rows[1] == hyla.json("sraven show --index 4")
    assert hyla.json("sraven solve", hyla.file(rows[0]))["given_is_consistent"]
    assert "existing file" in hyla.error("sraven export", str(path), "--format", "jsonl")
    assert len(path.read_text().splitlines()) == 5
    hyla("sraven export --instances 2 --format jsonl --overwrite", str(path))
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("features, values", [(4, 8), (1, 3), (5, 16), (2, 50)])
def test_drawings_are_pictures(hyla: Hyla, features: int, values: int) -> None:
    png, svg = hyla.folder / "a.PNG", hyla.folder / "a.svg"
    for path in (png, svg):
        hyla(f"sraven show --features {features} --values {values} --output", str(path))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert len(png.read_bytes()) > 5000
    elements = list(ElementTree.parse(svg).getroot().iter())
    assert len(elements) > 8 * features
    first = svg.read_bytes()
    hyla(f"sraven show --features {features} --values {values} --output", str(svg))
    assert svg.read_bytes() == first
    assert {path.name for path in hyla.folder.iterdir()} == {"a.PNG", "a.svg"}


@pytest.mark.parametrize("split", ["train", "held-out", "unknown"])
def test_fuzzy_show_is_the_instance_of_its_address(hyla: Hyla, split: str) -> None:
    settings = f"--split {split} --index 5 --seed 3 --variables 4 --terms 2 --examples 7"
    given = hyla.json(f"fuzzy show {settings}")
    task = FuzzyLogic(FuzzyLogicConfig(examples=7), seed=3)
    batch = task.batch(split.replace("-", "_"), range(5, 6))
    assert given["term_numbers"] == batch.terms[0].tolist()
    x = torch.tensor([given["inputs"]])
    assert evaluate(x, batch.terms)[0].tolist() == given["targets"]
    text = hyla(f"fuzzy show {settings}")
    assert given["formula"] == describe(given["term_numbers"], 4)
    assert given["formula"] in text
    assert f"? ({given['targets'][-1]:.3f})" in text


def test_fuzzy_stats_are_those_of_the_readers(hyla: Hyla) -> None:
    settings = "--variables 3 --examples 11 --held-out 0.4 --split held-out --seed 5"
    given = hyla.json(f"fuzzy stats {settings} --instances 31")
    config = FuzzyLogicConfig(variables=3, examples=11, held_out=0.4)
    assert (given["split"], given["seed"], given["instances"]) == ("held_out", 5, 31)
    assert list(given["r2"]) == list(BASELINES)
    text = hyla(f"fuzzy stats {settings} --instances 31")
    for reader, found in given["r2"].items():
        values = explained(reader, config, "held_out", range(31), 5).double()
        assert found["value"] == pytest.approx(float(values.mean()))
        assert f"{found['value']:.4f}" in text


@pytest.mark.parametrize(
    "command, message",
    [
        ("trian fuzzy --steps 3", "command: unknown name 'trian'. Did you mean 'train'"),
        ("rep --list", "command: unknown name 'rep'. Did you mean 'report'"),
        ("train fuzy --steps 3", "command: unknown name 'fuzy'. Did you mean 'fuzzy'"),
        ("train --steps 3", "command: expected one of fuzzy, sraven, recall"),
        ("--list", "command: expected one of .*reproduce.*, got nothing"),
        ("analyse --member 1", "PATH: expected a run folder, or the name of .*, got nothing"),
        ("sraven show --values 2", "values: expected from 3"),
        ("sraven show --split hold-out", "split: unknown name .* Did you mean 'held_out'"),
        ("sraven show --index -1", "index: expected a whole number from 0"),
        ("sraven show --index 9223372036854775807", "index: expected a whole number from 0"),
        ("sraven show --seed -1", "seed: expected an int from 0"),
        ("sraven show --held-out 1.5", "--held-out: expected a fraction"),
        ("sraven show --output a.pdf", "output .*'pdf'.*Allowed: png, svg"),
        ("sraven show --output missing/a.png", "expected an existing folder"),
        ("sraven stats --instances 1", "instances: expected .* at least 2"),
        ("sraven stats --device tpu9", "device: expected a device"),
        ("sraven export a.csv", "format .*'csv'.* Allowed: parquet, jsonl"),
        ("sraven export a.jsonl --instances 0", "instances: expected .* at least 1"),
        ("sraven export a.jsonl --start -5", "start: expected a whole number from 0"),
        ("sraven export missing/a.jsonl", "expected an existing folder"),
        ("fuzzy show --index -1", "index: expected a whole number from 0"),
        ("fuzzy show --variables 2 --terms 9", "terms|unknown"),
        ("fuzzy show --split none", "split: unknown name 'none'"),
        ("fuzzy stats --instances 0", "instances: expected 1 or more"),
        ("fuzzy stats --split unknown --unknown 0", "unknown: expected a fraction above 0"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    hyla: Hyla, command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hyla.folder)
    assert re.search(message, hyla.error(command))
    assert not list(hyla.folder.iterdir())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from hyla import __version__, cli

    cli.main(["--version"])
    assert capsys.readouterr().out == f"hyla {__version__}\n"


def test_unknown_options_and_commands_show_what_there_is(hyla: Hyla) -> None:
    assert "--index" in hyla.refused("sraven show --indx 3")
    assert "show" in hyla.refused("sraven shw")
    assert "sraven" in hyla.refused("")


@pytest.mark.parametrize(
    "command, package",
    [("sraven export a.parquet", "pyarrow"), ("sraven show --output a.png", "matplotlib")],
)
def test_a_missing_package_is_named(
    hyla: Hyla, command: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(package), *sys.meta_path])
    monkeypatch.chdir(hyla.folder)
    assert hyla.error(command) == f"error: this needs {package}: pip install {package}\n"
    assert not list(hyla.folder.iterdir())


class Missing:
    """Makes a package look as if it were not installed."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_interrupting_ends_with_one_line(hyla: Hyla, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hyla.tasks.sraven.commands.statistics", interrupt)
    assert hyla.refused("sraven stats", code=130) == "interrupted\n"


def test_as_a_program(hyla: Hyla) -> None:
    def solve(*options: str, given: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hyla.cli", "sraven", "solve", *options]
        return subprocess.run(command, input=given, capture_output=True, text=True)

    record = hyla.json("sraven show")
    result = solve("-", "--json", given=json.dumps(record))
    assert (result.returncode, result.stderr) == (0, "")
    assert record["answer"] in json.loads(result.stdout)["answers"]
    wrong = solve(given='{"values": 8}')
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: instance: expected a field 'panels'")
    assert wrong.stderr.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m hyla.cli sraven show | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stderr == ""
