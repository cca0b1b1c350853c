"""The store: its order of preference, its files, and damaged ones."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from helpers import run, tiny_run
from stores import SETTINGS, made, store

from hyla.experiments.spec import Point
from hyla.records import append_records, decode, plain, read_records, to_line
from hyla.train.store import ANALYSES, TRAININGS, Analysed, Entry, Store, Trained
from hyla.train.training import Training

POINT = Point({"kind": "hyla"}, tiny_run("sraven", members=SETTINGS))
SETTING = SETTINGS[0]


def training() -> Training:
    assert POINT.config is not None
    return Training.of(POINT.config, SETTING)


def got(published: list[Trained], local: list[Trained]) -> str:
    found = store(*published, local=tuple(local)).get(training())
    assert found is not None
    return found.run


def test_published_comes_before_local_and_a_later_line_changes_nothing() -> None:
    older = made(POINT, SETTING, 0, run="older", date="2026-01-01", held_out=0.1)
    newer = made(POINT, SETTING, 0, run="newer", date="2026-03-01", held_out=0.9)
    here = Path("runs/x")
    assert got([newer, older], []) == "newer"  # the date does not count: it was published first
    assert got([older, newer], []) == "older"
    assert got([], [replace(newer, path=here), replace(older, path=here)]) == "older"
    assert got([newer], [replace(older, path=here)]) == "newer"
    assert got([older, replace(newer, pinned=True)], []) == "newer"


def test_published_comes_before_local_of_another_precision() -> None:
    theirs = made(POINT, SETTING, 0, run="theirs", precision="fp16", date="2026-03-01")
    mine = made(POINT, SETTING, 0, run="mine", precision="tf32", path=Path("runs/x"))
    assert got([theirs], [mine]) == "theirs"
    found = store(theirs, local=(mine,)).get(training(), "tf32")
    assert found is not None
    assert found.run == "mine"


def test_repetitions_in_one_run_are_told_apart_by_their_member() -> None:
    here = Path("runs/x")
    twice = [made(POINT, SETTING, 0, member=n, held_out=n / 10, path=here) for n in (1, 0)]
    assert store(local=twice).get(training()) == twice[1]
    assert store(*twice).get(training()) == twice[0]


def test_the_members_of_a_run_are_trainings(tmp_path: Path) -> None:
    config = tiny_run("sraven", splits=("held_out", "validation"))
    summary = run(config, tmp_path / "runs/one")
    found = Store.open(tmp_path / "runs", None)
    assert len(found.local) == len(config.members)
    for number, member in enumerate(config.members):
        one = found.get(Training.of(config, member))
        assert one is not None
        assert (one.member, one.path) == (number, tmp_path / "runs/one")
        assert one.loss == summary["members"][number]["loss"]
        measured = summary["members"][number]["evaluation"]["held_out"]["accuracy"]
        assert one.measure("held_out", "accuracy") == measured
    assert len({(one.key, one.run, one.member) for one in found.local}) == len(config.members)


def test_two_runs_of_the_same_configuration_have_different_ids(tmp_path: Path) -> None:
    config = tiny_run("sraven", steps=6, members=SETTINGS[:1])
    for name in "ab":
        run(config, tmp_path / name)
    ids = {one.run for one in Store.open(tmp_path, None).local}
    assert len(ids) == 2


def test_only_runs_that_have_come_to_their_end_count(tmp_path: Path) -> None:
    run(tiny_run("sraven"), tmp_path / "one", stop_at=7)
    found = Store.open(tmp_path, None)
    assert not found.local
    assert not found.problems


@pytest.mark.parametrize("name", ["summary.json", "config.json"])
@pytest.mark.parametrize("damage", ["cut", "schema", "members"])
def test_a_damaged_run_is_left_out_and_named(tmp_path: Path, name: str, damage: str) -> None:
    for folder in ("good", "bad"):
        run(tiny_run("sraven", steps=6, members=SETTINGS[:1]), tmp_path / folder)
    path = tmp_path / "bad" / name
    text = path.read_text()
    values = json.loads(text)
    if damage == "cut":
        path.write_text(text[: len(text) // 2])
    elif name == "config.json":
        values["config"][damage] = 7  # an unknown field, or nonsense
        path.write_text(json.dumps(values))
    else:
        path.write_text(json.dumps(values | {damage: 99}))
    found = Store.open(tmp_path, None)
    assert [one.path for one in found.local] == [tmp_path / "good"]
    (problem,) = found.problems.values()
    assert str(tmp_path / "bad") in problem
    assert "\n" not in problem


def written(folder: Path) -> Path:
    path = folder / TRAININGS
    append_records(path, [made(POINT, SETTING, seed) for seed in range(5)])
    return path


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda line: line[:40], "damaged content"),
        (lambda line: "[1]", "a JSON object"),
        (lambda line: line.replace('"schema": 1', '"schema": 2'), "schema 1"),
        (lambda line: line.replace('"member"', '"membre"'), "Did you mean 'member'"),
        (lambda line: line.replace('"run": "a"', '"run": 3'), "run: expected a str, got 3"),
        (lambda line: line.replace('"loss": 0.1', '"loss": "much"'), "loss: expected a float"),
    ],
)
def test_a_damaged_line_is_named_and_nothing_is_lost(
    tmp_path: Path, damage: Any, message: str
) -> None:
    path = written(tmp_path)
    lines = path.read_text().splitlines()
    lines[2] = damage(lines[2])
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="line 3") as error:
        Store.open(None, tmp_path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert path.read_text() == "\n".join(lines)


def test_a_key_that_is_not_that_of_its_description_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace('"steps": 29', '"steps": 31', 1))
    with pytest.raises(ValueError, match="by its description"):
        Store.open(None, tmp_path)


def test_records_are_appended_once_and_old_lines_stay(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_text()
    again = [made(POINT, SETTING, seed) for seed in (3, 7)]
    assert append_records(path, again) == 1
    assert path.read_text().startswith(before)
    assert len(list(read_records(path, Trained))) == 6
    assert append_records(path, again) == 0


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    curves = {"step": (1.0, 2.0), "loss": (0.5, None)}
    ones = [
        replace(made(POINT, SETTING, 1, diverged_at=3), curves=curves),
        made(POINT, SETTING, 2, pinned=True),
    ]  # fmt: skip
    append_records(tmp_path / TRAININGS, ones)
    found = list(read_records(tmp_path / TRAININGS, Trained))
    assert sorted(found, key=lambda one: one.description["seed"]) == ones
    analysed = Analysed("k", "codes", {"keys": "self"}, (Entry({"layer": 2}, {"F1": None}),))
    append_records(tmp_path / ANALYSES, [analysed])
    assert list(read_records(tmp_path / ANALYSES, Analysed)) == [analysed]
    assert Store.open(None, tmp_path).analysis("k", "codes", {"keys": "self"}) == analysed
    assert Store.open(None, tmp_path).analysis("k", "codes", {"keys": "row"}) is None


@dataclass(frozen=True)
class Part:
    numbers: tuple[float | None, ...] = ()
    names: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Whole:
    part: Part
    text: str | None = None
    flag: bool = False


def test_a_line_has_what_differs_from_the_defaults() -> None:
    whole = Whole(Part((1.0, None), {"a": 3}), "x")
    values = json.loads(to_line(whole))
    assert values == {"schema": 1, "part": {"numbers": [1.0, None], "names": {"a": 3}}, "text": "x"}
    del values["schema"]
    assert decode(Whole, values, "here") == whole
    assert plain(Whole(Part())) == {"part": {}}


@pytest.mark.parametrize(
    "values, place",
    [
        ({}, "here.part"),
        ({"part": 3}, "here.part"),
        ({"part": {"numbers": [1, "2"]}}, r"here.part.numbers\[1\]"),
        ({"part": {"names": {"a": 1.5}}}, "here.part.names.a"),
        ({"part": {}, "flag": 1}, "here.flag"),
        ({"part": {}, "txet": ""}, "here: unknown name 'txet'"),
    ],
)
def test_a_wrong_value_is_named_by_its_place(values: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError, match=place):
        decode(Whole, values, "here")
