"""The README's part of the results."""

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from test_report_rows import rows_of, write_results

from hyla.experiments import EXPERIMENTS
from hyla.experiments.judge import find
from hyla.report import load, render
from hyla.report.beyond import beyond
from hyla.report.markdown import BEGIN, END, results_block, update


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("grid", "x"), ("grid", [3]), ("ceiling", None), ("measures", {}), ("per_seed", "x"),
        ("feature_accuracy_by_rule", None), ("active_units", 3), ("solver_by_rule", True),
        ("mean", 10**400),
    ],
)  # fmt: skip
def test_an_odd_row_does_not_stop_what_is_said_of_the_others(name: str, odd: Any) -> None:
    rows = [row for row in rows_of(EXPERIMENTS["ablation"]) if row["task"] == "SRAVEN"]
    whole = beyond(rows)
    rows[1] |= {name: odd}
    lines = beyond(rows)
    assert len(lines) == len(whole) == len(rows)
    assert lines[:1] + lines[2:] == whole[:1] + whole[2:]
    assert "damaged" in lines[1] or name == "grid"


def test_a_row_searched_on_one_seed_is_marked(tmp_path: Path) -> None:
    rows = rows_of(EXPERIMENTS["ablation"])
    rows[0] |= {"search": "first-seed"}
    (tmp_path / "ablation.json").write_text(json.dumps(rows))
    assert "†" not in results_block(load(*write_results(tmp_path / "full", dict)))
    lines = results_block(load(tmp_path, tmp_path / "runs")).splitlines()
    assert sum(" † |" in line for line in lines) == 1
    page = render(tmp_path, tmp_path / "runs")
    assert page.count(" †<") == page.count("† The grid was searched on the first seed only.") == 1
    assert any(line.startswith("† ") and "experts" in line for line in lines)


def test_the_block_of_a_readme_is_replaced(tmp_path: Path) -> None:
    results, runs = write_results(tmp_path, dict)
    file = tmp_path / "README.md"
    file.write_text(f"before\n{BEGIN}stale\n{END}\nafter\n")
    for _ in range(2):
        update(file, load(results, runs))
        text = file.read_text()
        assert text.startswith(f"before\n{BEGIN}| held out")
        assert text.endswith(f"{END}\nafter\n")
        assert "stale" not in text
        assert len([line for line in text.splitlines() if line.startswith("| ")]) == 14
    assert "Dead, no value network is ever on: layer 2 of the model with" in text
    # Never rounded up: what is said of all other rules holds for the least of them.
    hyla = find(load(results, runs)[0].rows, row="HYLA", task="SRAVEN")
    assert hyla is not None
    means = sorted(one["mean"] for one in hyla["feature_accuracy_by_rule"].values())
    line = next(line for line in text.splitlines() if "Beyond the paper: HYLA on SRAVEN" in line)
    assert f"{means[0]:.0f} of 97 %" in line
    assert f"all others {int(10 * means[3]) / 10} % or more" in line
    assert "from 7.2 to 98.8 in 2 trainings" in line
    assert line.removeprefix("- Beyond the paper: ") in unescape(render(results, runs))
    file.write_text("no marks")
    with pytest.raises(ValueError, match="expected a file with the lines"):
        update(file, load(results, runs))
    assert file.read_text() == "no marks"
