"""The report: every declared figure is there, and nothing in the files can break or enter it."""

import json
from pathlib import Path

import pytest
from test_report_rows import write_results

from hyla.experiments import EXPERIMENTS
from hyla.report import load, render, write
from hyla.report.figures import draw


def test_every_declared_figure_is_drawn(tmp_path: Path) -> None:
    for found in load(*write_results(tmp_path)):
        for figure in found.experiment.figures:
            drawings = draw(figure, found.rows, found.experiment.axes)
            assert drawings, figure.title
            for drawn in drawings:
                assert drawn.rows, figure.title
                assert drawn.panels or drawn.table, figure.title
                assert not drawn.skipped, figure.title


def test_without_results_there_are_commands(tmp_path: Path) -> None:
    page = render(tmp_path / "none", tmp_path / "nothing")
    for name, experiment in EXPERIMENTS.items():
        assert f"hyla reproduce {name} --scale {experiment.scales[0]}" in page


def test_a_failure_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "report.html"
    output.write_text("old")
    monkeypatch.setattr("hyla.report.page.plotly_script", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(output, tmp_path, tmp_path)
    assert output.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_damaged_files_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    results, runs = write_results(tmp_path)
    (results / "fuzzy.json").write_text("[{")
    (results / "heads.json").write_text(json.dumps([{"scale": "paper", "attention": "hyla"}]))
    found = {one.experiment.name: one for one in load(results, runs)}
    assert "fuzzy.json" in found["fuzzy"].problems[0]
    page = render(results, runs)
    assert "fuzzy.json" in page
    assert "hyla: no heads" in page
    assert "81.1 ± 7.8" in page  # of the paper's table of ablations
