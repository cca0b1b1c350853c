"""The report: every declared figure is there, and says what it is made of."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from test_report_rows import drawings, rows_of, write_results

from hyla.cli.report import report
from hyla.experiments import EXPERIMENTS
from hyla.experiments.ablation import ROWS, title
from hyla.experiments.results import results_file, write_rows
from hyla.experiments.scales import SCALES
from hyla.report import load, render, write
from hyla.report.figures import DRAWINGS, draw
from hyla.report.page import plotly_script
from hyla.report.static import draw_figures
from hyla.report.summary import BADGES, counts, in_words
from hyla.report.tables import against_paper, draw_table
from hyla.report.text import places


def test_every_declared_figure_is_drawn() -> None:
    kinds = set()
    for figure, drawn in drawings():
        assert drawn.panels or drawn.table, figure.title
        assert not drawn.skipped, figure.title
        assert figure.kind == "measures" or drawn.panels
        assert figure.kind in ("measures", "table") or drawn.numbers
        kinds.add(figure.kind)
    assert kinds == {*DRAWINGS, "scatter"}


def test_plotly_knows_all_that_is_drawn() -> None:
    seen = set()
    for figure, drawn in drawings():
        for panel in drawn.panels[:1]:
            if figure.kind not in seen:
                text = json.dumps(panel.data).replace('"ink"', '"black"')
                go.Figure(json.loads(text), panel.layout)  # refuses what it does not know
        seen.add(figure.kind)


def test_lines_and_bars_show_the_numbers_of_the_rows() -> None:
    experiment = EXPERIMENTS["heads"]
    rows = rows_of(experiment)
    random.Random(0).shuffle(rows)
    drawn = [draw(figure, rows, experiment.axes)[0] for figure in experiment.figures]
    lines = drawn[0]
    (rules,) = (d for d in drawn if "contain a rule (attention hyla)" in d.title)
    (trace,) = (t for t in lines.panels[0].data if "hyla, heads" in t["hovertext"][0])
    mine = sorted((r for r in rows if r["kind"] == "hyla"), key=lambda row: row["heads"])
    assert trace["x"] == [1, 2, 4, 8, 16, 32]
    assert trace["y"] == [row["measures"]["held out"]["mean"] for row in mine]
    assert trace["error_y"]["array"] == [row["standard_error"] for row in mine]
    for text in ("by seed", "learning rate 0.001", "20 M instances", "bf16", "NVIDIA H200", "full"):
        assert text in trace["hovertext"][0]
    assert mine[0]["runs"][0] in trace["hovertext"][0]
    bars = rules.panels[0].data[0]
    assert bars["y"] == [value["mean"] for value in mine[0]["accuracy_by_rule"].values()]


def test_an_attention_kind_has_one_colour() -> None:
    def colours(name: str, index: int = 0) -> dict[str, str]:
        experiment = EXPERIMENTS[name]
        drawn = draw(experiment.figures[index], rows_of(experiment)[::-1], experiment.axes)[0]
        return {key.name: key.colour for key in drawn.legend if "ceiling" not in key.name}

    first = colours("fuzzy")
    assert set(first) == {"softmax", "linear", "hyla"}
    assert len(set(first.values())) == 3
    assert first == colours("heads") == colours("codes-fuzzy") == colours("scaling-width", 4)
    assert not set(first.values()) & set(colours("readers").values())


def test_no_two_bars_have_one_colour() -> None:
    legends = [drawn.legend for figure, drawn in drawings() if figure.kind == "rules"]
    assert max(map(len, legends)) > 6  # heads, and the ceiling
    for keys in legends:
        assert len({key.colour for key in keys}) == len(keys)


def test_the_paper_stands_where_nothing_is_measured(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["ablation"]
    rows = [row for row in rows_of(experiment) if row["row"] != "HYLA" or row["task"] != "SRAVEN"]
    write_rows(tmp_path / "ablation.json", experiment, rows[3:])
    (found,) = (one for one in load(tmp_path, tmp_path) if one.experiment is experiment)
    assert (found.measured, found.points) == (22, 26)
    (drawn,) = draw(experiment.figures[0], found.rows_for(experiment.figures[0]), experiment.axes)
    assert drawn.table is not None
    body = [[getattr(cell, "text", cell) for cell in line] for line in drawn.table.body]
    assert [line[0] for line in body] == [title(*kinds) for kinds in ROWS]
    assert body[0][1:3] == ["not measured", "63.3 ± 2.3"]
    assert body[2][3:] == ["not measured", "69.1 ± 1.9"]
    for panel, there in zip(drawn.panels, (10, 12), strict=True):
        lengths = {t["name"]: (len(t["x"]), len(t["hovertext"])) for t in panel.data}
        assert lengths["here"] == (there, there)
        assert lengths["paper"] == (13, 13)
    other = experiment.figures[1]
    assert found.rows_for(other) == found.rows


def test_a_row_that_diverged_says_so_beside_the_paper() -> None:
    first, second = (row for row in rows_of(EXPERIMENTS["ablation"]) if row["row"] == "HYLA")
    second |= {"mean": None, "standard_error": None, "per_seed": [None, None, None]}
    drawn = draw_table(EXPERIMENTS["ablation"].figures[0], [first, second], ("row", "task"))
    assert drawn.table is not None
    assert drawn.table.body[0][3:] == ["diverged", "69.1 ± 1.9"]
    assert [len(panel.data[-1]["x"]) for panel in drawn.panels] == [1, 1]  # one is the paper's
    second |= {"per_seed": [None, 3.0, None]}  # a mean is missing for no such reason
    assert draw_table(EXPERIMENTS["ablation"].figures[0], [second], ("row", "task")).table is None


def test_a_table_marks_what_differs_from_the_paper() -> None:
    base = {"row": "HYLA", "task": "SRAVEN", "scale": "paper", "standard_error": 1.0}
    row = {**base, "mean": 60.0, "paper_mean": 63.0, "paper_standard_error": 1.0}
    figure = EXPERIMENTS["ablation"].figures[0]

    def mark(**change: Any) -> str:
        table = draw_table(figure, [row | change], ("row", "task")).table
        assert table is not None
        return table.body[0][1].mark

    assert mark() == "below"
    assert mark(mean=66.0) == "above"
    assert mark(mean=62.0) == ""
    assert mark(scale="small") == ""  # not comparable
    assert mark(standard_error=None) == ""
    assert against_paper(row | {"standard_error": 0, "paper_standard_error": 0, "mean": 63}) == 0


def test_the_largest_scale_is_shown_and_scales_are_not_mixed(tmp_path: Path) -> None:
    assert set(BADGES) == {*SCALES, ""}
    experiment = EXPERIMENTS["heads"]
    results, runs = tmp_path / "results", tmp_path / "runs"

    def found(scale: str, rows: list[Any]) -> Any:
        file = results_file("heads", scale, results, runs)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rows))
        return next(one for one in load(results, runs) if one.experiment is experiment)

    def at(scale: str) -> list[Any]:
        return [{**row, "scale": scale} for row in rows_of(experiment)[:3]]

    assert found("smoke", at("smoke")).scale == "smoke"
    small = found("small", at("small"))
    assert (small.scale, small.measured, small.points) == ("small", 3, 18)
    assert found("paper", []).scale == "small"
    mixed = found("paper", [*at("paper"), *at("small")])
    assert len(mixed.rows) == 3
    assert "3 rows are of another scale" in mixed.problems[0]


@pytest.mark.usefixtures("small_library")
def test_partly_measured_experiments_say_so(tmp_path: Path) -> None:
    results, runs = write_results(tmp_path)
    file = results / "heads.json"
    file.write_text(json.dumps(json.loads(file.read_text())[:4]))
    page = render(results, runs)
    assert "4 of 18 points are measured" in page
    assert "hyla reproduce heads --scale paper --precision bf16" in page


@pytest.mark.usefixtures("small_library")
def test_rows_of_one_seed_are_told_and_have_no_bar(tmp_path: Path) -> None:
    """Not a bar of length 0; in the hover, and in a list that stands before the figures."""
    experiment = EXPERIMENTS["heads"]
    rows = rows_of(experiment)
    alone = json.loads(json.dumps(rows[4]), object_hook=in_one_seed)
    alone |= {"seeds": 1, "precision": "fp16", "members": 1}
    (figure,) = [f for f in experiment.figures if f.kind == "lines"][:1]
    (drawn,) = draw(figure, [*rows[:4], alone, *rows[5:]], experiment.axes)
    traces = [trace for panel in drawn.panels for trace in panel.data]
    bars = [bar for trace in traces if "error_y" in trace for bar in trace["error_y"]["array"]]
    assert bars.count(None) == 1
    (told,) = [text for trace in traces for text in trace["hovertext"] if "(1 seed)" in text]
    assert "1 model," in told
    assert "fp16" in told
    results = tmp_path / "results"
    write_rows(results / "heads.json", experiment, [*rows[:4], alone, *rows[5:-1]])
    write(tmp_path / "page.html", results, tmp_path / "runs")
    page = (tmp_path / "page.html").read_text()
    (listed,) = re.findall("Made unlike the others:</p><ul>(.*?)</ul>", page)
    assert listed == f"<li>{places(experiment.axes, alone)}, fp16, seeds: 1</li>"
    assert "the rest, and all seeds of rows with fewer:" in page
    pictures = draw_figures(load(results, tmp_path / "runs"), tmp_path / "pictures")
    assert tmp_path / "pictures" / "heads.png" in pictures


@pytest.mark.usefixtures("small_library")
def test_a_point_with_many_rows_is_told_once_where_it_is_unlike_the_others(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["codes-depth"]
    rows = [
        row | ({"seeds": 1, "precision": "fp16"} if row["millions"] == 40 else {})
        for row in rows_of(experiment)
    ]
    assert sum(row["millions"] == 40 for row in rows) > 10
    results = tmp_path / "results"
    write_rows(results / "codes-depth.json", experiment, rows)
    page = render(results, tmp_path / "runs")
    (listed,) = re.findall("Made unlike the others:</p><ul>(.*?)</ul>", page)
    assert listed == "<li>softmax, millions of instances 40, fp16, seeds: 1</li>"


def in_one_seed(values: dict[str, Any]) -> dict[str, Any]:
    """Means over seeds as those of the first alone."""
    if not {"mean", "standard_error", "per_seed"} <= {*values}:
        return values
    first = values["per_seed"][0]
    return values | {"mean": first, "standard_error": None, "per_seed": [first]}


@pytest.mark.usefixtures("small_library")
def test_without_results_there_are_commands(tmp_path: Path) -> None:
    page = render(tmp_path / "none", tmp_path / "nothing")
    for name, experiment in EXPERIMENTS.items():
        assert f"hyla reproduce {name} --scale {experiment.scales[0]}" in page
    assert "There are no run folders" in page


def test_smoke_results_are_no_verdict(tmp_path: Path) -> None:
    results, runs = tmp_path / "results", tmp_path / "runs"
    file = results_file("heads", "smoke", results, runs)
    file.parent.mkdir(parents=True)
    rows = [{**row, "scale": "smoke"} for row in rows_of(EXPERIMENTS["heads"])]
    file.write_text(json.dumps(rows))
    found = load(results, runs)
    assert counts(found)["smoke"] == {"reproduced": 1}
    papers = [e for e in EXPERIMENTS.values() if "paper" in e.scales]
    assert len(papers) == len(EXPERIMENTS) - 2  # without the demonstrations
    rest = sum(len(e.claims) for e in papers) - sum(counts(found)["smoke"].values())
    assert counts(found)[""] == {"not measured": rest}
    assert not any("1 reproduced" in line for line in in_words(found))
    assert "✓" not in render(results, runs).replace(plotly_script(), "")


def test_a_failure_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "report.html"
    output.write_text("old")
    monkeypatch.setattr("hyla.report.page.plotly_script", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(output, tmp_path, tmp_path)
    assert output.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_library_is_there_once(tmp_path: Path) -> None:
    page = render(tmp_path, tmp_path)
    assert page.count(plotly_script()) == 1
    assert "</script" not in plotly_script()
    assert len(page) < 6_000_000


@pytest.mark.usefixtures("small_library")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, runs = write_results(tmp_path, names=("ablation", "heads", "ambiguity"))
    (results / "fuzzy.json").write_text("[{")
    output, figures = tmp_path / "page.html", tmp_path / "figures"
    report(output, runs, results, figures)
    told = capsys.readouterr().out
    assert f"Page: {output}" in told
    assert "At the paper's scale:" in told
    assert "fuzzy.json" in told
    names = ["ablation", "ambiguity-2", "ambiguity", "heads-2", "heads-3", "heads"]
    assert sorted(path.name for path in figures.iterdir()) == [f"{name}.png" for name in names]
    assert (figures / "heads.png").read_bytes()[1:4] == b"PNG"
    report(output, runs, results, json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["experiments"]["heads"]["measured"] == 18
    assert found["page"] == str(output)
    with pytest.raises(ValueError, match="results: expected a folder"):
        report(output, runs, results / "heads.json")
    page = output.read_bytes()
    with pytest.raises(ValueError, match=r"results: expected a folder that is there, got .*nope"):
        report(output, runs, results / "nope")
    assert output.read_bytes() == page


def test_an_unknown_kind_of_figure_is_told() -> None:
    figure = replace(EXPERIMENTS["heads"].figures[0], kind="pie")
    assert "pie" in draw(figure, [], ())[0].skipped[0]


def test_every_training_of_a_grid_is_a_dot() -> None:
    rows = [row for row in rows_of(EXPERIMENTS["ablation"]) if row["task"] == "SRAVEN"]
    figure = EXPERIMENTS["ablation"].figures[0]
    for odd in ([{"per_seed": "x"}], [{"per_seed": [None, "x"]}]):
        rows[0] |= {"grid": odd}
        drawn = draw_table(figure, rows, ("row", "task"))
        names = [key.name for key in drawn.legend]
        dots = next(t for t in drawn.panels[0].data if t["name"] == "single trainings")
        assert names[int(dots["legendgroup"])] == "single trainings"
        assert dots["x"] == [7.25, 98.75] * (len(rows) - 1)
    bare = draw_table(figure, [rows[0]], ("row", "task"))
    assert [key.name for key in bare.legend] == ["here", "paper"]
    for none in (None, "x", [], [3]):  # of a grid that does not tell, the chosen ones
        drawn = draw_table(figure, [rows[1] | {"grid": none}], ("row", "task"))
        assert drawn.panels[0].data[0]["x"] == rows[1]["per_seed"]
