"""The report: figures, verdicts, the page, the command and the block of the README."""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from test_report_rows import HOSTILE, found_of, records, write_results

from hyla.cli import main
from hyla.cli.report import report
from hyla.experiments import EXPERIMENTS
from hyla.experiments.judge import NOT_TESTED, OUTCOMES, SUPPORTED, judge
from hyla.experiments.paper.ablation import ROWS, title
from hyla.experiments.spec import Claim, Contrast, Figure, Row, Term, above, at_most
from hyla.report import load, render, write
from hyla.report.adapter import flat
from hyla.report.figures import DRAWINGS, draw
from hyla.report.found import collect
from hyla.report.markdown import BLOCKS, filled, marks
from hyla.report.parts import Plots
from hyla.report.sections import experiment_section
from hyla.report.text import rounded
from hyla.report.verdicts import as_json, contrast_counts, counts, with_evidence
from hyla.statistics import Sample
from hyla.train.store import TRAININGS, Store

DEMOS = {name for name, one in EXPERIMENTS.items() if one.is_demo}


def drawings(extra: str = "") -> Iterator[tuple[Figure, Any]]:
    for name in EXPERIMENTS:
        found = found_of(name, extra)
        for figure in found.experiment.figures:
            yield figure, draw(figure, found.rows_for(figure), found.experiment.axes)


def test_every_declared_figure_is_drawn() -> None:
    kinds = set()
    for figure, drawn in drawings():
        assert drawn.panels or figure.kind == "measures", figure.title
        assert drawn.table if figure.kind in ("measures", "table") else drawn.numbers
        assert not drawn.skipped
        if figure.kind not in kinds:
            for panel in drawn.panels[:1]:
                text = json.dumps(panel.data).replace('"ink"', '"black"')
                go.Figure(json.loads(text), panel.layout)  # refuses what plotly does not know
        kinds.add(figure.kind)
    assert kinds == {*DRAWINGS}


def test_lines_and_bars_show_the_numbers_of_the_rows() -> None:
    found = found_of("heads")
    rows = list(found.flat)
    random.Random(0).shuffle(rows)
    drawn = [draw(figure, rows, found.experiment.axes) for figure in found.experiment.figures]
    lines, rules = drawn[0], drawn[-1]
    (trace,) = (t for t in lines.panels[0].data if "hyla, heads" in t["hovertext"][0])
    mine = [row for row in found.flat if row["kind"] == "hyla"]
    assert trace["x"] == [1, 2, 4, 8, 16, 32]
    assert trace["y"] == [row["mean"] for row in mine]
    assert trace["error_y"]["array"] == [row["standard_error"] for row in mine]
    told = ("learning rate 0.001", "20 M instances", "tf32", "NVIDIA H200", mine[0]["runs"][0])
    assert all(text in trace["hovertext"][0] for text in told)
    by_rule = mine[0]["accuracy_by_rule"].values()
    assert rules.panels[0].data[0]["y"] == [value["mean"] for value in by_rule]


def test_the_paper_stands_where_nothing_is_measured() -> None:
    experiment = EXPERIMENTS["ablation"]
    trained, analysed = records(experiment)
    found = collect(experiment, Store(trained[9:], [], analysed))  # three seeds of each row
    assert (found.measured, found.points) == (23, 26)
    drawn = draw(experiment.figures[0], found.rows_for(experiment.figures[0]), experiment.axes)
    body = [[getattr(cell, "text", cell) for cell in line] for line in drawn.table.body]
    assert [line[0] for line in body] == [title(*kinds) for kinds in ROWS]
    assert body[0][1:3] == ["not measured", "63.3 ± 2.3"]
    lengths = {trace["name"]: len(trace["x"]) for trace in drawn.panels[0].data}
    assert (lengths["here"], lengths["paper"]) == (10, 13)
    assert found.rows_for(experiment.figures[1]) == found.flat
    assert "hyla reproduce ablation" in experiment_section(found, Plots())


def test_deviations_from_the_paper_are_marked() -> None:
    found = found_of("ablation")
    row = found.flat[0] | {"paper_mean": 63.0, "paper_standard_error": 1.0}
    for mean, error, mark in (
        (60, 1.0, "below"),
        (66, 1.0, "above"),
        (62, 1.0, ""),
        (60, None, ""),
    ):
        changed = row | {"mean": mean, "standard_error": error}
        drawn = draw(found.experiment.figures[0], [changed], found.experiment.axes)
        assert drawn.table.body[0][1].mark == mark


def test_diverged_and_single_seeds_are_shown_as_such() -> None:
    found = found_of("ablation")
    (figure, *_), axes = found.experiment.figures, found.experiment.axes

    def cell(*per_seed: float | None) -> str:
        row = found.rows[0]
        measures = {**row.measures, "held out": Sample(per_seed)}
        row = replace(row, measures=measures, trainings=row.trainings[: len(per_seed)])
        return getattr(line := draw(figure, [flat(row)], axes).table.body[0][1], "text", line)

    assert cell(60.0, 61.0, 62.0) == "61.0 ± 0.6"
    assert cell(60.0, None, 62.0) == "61.0 ± 1.0 (2 of 3 seeds)"
    assert cell(60.0) == "60.0 (1 seed)"
    assert cell(None, None, None) == "diverged"


def test_a_single_seed_has_no_error_bar_and_tests_no_claim() -> None:
    found = found_of("heads", seeds=1)
    drawn = draw(found.experiment.figures[0], found.flat, found.experiment.axes)
    traces = [trace for panel in drawn.panels for trace in panel.data if "error_y" in trace]
    assert {bar for trace in traces for bar in trace["error_y"]["array"]} == {None}
    assert all("(1 seed)" in text for trace in traces for text in trace["hovertext"])
    assert {judged.outcome for _, judged in found.verdicts} == {NOT_TESTED}


def row_at(kind: str, *values: float) -> Row:
    return Row({"kind": kind}, {"held out": Sample(values)}, seeds=tuple(range(len(values))))


def test_contrasts_are_listed_with_their_numbers() -> None:
    rows = [row_at("hyla", 70.0, 71.0, 73.0), row_at("softmax", 60.0, 62.0, 61.0)]
    hyla, softmax, linear = ({"kind": kind} for kind in ("hyla", "softmax", "linear"))
    half = Contrast((Term(0.5, hyla), Term(-1.0, softmax)))
    contrasts = (above(hyla, softmax), at_most(80.0, hyla), half, above(hyla, linear))
    claim = Claim("A claim", contrasts)
    judged = judge(claim, rows)
    cells = re.findall("<t[dh][^>]*>(.*?)</t[dh]>", with_evidence(claim, judged))[7:]
    lines = [cells[i : i + 7] for i in range(0, len(cells), 7)]
    (low, high), (_, upper, *_) = judged.comparisons[0].interval, lines[1]
    interval = f"{rounded(low)} to {rounded(high)}"
    assert lines[0][1:] == ["above 0", "10.3", interval, "3", "yes", SUPPORTED]
    assert upper == "below 80"
    assert lines[1][2] == "71.3"  # not with the opposite sign, as it is tested
    texts = [line[0] for line in lines]
    assert texts[:2] == ["hyla: held out \N{MINUS SIGN} softmax: held out", "hyla: held out"]
    assert texts[2].startswith("0.5 \N{MULTIPLICATION SIGN} hyla")
    assert lines[3][1:] == ["above 0", "", "", "", "", NOT_TESTED]
    values = json.loads(json.dumps(as_json(claim, judged)))
    assert [one["outcome"] for one in values["comparisons"]] == [line[6] for line in lines]
    assert values["comparisons"][0]["value"] == judged.comparisons[0].value
    assert values["comparisons"][0]["contrast"]["terms"][0]["axes"] == hyla


@pytest.mark.usefixtures("small_library")
def test_a_page_without_results_has_commands(tmp_path: Path) -> None:
    content = load(tmp_path / "runs", tmp_path / "none")
    assert {one.experiment.name for one in content.found} == {*EXPERIMENTS} - DEMOS
    assert counts(content.found)[NOT_TESTED] == sum(counts(content.found).values()) > 20
    (problem,) = content.problems
    assert str(tmp_path / "none") in problem
    page = render(tmp_path / "runs", tmp_path / "none")
    for one in content.found:
        assert f"<code>hyla reproduce {one.experiment.name}</code>" in page
    assert not load(tmp_path / "runs", None).problems


@pytest.mark.usefixtures("small_library")
def test_demonstrations_are_shown_apart_and_not_counted(tmp_path: Path) -> None:
    found = load(*write_results(tmp_path, ("demo",))).found
    assert found[0].experiment.name == "demo"
    assert found[0].verdicts[0][1].outcome in OUTCOMES
    assert counts(found) == counts(load(tmp_path, None).found)
    assert render(*write_results(tmp_path)).count('class="badge"') == 1 + len(DEMOS)


@pytest.mark.usefixtures("small_library")
def test_damage_in_published_files_is_an_error_and_the_old_page_stays(tmp_path: Path) -> None:
    runs, results = write_results(tmp_path, ("heads",))
    output = tmp_path / "page.html"
    write(output, runs, results)
    before = output.read_bytes()
    lines = (results / TRAININGS).read_text().splitlines()
    (results / TRAININGS).write_text("\n".join([*lines[:2], "{", *lines[3:]]))
    with pytest.raises(ValueError, match=rf"{TRAININGS}, line 3"):
        write(output, runs, results)
    assert output.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "results"}


@pytest.mark.usefixtures("small_library")
def test_damaged_runs_are_named_on_the_page(tmp_path: Path) -> None:
    run = tmp_path / "broken"
    (run / "checkpoints").mkdir(parents=True)
    (run / "lock").touch()
    (run / "config.json").write_text("{")
    content = load(tmp_path, None)
    assert [str(run) in problem for problem in content.problems] == [True]
    assert str(run) in render(tmp_path, None)


@pytest.mark.usefixtures("small_library")
def test_markup_in_results_stays_text_and_links_lead_somewhere(tmp_path: Path) -> None:
    page = render(*write_results(tmp_path, extra=HOSTILE))
    assert not re.search("<(img|b|iframe)[ >]", page)
    assert page.count("<script") == 3
    assert page.count("onerror=alert(1)") > 100
    ids = re.findall(' id="([^"]*)"', page)
    assert len(ids) == len({*ids})
    outside, *inside = sorted(re.findall('href="([^"]*)"', page), reverse=True)
    assert outside.startswith("https://arxiv.org/")
    assert {*inside} <= {f"#{one}" for one in ids}


def test_markup_does_not_reach_the_texts_of_plots() -> None:
    plots = [[p.data, p.layout] for _, drawn in drawings(HOSTILE) for p in drawn.panels]
    texts = json.dumps(plots).replace("<br>", "")
    assert "<" not in texts
    assert texts.count("&lt;") > 1000


@pytest.mark.usefixtures("small_library")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, results = write_results(tmp_path, ("ablation", "heads", "ambiguity"), HOSTILE)
    output, figures = tmp_path / "page.html", tmp_path / "figures"
    report(output, runs, results, figures)
    assert f"Page: {output}" in capsys.readouterr().out
    names = {"ablation", "ambiguity-2", "ambiguity", "heads-2", "heads-3", "heads"}
    assert {path.name for path in figures.iterdir()} >= {f"{name}.png" for name in names}
    assert (figures / "heads.png").read_bytes()[1:4] == b"PNG"
    report(output, runs, results, json=True)
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == {"page", "figures", "outcomes", "experiments", "problems"}
    heads = told["experiments"]["heads"]
    assert (heads["points"], heads["measured"]) == (18, 18)
    (verdict,) = heads["verdicts"]
    assert verdict["claim"] == EXPERIMENTS["heads"].claims[0].text
    assert len(verdict["comparisons"]) == 3
    assert {*told["outcomes"]} == {*OUTCOMES}
    page = output.read_bytes()
    for wrong in (results / TRAININGS, results / "nope"):
        with pytest.raises(ValueError, match=r"^results: "):
            report(output, runs, wrong)
    assert output.read_bytes() == page


@pytest.mark.usefixtures("small_library")
def test_the_block_of_a_readme_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, results = write_results(tmp_path, ("ablation",))
    page, file = tmp_path / "page.html", tmp_path / "README.md"
    words = ["report", "--output", page, "--results", results, "--runs", runs, "--readme", file]
    file.write_text("no marks")
    with pytest.raises(SystemExit):
        main([*map(str, words)])
    assert not page.exists()
    text = "before\n" + "between\n".join("stale\n".join(marks(name)) for name in BLOCKS) + "\nafter"
    file.write_text(text)
    for _ in range(2):
        main([*map(str, words)])
    for name in BLOCKS:
        text = filled(text, name, load(runs, results).found)
    assert file.read_text() == text
    assert "stale" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter")


def test_the_block_has_table_1_and_every_claim() -> None:
    found = [found_of(name) for name in EXPERIMENTS]
    text = "\n".join(line for block in BLOCKS.values() for line in block(found))
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    table, claims = cells[1 : 1 + len(ROWS)], cells[2 + len(ROWS) :]
    assert [line[0] for line in table] == [title(*kinds) for kinds in ROWS]
    (rows,) = (one.rows for one in found if one.experiment.name == "ablation")
    means = {rounded(row.main.mean) for row in rows}
    assert {cell.split()[0] for line in table for cell in line[1::2]} == means
    judged = [
        [claim.text, one.experiment.where, verdict.outcome, *numbers]
        for one in found
        if not one.experiment.is_demo
        for claim, verdict in one.verdicts
        for numbers in [map(str, contrast_counts(verdict).values())]
    ]
    assert claims == judged


def test_the_published_results_are_drawn() -> None:
    root = Path(__file__).parents[1]
    found = {one.experiment.name: one for one in load(root / "no-runs", root / "results").found}
    assert found["ablation"].measured == found["ablation"].points
    for one in found.values():
        for figure in one.experiment.figures:
            drawn = draw(figure, one.rows_for(figure), one.experiment.axes)
            assert drawn.panels or drawn.table or one.measured < one.points
