"""The report: figures, verdicts, the page, the command and blocks of Markdown."""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import HOSTILE, records, results_of, write_results

from hyla.cli import main
from hyla.cli.report import report
from hyla.experiments import EXPERIMENTS, HEADLINES
from hyla.experiments.judge import NOT_TESTED, OUTCOMES, SUPPORTED, judge
from hyla.experiments.paper.ablation import ROWS, title
from hyla.experiments.paper.baselines import CEILING
from hyla.experiments.spec import Claim, Contrast, Figure, Row, Term, above, at_most
from hyla.report import _page, load, render, write
from hyla.report.content import (
    Content,
    collect,
    contrast_outcomes,
    evidence,
    outcomes_of_paper,
    verdict_as_json,
)
from hyla.report.figures import DRAWINGS, View, draw, draw_headline
from hyla.report.markdown import BLOCKS, filled, marks
from hyla.report.text import ONE_SEED_SEARCH, mark, mean_of, rounded
from hyla.statistics import Sample
from hyla.train.store import TRAININGS, Search, Store

DEMOS = {name for name, one in EXPERIMENTS.items() if one.is_demo}
TABLES = ("table", "measures", "rules")


def drawings(extra: str = "") -> Iterator[tuple[Figure, View]]:
    for name in EXPERIMENTS:
        results = results_of(name, extra)
        for figure in results.experiment.figures:
            yield figure, draw(figure, results)


def test_every_declared_figure_is_drawn() -> None:
    kinds = set()
    for figure, view in drawings():
        assert (view.drawing is None) == (figure.kind in ("measures", "rules")), figure.title
        assert (view.table is None) == (figure.kind not in TABLES)
        assert view.drawing is None or view.alt
        kinds.add(figure.kind)
    assert kinds == {*DRAWINGS}


def test_lines_show_the_numbers_of_the_rows_in_any_order() -> None:
    results = results_of("heads")
    rows = list(results.rows)
    random.Random(0).shuffle(rows)
    view = draw(results.experiment.figures[0], replace(results, rows=rows))
    axes = view.drawing.axes[0]
    (drawn,) = (one for one in axes.containers if one.get_label() == "hyla")
    mine = sorted((r for r in rows if r.axes["kind"] == "hyla"), key=lambda r: r.axes["heads"])
    line, _, (bars,) = drawn
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4", "8", "16", "32"]
    assert line.get_ydata().tolist() == [row.main.mean for row in mine]
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    for row, (low, high) in zip(mine, ends, strict=True):
        assert (high - low) / 2 == pytest.approx(row.main.standard_error)
    assert [line[-2:] for line in view.numbers.body if line[0] == "hyla"] != []
    ceilings = {row.measures[CEILING].mean for row in rows}
    (dashed,) = (one for one in axes.lines if one.get_linestyle() == "--" and len(one.get_xdata()))
    assert {*dashed.get_ydata()} == ceilings


def test_a_headline_shows_every_seed_the_paper_and_the_control() -> None:
    for headline in HEADLINES:
        rows = results_of(headline.experiment).rows
        view = draw_headline(headline, rows)
        (axes,) = view.drawing.axes
        shown = {x for line in axes.lines for x in line.get_xdata()}
        for name, place in headline.places.items():
            (row,) = (row for row in rows if row.is_at(place))
            assert shown >= {*row.measures[headline.measure].values}
            assert name in view.alt
            if row.paper and headline.experiment == "ablation":
                assert row.paper[0] in shown
            if headline.control:
                assert row.measures[headline.control].mean in shown


def test_the_paper_stands_where_nothing_is_measured() -> None:
    experiment = EXPERIMENTS["ablation"]
    trained, analysed = records(experiment)
    results = collect(experiment, Store(trained[9:], [], analysed))  # three seeds of each row
    assert (results.measured, len(results.expected)) == (23, 26)
    body = draw(experiment.figures[0], results).table.body
    assert [line[0] for line in body] == [title(*kinds) for kinds in ROWS]
    assert body[0][1:3] == ["not measured", "63.3 ± 2.3"]


def test_diverged_and_single_seeds_are_shown_as_such() -> None:
    assert mean_of(Sample((60.0, 61.0, 62.0))) == "61.0 ± 0.6"
    assert mean_of(Sample((60.0, None, 62.0))) == "61.0 ± 1.0 (2 of 3 seeds)"
    assert mean_of(Sample((60.0,))) == "60.0 (1 seed)"
    assert mean_of(Sample((None, None, None))) == "diverged"
    assert mean_of(Sample((9.3,), 0.1)) == "9.30 ± 0.10"  # a known error, not over seeds
    row = results_of("heads").rows[0]
    searches = (Search(4, 3), Search(4, 1), Search(1, 3), None)
    assert [mark(replace(row, search=one)) for one in searches] == ["", ONE_SEED_SEARCH, "", ""]


def test_a_single_seed_has_no_error_bar_and_tests_no_claim() -> None:
    results = results_of("heads", seeds=1)
    view = draw(results.experiment.figures[0], results)
    for container in view.drawing.axes[0].containers:
        for bars in container[2]:
            assert all(low == high for (_, low), (_, high) in bars.get_segments())
    assert all("(1 seed)" in line[-2] for line in view.numbers.body)
    assert {verdict.outcome for _, verdict in results.verdicts} == {NOT_TESTED}


def row_at(kind: str, *values: float) -> Row:
    return Row({"kind": kind}, {"held out": Sample(values)}, seeds=tuple(range(len(values))))


def test_contrasts_are_listed_with_their_numbers() -> None:
    rows = [row_at("hyla", 70.0, 71.0, 73.0), row_at("softmax", 60.0, 62.0, 61.0)]
    hyla, softmax, linear = ({"kind": kind} for kind in ("hyla", "softmax", "linear"))
    half = Contrast((Term(0.5, hyla), Term(-1.0, softmax)))
    contrasts = (above(hyla, softmax), at_most(80.0, hyla), half, above(hyla, linear))
    claim = Claim("A claim", contrasts)
    verdict = judge(claim, rows)
    first, second, third, last = evidence(verdict)
    assert (first.claimed, first.outcome, first.seeds, first.paired) == (
        "above 0",
        SUPPORTED,
        3,
        True,
    )
    assert first.value == pytest.approx(31 / 3)
    assert first.interval == verdict.comparisons[0].interval
    assert second.claimed == "below 80"
    assert second.value == pytest.approx(214 / 3)  # not with the opposite sign, as it is tested
    assert first.text == "hyla: held out \N{MINUS SIGN} softmax: held out"
    assert third.text.startswith("0.5 \N{MULTIPLICATION SIGN} hyla")
    assert (last.outcome, last.value, last.interval) == (NOT_TESTED, None, None)
    values = json.loads(json.dumps(verdict_as_json(claim, verdict)))
    outcomes = [one.outcome for one in (first, second, third, last)]
    assert [one["outcome"] for one in values["comparisons"]] == outcomes
    assert values["comparisons"][0]["contrast"]["terms"][0]["axes"] == hyla


def test_a_page_without_results_has_commands(tmp_path: Path) -> None:
    content = load(tmp_path / "runs", tmp_path / "none")
    assert {one.experiment.name for one in content.results} == {*EXPERIMENTS} - DEMOS
    counts = outcomes_of_paper(content)
    assert counts[NOT_TESTED] == sum(counts.values()) > 20
    (problem,) = content.problems
    assert str(tmp_path / "none") in problem
    page = render(tmp_path / "runs", tmp_path / "none")
    for one in content.results:
        assert f"<code>hyla reproduce {one.experiment.name}</code>" in page
    assert not load(tmp_path / "runs", None).problems


def test_demonstrations_are_not_counted(tmp_path: Path) -> None:
    content = load(*write_results(tmp_path, ("demo",)))
    assert content.results[0].experiment.name == "demo"
    assert content.results[0].verdicts[0][1].outcome in OUTCOMES
    assert outcomes_of_paper(content) == outcomes_of_paper(load(tmp_path, None))
    assert render(tmp_path / "runs", tmp_path / "results").count('class="badge"') == 1


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


def test_damaged_runs_are_named_on_the_page(tmp_path: Path) -> None:
    run = tmp_path / "broken"
    (run / "checkpoints").mkdir(parents=True)
    (run / "lock").touch()
    (run / "config.json").write_text("{")
    content = load(tmp_path, None)
    assert [str(run) in problem for problem in content.problems] == [True]
    assert str(run) in render(tmp_path, None)


def test_markup_in_results_stays_text_and_links_lead_somewhere(tmp_path: Path) -> None:
    page = render(*write_results(tmp_path, ("ablation", "heads", "codes-sraven"), HOSTILE))
    assert not re.search("<(img|b|iframe|script)[ >]", page)
    assert page.count("onerror=alert(1)") > 50
    ids = re.findall(' id="([^"]*)"', page)
    assert len(ids) == len({*ids})
    outside, *inside = sorted(re.findall(' href="([^"]*)"', page), reverse=True)
    assert outside.startswith("https://arxiv.org/")
    assert {*inside} <= {f"#{one}" for one in ids}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, results = write_results(tmp_path, ("heads", "ambiguity"), HOSTILE)
    output, figures = tmp_path / "page.html", tmp_path / "figures"
    report(output, runs, results, figures)
    assert f"Page: {output}" in capsys.readouterr().out
    names = {"ambiguity-2", "ambiguity", "heads-2", "heads-3", "heads"}
    files = {path.name for path in figures.iterdir()}
    assert files >= {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert (figures / "heads.png").read_bytes()[1:4] == b"PNG"
    report(output, runs, results, json=True)
    given = json.loads(capsys.readouterr().out)
    assert given.keys() == {"page", "figures", "outcomes", "experiments", "problems"}
    heads = given["experiments"]["heads"]
    assert (heads["points"], heads["measured"]) == (18, 18)
    (verdict,) = heads["verdicts"]
    assert verdict["claim"] == EXPERIMENTS["heads"].claims[0].text
    assert len(verdict["comparisons"]) == 3
    assert {*given["outcomes"]} == {*OUTCOMES}
    page = output.read_bytes()
    for wrong in (results / TRAININGS, results / "nope"):
        with pytest.raises(ValueError, match=r"^results: "):
            report(output, runs, wrong)
    assert output.read_bytes() == page


def test_blocks_of_a_file_are_replaced(tmp_path: Path) -> None:
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
        text = filled(text, name, load(runs, results).results)
    assert file.read_text() == text
    assert "stale" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter")


def test_the_blocks_have_table_1_and_every_claim() -> None:
    found = [results_of(name) for name in EXPERIMENTS]
    text = "\n".join(line for block in BLOCKS.values() for line in block(found))
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    table, claims = cells[1 : 1 + len(ROWS)], cells[2 + len(ROWS) :]
    assert [line[0] for line in table] == [title(*kinds) for kinds in ROWS]
    (rows,) = (one.rows for one in found if one.experiment.name == "ablation")
    means = {rounded(row.main.mean) for row in rows}
    assert {cell.split()[0] for line in table for cell in line[1::3]} == means
    judged = [
        [claim.text, one.experiment.where, verdict.outcome, *numbers]
        for one in found
        if not one.experiment.is_demo
        for claim, verdict in one.verdicts
        for numbers in [map(str, contrast_outcomes(verdict).values())]
    ]
    assert claims == judged


@pytest.fixture(scope="module")
def published() -> Content:
    root = Path(__file__).parents[1]
    return load(root / "no-runs", root / "results")


def test_the_published_results_are_drawn(published: Content) -> None:
    found = {one.experiment.name: one for one in published.results}
    assert found["ablation"].measured == len(found["ablation"].expected)
    assert found["ablation"].as_published
    assert len(published.headlines) == len(HEADLINES)


def test_the_page_of_the_published_results_is_small() -> None:
    root = Path(__file__).parents[1]
    assert len(render(root / "no-runs", root / "results")) < 2e6


def test_local_results_stand_first(tmp_path: Path) -> None:
    """A run of one's own is listed once, beside the paper's value; nothing is said of others."""
    trained, analysed = records(EXPERIMENTS["ablation"])
    mine = [replace(one, path=tmp_path) for one in trained]
    results = collect(EXPERIMENTS["ablation"], Store([], mine, analysed))
    page = _page(Content([results], [], [], tmp_path))
    yours = page.index('id="yours"')
    assert yours < page.index('id="ablation"')
    assert page.count("<svg") == 1
    assert "63.3 ± 2.3" in page[yours : page.index('id="ablation"')]
    assert "Published results were trained" not in page


def test_numbers_in_the_alternative_text_are_rounded_not_cut() -> None:
    rows = [row_at("hyla", 0.0571, 0.0573, 0.0575)]
    headline = replace(HEADLINES[0], places={"HYLA": {"kind": "hyla"}})
    view = draw_headline(headline, rows)
    (label,) = re.findall('aria-label="([^"]*)"', view.svg)
    assert f"HYLA {mean_of(rows[0].main)}" in label
    assert "0.057" in label
