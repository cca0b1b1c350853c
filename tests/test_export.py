"""Records of SRAVEN instances agree with task and solver, in files written atomically."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from hyla.tasks.sraven import RULES, Sraven, SravenConfig
from hyla.tasks.sraven import export as export_module
from hyla.tasks.sraven.draw import FILLS, SHAPES, draw
from hyla.tasks.sraven.export import FIELDS, export, records, solved
from hyla.tasks.sraven.solver import solve, unambiguous_batch
from hyla.tasks.sraven.text import prompt, read_instance

SMALL = SravenConfig(features=3, values=5)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few instances make several chunks, the last one not full."""
    monkeypatch.setattr(export_module, "CHUNK", 7)


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("extension", ["parquet", "jsonl"])
@pytest.mark.parametrize("unambiguous", [False, True])
def test_what_is_read_back_is_what_the_task_and_the_solver_say(
    tmp_path: Path, extension: str, unambiguous: bool
) -> None:
    path, index, done = tmp_path / f"instances.{extension}", range(100, 123), []
    task = Sraven(SMALL, seed=11)
    export(path, task, "held_out", index, unambiguous=unambiguous, progress=done.append)
    rows = read(path)
    assert sum(done) == len(rows) == len(index)
    assert [list(row) for row in rows] == [list(FIELDS)] * len(index)
    batch = (unambiguous_batch if unambiguous else Sraven.batch)(task, "held_out", index)
    solution = solve(batch.panels, SMALL, task.combinations["held_out"])
    assert torch.tensor([row["panels"] for row in rows]).equal(batch.panels)
    assert torch.tensor([row["answer"] for row in rows]).equal(batch.targets)
    assert torch.tensor([row["orders"] for row in rows]).equal(batch.orders)
    assert [row["index"] for row in rows] == list(index)
    assert torch.tensor([row["ambiguous"] for row in rows]).equal(solution.ambiguous)
    for i, row in enumerate(rows):
        assert (row["seed"], row["split"], row["unambiguous"]) == (11, "held_out", unambiguous)
        assert {name: row[name] for name in vars(SMALL)} == vars(SMALL)
        assert [RULES.index(rule) for rule in row["rules"]] == batch.rules[i].tolist()
        assert row["hypotheses"] == int((solution.hypotheses.instance == i).sum())
        mine = solution.answer_instance == i
        expected = zip(solution.answers[mine].tolist(), solution.probability[mine], strict=True)
        assert dict(zip(map(tuple, row["answers"]), row["probabilities"], strict=True)) == {
            tuple(answer): float(probability) for answer, probability in expected
        }
        assert row["probabilities"] == sorted(row["probabilities"], reverse=True)
        assert sum(row["probabilities"]) == pytest.approx(1)
        assert row["answer"] in row["answers"]
        assert row["prompt"] == prompt(row["panels"], SMALL)
        assert list(map(int, row["completion"].split())) == row["answer"]


def test_the_prompt_has_the_context_and_not_the_answer() -> None:
    for record in records(Sraven(SravenConfig(), 3), "all", range(20)):
        matrix = record["prompt"].splitlines()[-3:]
        panels = [[panel.strip() for panel in line.split("|")] for line in matrix]
        assert panels[2][2] == "?"
        numbers = [[list(map(int, panel.split())) for panel in row] for row in panels[:2]]
        assert numbers == record["panels"][:2]
        other = [*record["panels"][:2], [*record["panels"][2][:2], [9, 9, 9, 9]]]
        assert prompt(other, SravenConfig()) == record["prompt"]


def test_the_prior_may_be_another_than_that_of_the_split() -> None:
    task, index = Sraven(SravenConfig(), 3), range(40)
    own, every = (records(task, "held_out", index, prior=prior) for prior in (None, "all"))
    assert {record["prior"] for record in own} == {"held_out"}
    assert {record["prior"] for record in every} == {"all"}
    differing = 0
    for mine, general in zip(own, every, strict=True):
        result = solved(read_instance(json.dumps(general), fields=tuple(FIELDS)))
        assert result["probabilities"] == pytest.approx(general["probabilities"])
        assert sorted(mine["answers"]) == sorted(general["answers"])
        differing += mine["probabilities"] != pytest.approx(general["probabilities"])
    assert differing > 0
    with pytest.raises(ValueError, match="prior: unknown name 'none'"):
        records(task, "held_out", index, prior="none")


@pytest.mark.parametrize("permute", [True, False])
def test_an_exported_instance_can_be_read_and_solved(permute: bool) -> None:
    config = SravenConfig(values=4, permute=permute)
    for record in records(Sraven(config, 5), "all", range(20)):
        result = solved(read_instance(json.dumps(record), fields=tuple(FIELDS)))
        assert result["given"] == record["answer"]
        for name in ("answers", "probabilities", "hypotheses", "ambiguous", "permute"):
            assert result[name] == record[name]
        place = result["answers"].index(record["answer"])
        assert result["given_is_consistent"]
        assert result["given_probability"] == result["probabilities"][place]


def test_examples_prescribe_their_answers_by_the_rules() -> None:
    values, step = 4, {"constant": 0} | {f"progression {by:+d}": by for by in (1, 2, -1, -2)}
    for record in records(Sraven(SravenConfig(values=values), 5), "all", range(50)):
        result = solved(read_instance(json.dumps(record), fields=tuple(FIELDS)))
        for answer, example in zip(result["answers"], result["examples"], strict=True):
            panels = [*record["panels"][:2], [*record["panels"][2][:2], answer]]
            columns = zip(*(part["slots"] for part in example), strict=True)
            assert all(sorted(column) == [0, 1, 2, 3] for column in columns)
            for part in example:
                rows = [[row[c][part["slots"][c]] for c in range(3)] for row in panels]
                for a, b, c in rows:
                    if part["rule"] in step:
                        assert (b - a - step[part["rule"]]) % values == 0
                        assert (c - b - step[part["rule"]]) % values == 0
                    elif part["rule"] == "addition":
                        assert (a + b - c) % values == 0
                    elif part["rule"] == "subtraction":
                        assert (a - b - c) % values == 0
                    else:
                        assert len({a, b, c}) == 3
                        assert sorted((a, b, c)) == sorted(rows[0])


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("extension", ["parquet", "jsonl"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("existing", [False, True])
def test_an_interrupted_export_leaves_what_was_there(
    tmp_path: Path, extension: str, error: Any, existing: bool
) -> None:
    path = tmp_path / f"instances.{extension}"
    if existing:
        path.write_text("precious")

    def interrupt(done: int) -> None:
        assert len(list(tmp_path.iterdir())) == 1 + existing
        calls.append(done)
        if len(calls) == 2:
            raise error

    calls: list[int] = []
    with pytest.raises(error if isinstance(error, type) else type(error)):
        export(path, Sraven(SMALL), "all", range(50), overwrite=True, progress=interrupt)
    assert len(calls) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name] * existing
    assert not existing or path.read_text() == "precious"


# Each a program that has the path to write as its argument.
START = "import resource, sys; from hyla.cli import main;"
FULL = START + "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
RUN = "main(['sraven', 'export', sys.argv[1], '--instances', '{}'])"


@pytest.mark.parametrize("extension", ["parquet", "jsonl"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"instances.{extension}"
    command = [sys.executable, "-c", FULL + RUN.format(3000), str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "File too large" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    command = [sys.executable, "-c", START + RUN.format(10**7), str(tmp_path / "a.jsonl")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None and not list(tmp_path.iterdir()):
                time.sleep(0.01)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_refused_and_replaced_on_demand(tmp_path: Path) -> None:
    path, task = tmp_path / "a.jsonl", Sraven(SMALL)
    path.write_text("precious")
    with pytest.raises(ValueError, match=r"existing file"):
        export(path, task, "all", range(2))
    assert path.read_text() == "precious"
    export(path, task, "all", range(2), overwrite=True)
    assert len(read(path)) == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"

    def appear(done: int) -> None:
        path.write_text("precious")

    with pytest.raises(ValueError, match="existing file"):
        export(path, Sraven(SMALL), "all", range(2), progress=appear)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # also where tests run as root
    with pytest.raises(ValueError, match=f"expected a .*folder.* got {tmp_path}"):
        export(tmp_path / "a.jsonl", Sraven(SMALL), "all", range(2))


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("a.csv", {}, "format.*'csv'.*Allowed: parquet, jsonl"),
        ("a.jsonl", {"file_format": "jsnl"}, "format: unknown name 'jsnl'. Did you mean 'jsonl'"),
        ("missing/a.jsonl", {}, "expected an existing folder .*missing"),
        ("a.jsonl", {"index": range(0)}, "instances: expected .* at least 1"),
        ("a.jsonl", {"split": "tran"}, "split: unknown name 'tran'. Did you mean 'train'"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    arguments = {"split": "all", "index": range(2)} | changes
    with pytest.raises(ValueError, match=message):
        export(tmp_path / name, Sraven(SMALL), **arguments)
    assert not list(tmp_path.iterdir())


ROWS = [[[1, 2], [2, 2], [3, 2]], [[0, 4], [1, 4], [2, 4]], [[5, 1], [6, 1], None]]


def changed(row: int, column: int, panel: object) -> list[Any]:
    rows: list[Any] = [list(one) for one in ROWS]
    rows[row][column] = panel
    return rows


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "instance: expected a JSON object, got nothing"),
        ("panels", "instance: expected one JSON object, got .* line 1, column 1"),
        ("[" * 100_000, "instance: expected one JSON object"),
        (b"\xff\x00\x01", "instance: expected one JSON object"),
        ('{"values": 8}\n{"values": 8}', "one JSON object, .* line 2.*head -n 1"),
        (ROWS, "instance: expected a JSON object with a field 'panels', got 3 items"),
        ({"values": 8}, "instance: expected a field 'panels'.*got 'values'"),
        ({"values": 8, "panls": ROWS}, "unknown name 'panls'. Did you mean 'panels'"),
        ({"panels": ROWS}, "values: expected .* got nothing"),
        ({"values": 2, "panels": ROWS}, "values: expected from 3"),
        ({"values": "8", "panels": ROWS}, "values: expected a value of type int, got '8'"),
        ({"values": 8, "panels": ROWS[:2]}, "panels: expected 3 rows, got 2 rows"),
        ({"values": 8, "panels": 5}, "panels: expected 3 rows, got 5"),
        ({"values": 8, "panels": [ROWS[0], [], ROWS[2]]}, "row 1: expected 3 panels, got no"),
        ({"values": 8, "panels": [*ROWS[:2], [[1, 2]]]}, "row 2: expected 3 panels, .*got 1"),
        (changed(1, 2, [1]), "row 1, column 2: expected 2 symbols, got 1 symbols"),
        (changed(0, 0, [1, 2, 3]), "row 0, column 0: expected 2 symbols, got 3 symbols"),
        (changed(1, 1, None), "row 1, column 1: expected 2 symbols, got null"),
        (changed(0, 1, [1, 9]), "row 0, column 1, feature 1: expected .* 0 to 7, got 9"),
        (changed(0, 1, [-1, 0]), "row 0, column 1, feature 0: expected .* 0 to 7, got -1"),
        (changed(0, 1, [1, 1.0]), "row 0, column 1, feature 1: .* got 1.0"),
        (changed(2, 1, [True, 1]), "row 2, column 1, feature 0: .* got true"),
        (changed(2, 1, ["1", 1]), 'row 2, column 1, feature 0: .* got "1"'),
        (changed(2, 2, [10**30, 1]), "row 2, column 2, feature 0: .* got 1000"),
    ],
)
def test_a_malformed_instance_is_told_where(text: Any, message: str) -> None:
    if isinstance(text, list) and text is not ROWS:
        text = {"values": 8, "panels": text}
    with pytest.raises(ValueError, match=message):
        read_instance(text if isinstance(text, str | bytes) else json.dumps(text))


@pytest.mark.parametrize("last", [[], [None], [[7, 1]]])
def test_the_last_panel_may_be_null_absent_or_given(last: list[Any]) -> None:
    panels = [*ROWS[:2], [*ROWS[2][:2], *last]]
    instance = read_instance(json.dumps({"values": 8, "panels": panels}))
    result = solved(instance)
    assert result["answers"] == [[7, 1]]
    assert result.get("given_is_consistent") == (True if last and last[0] else None)


@pytest.mark.parametrize("last", [[], [None], [[7, 1]]])
def test_an_answer_counts_wherever_it_stands(last: list[Any]) -> None:
    entry = {"values": 8, "panels": [*ROWS[:2], [*ROWS[2][:2], *last]], "answer": [7, 1]}
    fields = ("panels", "values", "answer")
    assert read_instance(json.dumps(entry), fields=fields).given == [7, 1]
    if last and last[0]:
        with pytest.raises(ValueError, match=r"answer: expected the same as the last panel"):
            read_instance(json.dumps(entry | {"answer": [7, 2]}), fields=fields)


def test_a_context_that_no_rule_fits_has_no_answer() -> None:
    panels = [[[0], [0], [1]], [[0], [0], [2]], [[0], [0], [3]]]
    result = solved(read_instance(json.dumps({"values": 8, "panels": panels})))
    assert (result["answers"], result["hypotheses"], result["given_is_consistent"]) == (
        [],
        0,
        False,
    )


def shapes(values: int) -> Iterator[tuple[object, ...]]:
    """How each symbol looks in the legend, the last lines that are drawn."""
    lines = draw([[[0]] * 3] * 3, values).axes[0].lines[-values:]
    return ((line.get_marker(), line.get_fillstyle()) for line in lines)


@pytest.mark.parametrize("values", [3, 8, 16, 17, 48])
def test_every_symbol_has_its_own_look(values: int) -> None:
    assert len(set(shapes(values))) == values


def test_the_drawing_shows_the_context_and_not_the_answer() -> None:
    for values, features in ((8, 4), (len(SHAPES) * len(FILLS) + 1, 5)):
        panels = Sraven(SravenConfig(features, values)).batch("all", 1).panels[0].tolist()
        axes = draw(panels, values, "title").axes[0]
        texts = [text.get_text() for text in axes.texts]
        symbols = [line for line in axes.lines if line.get_marker() != "None"]
        assert texts.count("?") == 1
        assert "title" in texts
        if values == 8:
            assert len(symbols) == 8 * features + values
            looks = list(shapes(values))
            drawn = [(line.get_marker(), line.get_fillstyle()) for line in symbols]
            context = [symbol for row in panels for panel in row for symbol in panel][:-features]
            assert drawn[: 8 * features] == [looks[symbol] for symbol in context]
        else:
            assert not symbols
            assert len(texts) == 8 * features + 2
