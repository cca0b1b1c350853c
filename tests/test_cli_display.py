"""What `hyla train` shows of a run, and what `hyla runs` lists."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import Hyla
from rich.console import Console

from hyla.cli.display import Lines, LiveDisplay, MemberRanking
from hyla.train.runs import RunState
from hyla.train.watch import Progress


def member(i: int, **values: Any) -> dict[str, Any]:
    """An entry of a summary."""
    settings = {"seed": i, "learning_rate": 1e-3, "weight_decay": 0.1, "warmup": 10}
    return settings | {"diverged_at": None, "loss": 1.0, "evaluation": None} | values


def evaluation(accuracy: float) -> dict[str, Any]:
    measures = {"loss": 0.5, "accuracy": accuracy, "accuracy_by_rule": {"constant": 0.5}}
    return {"train": measures | {"accuracy": 0.9}, "held_out": measures}


def progress(
    step: int,
    losses: Sequence[float | None] = (2.0, 1.0, 3.0),
    measures: Sequence[float | None] = (None, None, None),
    **values: Any,
) -> Progress:
    settings: dict[str, Any] = {
        "stop_at": 50, "steps": 50, "instances_per_second": 1234.5, "seconds_left": 3723.0,
        "measure": "held_out accuracy", "doing": "training",
    }  # fmt: skip
    return Progress(step=step, losses=tuple(losses), measures=tuple(measures), **settings | values)


def test_ranks() -> None:
    standing = MemberRanking()
    by_loss = standing.ranks(progress(1, [2.0, 1.0, 4.0, 3.0], [None] * 4))
    assert by_loss == {"best": 1, "median": 0, "worst": 2}
    by_measure = standing.ranks(progress(1, [2.0, 1.0, 4.0, 3.0], [0.2, 0.1, 0.4, 0.3]))
    assert by_measure == {"best": 2, "median": 3, "worst": 1}
    assert standing.ranks(progress(1, [2.0, 1.0], [None] * 2)) == {"best": 1, "worst": 0}
    assert standing.ranks(progress(1, [2.0], [None])) == {"": 0}
    assert standing.ranks(progress(1, [None] * 2, [None] * 2)) == {}
    assert standing.lost(progress(1, [None] * 2, [None] * 2)) == []


def test_diverged_members_are_counted_apart() -> None:
    standing = MemberRanking()
    # By an earlier process: no loss while others have one.
    earlier = progress(1, [2.0, None, 1.0], [0.1, None, 0.2])
    assert standing.lost(earlier) == [1]
    assert standing.ranks(earlier) == {"best": 2, "worst": 0}
    standing.see([{"step": 57, "member": 2, "diverged": True}, {"step": 57, "member": 0}])
    assert standing.lost(progress(1, [None] * 3, [None] * 3)) == [2]
    assert standing.lost(earlier) == [1, 2]


def test_lines_come_every_ten_seconds_and_at_evaluations() -> None:
    now, stream = [0.0], io.StringIO()
    lines = Lines(stream, clock=lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        lines.progress(progress(second))
    assert re.findall(r"step (\d+)/50", stream.getvalue()) == ["0", "10", "20"]
    lines.progress(progress(30, measures=[0.1, 0.3, 0.2]))
    lines.progress(progress(31, measures=[0.1, 0.3, 0.2]))
    lines.metrics([{"step": 31, "member": 0, "diverged": True}])
    lines.progress(progress(32, [None, 1.0, 2.0], [None, 0.4, 0.5], doing="saving"))
    last, very_last = stream.getvalue().splitlines()[3:]
    assert last == (
        "step 30/50, 1,234 instances/s, 1:02:03 left, "
        "best member 1: loss 1.0000 held_out accuracy 0.3000, "
        "median member 2: loss 3.0000 held_out accuracy 0.2000, "
        "worst member 0: loss 2.0000 held_out accuracy 0.1000"
    )
    assert "step 32/50, saving, " in very_last
    assert very_last.endswith(", 1 diverged")
    assert "best member 2" in very_last


def test_the_live_display_shows_and_goes() -> None:
    stream = io.StringIO()
    display = LiveDisplay(Console(file=stream, force_terminal=True, width=100, highlight=False))
    display.progress(progress(0, [None] * 3, seconds_left=None, instances_per_second=0.0))
    display.progress(progress(30, [2.0, None, 1.0], [0.1, None, 0.25], stop_at=40))
    display.say("member [1] diverged")
    assert display.live is not None
    display.live.refresh()
    display.close()
    display.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    for part in ("step 30/50 (to 40)", "1,234 instances/s", "1:02:03 left", "1 diverged: 1"):
        assert part in text
    assert re.search(r"best +2 +1\.0000 +0\.2500", text)
    assert re.search(r"worst +0 +2\.0000 +0\.1000", text)
    assert "member [1] diverged" in text


def states(root: Path) -> list[RunState]:
    members = [member(0, evaluation=evaluation(0.25)), member(1, evaluation=evaluation(0.5))]
    return [
        RunState(root / "a", "finished", 50, 50, "sraven", "hyla", 2, "", {"members": members}),
        RunState(root / "b", "damaged", problem="b/config.json: expected\nJSON"),
        RunState(root / "c", "interrupted", 7, 50, "fuzzy_logic", "hyla+deep", 3),
        RunState(root / "d", "stopped", 7, 50, "sraven", "hyla", 1, "", {"members": [member(0)]}),
        RunState(root / "e", "stopped", 7, 50, "sraven", "hyla", 1, "", {"members": "none"}),
    ]


def test_runs_are_listed(hyla: Hyla, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyla.cli.runs.list_runs", states)
    text = hyla("runs", str(hyla.folder))
    assert re.search(
        r"│ a +│ finished +│ +50/50 │ sraven +│ hyla +│ +2 │ accuracy 0\.5000 │ +1 │", text
    )
    assert re.search(r"│ c +│ interrupted │ +7/50 │ fuzzy_logic │ hyla\+deep │ +3 │ +│ +│", text)
    assert f"{hyla.folder / 'b'} is damaged: b/config.json: expected JSON\n" in text
    given = hyla.json("runs", str(hyla.folder))
    assert [record["state"] for record in given] == [s.state for s in states(hyla.folder)]
    assert given[0]["best"] == {"member": 1, "measure": "accuracy", "value": 0.5}
    assert [record["best"] for record in given[1:]] == [None] * 4


def test_no_runs_says_how_to_start_one(hyla: Hyla, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hyla.folder)
    assert "no folder runs. Start one with hyla train" in hyla("runs")
    (hyla.folder / "runs").mkdir()
    assert "No runs in runs. Start one with hyla train" in hyla("runs")
    assert hyla.json("runs") == []
    (hyla.folder / "file").touch()
    assert "root: expected a folder, got file" in hyla.error("runs file")
    assert "root: expected a folder, got elsewhere" in hyla.error("runs elsewhere")
