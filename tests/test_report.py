"""The report: figures, verdicts, the page, the command and blocks of Markdown."""

import json
import math
import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from synthetic import HOSTILE, records, results_of, write_results

from hyla.cli import main
from hyla.cli.report import report
from hyla.experiments import EXPERIMENTS, HEADLINES
from hyla.experiments.judge import NOT_TESTED, OUTCOMES, SUPPORTED, judge
from hyla.experiments.paper.ablation import ROWS, title
from hyla.experiments.paper.baselines import CEILING
from hyla.experiments.paper.runs import sraven_run
from hyla.experiments.spec import Claim, Contrast, Row, Term, above, at_most
from hyla.report import Content, load, render, write
from hyla.report.content import Results, collect
from hyla.report.figures import DRAWINGS, draw, draw_headline, has_data
from hyla.report.markdown import BLOCKS, filled, marks
from hyla.report.tables import evidence
from hyla.report.text import ONE_SEED_SEARCH, mark, mean_of, rounded
from hyla.statistics import Sample
from hyla.train.config import Member
from hyla.train.folder import RunFolder
from hyla.train.store import TRAININGS, Search, Store

ROOT = Path(__file__).parents[1]


@cache
def results(name: str) -> Results:
    """Synthetic results of an experiment, made once."""
    return results_of(name)


@cache
def hostile_page() -> str:
    """A page with every kind of figure and all headlines; texts are markup, a number is NaN."""
    found = [results_of(name, HOSTILE) for name in ("ablation", "heads", "codes-sraven")]
    ways = replace(found[2].experiment, figures=found[2].experiment.figures[:8])
    found[2] = replace(found[2], experiment=ways)
    first, *others = found[1].rows
    nan = replace(first, measures=dict.fromkeys(first.measures, Sample((math.nan,))))
    found[1] = replace(found[1], rows=[nan, *others])
    next(row for row in found[2].rows if "matrix" in row.picture).picture["matrix"][0][0] = math.nan
    rows = {one.experiment.name: one.rows for one in found}
    headlines = [(h, rows[h.experiment], judge(h.claim, rows[h.experiment])) for h in HEADLINES]
    found.append(results_of("ambiguity", HOSTILE))
    return render(Content(found, headlines, [HOSTILE], Path(HOSTILE[:-1])))


@pytest.fixture(scope="module")
def published() -> Content:
    return load(ROOT / "no-runs", ROOT / "results")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only three of the experiments, since looking for the results of all takes seconds."""
    chosen = {name: EXPERIMENTS[name] for name in ("heads", "ambiguity", "demo")}
    monkeypatch.setattr("hyla.report.content.EXPERIMENTS", chosen)
    monkeypatch.setattr("hyla.report.content.HEADLINES", ())


def test_every_declared_figure_has_data() -> None:
    for name, experiment in EXPERIMENTS.items():
        axes = {axis for row in results(name).rows for axis in row.axes}
        for figure in experiment.figures:
            rows = [row for row in results(name).rows if row.is_at(figure.where)]
            assert any(has_data(figure, row) for row in rows), figure.title
            if figure.kind != "rules":
                names = {figure.x, figure.colour, figure.facet} - {""}
                assert names <= axes, figure.title


def test_every_kind_of_figure_is_drawn() -> None:
    some = ("ablation", "heads", "codes-fuzzy", "codes-sraven", "ambiguity", "demo")
    figures = {one.kind: (name, one) for name in some for one in EXPERIMENTS[name].figures}
    assert figures.keys() == DRAWINGS.keys()
    for kind, (name, figure) in figures.items():
        view = draw(figure, results(name))
        assert (view.drawing is None) == (kind in ("measures", "rules"))
        assert (view.table is not None) == (kind in ("table", "measures", "rules"))
        assert figure.title in view.alt
        assert draw(figure, replace(results(name), rows=[])).drawing is None


def test_lines_show_the_numbers_of_the_rows_in_any_order() -> None:
    rows = list(results("heads").rows)
    random.Random(0).shuffle(rows)
    shuffled = replace(results("heads"), rows=rows)
    view = draw(shuffled.experiment.figures[0], shuffled)
    axes = view.drawing.axes[0]
    (drawn,) = (one for one in axes.containers if one.get_label() == "hyla")
    mine = sorted((r for r in rows if r.axes["kind"] == "hyla"), key=lambda r: r.axes["heads"])
    line, _, (bars,) = drawn
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4", "8", "16", "32"]
    assert line.get_ydata().tolist() == [row.main.mean for row in mine]
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    for row, (low, high) in zip(mine, ends, strict=True):
        assert (high - low) / 2 == pytest.approx(row.main.standard_error)
    cells = [[shuffled.place(row), mean_of(row.main)] for row in rows]
    assert [list(line[:2]) for line in view.numbers.body] == cells
    ceilings = {row.measures[CEILING].mean for row in rows}
    (dashed,) = (one for one in axes.lines if one.get_linestyle() == "--" and len(one.get_xdata()))
    assert {*dashed.get_ydata()} == ceilings


def test_bars_show_the_means_and_each_seed() -> None:
    view = draw(EXPERIMENTS["demo"].figures[0], results("demo"))
    (axes,) = view.drawing.axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == [row.main.mean for row in results("demo").rows]
    dots = {y for line in axes.lines for y in line.get_ydata()}
    assert dots >= {value for row in results("demo").rows for value in row.main.values}


def test_a_headline_shows_every_seed_the_paper_and_the_control() -> None:
    for headline in HEADLINES:
        rows = results(headline.experiment).rows
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
    found = collect(experiment, Store(trained[9:], [], analysed))  # three seeds of each row
    assert (found.measured, len(found.points)) == (23, 26)
    body = draw(experiment.figures[0], found).table.body
    assert [line[0] for line in body] == [title(*kinds) for kinds in ROWS]
    assert body[0][3] == "63.3 ± 2.3"
    assert [line[1][0].isdigit() for line in body] == [False] * 3 + [True] * 10


def test_diverged_and_single_seeds_are_shown_as_such() -> None:
    assert mean_of(Sample((60.0, 61.0, 62.0))) == "61.0 ± 0.6"
    assert mean_of(Sample((60.0, None, 62.0))) == "61.0 ± 1.0 (2 of 3 seeds)"
    assert mean_of(Sample((60.0,))) == "60.0 (1 seed)"
    assert mean_of(Sample((None, None, None))) == "diverged"
    assert mean_of(Sample((9.3,), 0.1)) == "9.30 ± 0.10"  # a known error, not over seeds
    row = results("heads").rows[0]
    searches = (Search(4, 3), Search(4, 1), Search(1, 3), None)
    assert [mark(replace(row, search=one)) for one in searches] == ["", ONE_SEED_SEARCH, "", ""]


def test_a_single_seed_has_no_error_bar_and_tests_no_claim() -> None:
    found = results_of("heads", seeds=1)
    view = draw(found.experiment.figures[0], found)
    for container in view.drawing.axes[0].containers:
        for bars in container[2]:
            assert all(low == high for (_, low), (_, high) in bars.get_segments())
    assert all("(1 seed)" in line[-2] for line in view.numbers.body)
    assert {verdict.outcome for _, verdict in found.verdicts} == {NOT_TESTED}


def row_at(kind: str, *values: float) -> Row:
    return Row({"kind": kind}, {"held out": Sample(values)}, seeds=tuple(range(len(values))))


def test_contrasts_are_listed_with_their_numbers() -> None:
    rows = [row_at("hyla", 70.0, 71.0, 73.0), row_at("softmax", 60.0, 62.0, 61.0)]
    hyla, softmax, linear = ({"kind": kind} for kind in ("hyla", "softmax", "linear"))
    half = Contrast((Term(0.5, hyla), Term(-1.0, softmax)))
    contrasts = (above(hyla, softmax), at_most(80.0, hyla), half, above(hyla, linear))
    verdict = judge(Claim("A claim", contrasts), rows)
    first, second, third, last = evidence(verdict).body
    interval = " to ".join(map(rounded, verdict.comparisons[0].interval))
    text = "hyla: held out \N{MINUS SIGN} softmax: held out"
    assert first == [text, "above 0", SUPPORTED, rounded(31 / 3), interval, "3", "yes"]
    assert second[1] == "below 80"
    assert second[3] == rounded(214 / 3)  # not with the opposite sign, as it is tested
    assert third[0].startswith("0.5 \N{MULTIPLICATION SIGN} hyla")
    assert last[2:] == [NOT_TESTED, "-", "", "", "no"]


@pytest.mark.usefixtures("few")
def test_a_page_without_results_has_commands(tmp_path: Path) -> None:
    content = load(tmp_path / "runs", tmp_path / "none")
    assert {one.experiment.name for one in content.results} == {"heads", "ambiguity"}
    assert content.outcomes[NOT_TESTED] == sum(content.outcomes.values()) > 1
    (problem,) = content.problems
    assert str(tmp_path / "none") in problem
    page = render(content)
    for one in content.results:
        assert f"<code>hyla reproduce {one.experiment.name}</code>" in page
    assert not load(tmp_path / "runs", None).problems


@pytest.mark.usefixtures("few")
def test_demonstrations_are_not_counted(tmp_path: Path) -> None:
    content = load(*write_results(tmp_path, ("demo",)))
    assert content.results[0].experiment.name == "demo"
    assert content.results[0].verdicts[0][1].outcome in OUTCOMES
    assert content.outcomes == load(tmp_path, None).outcomes
    assert render(content).count('class="badge"') == 1


@pytest.mark.usefixtures("few")
def test_damage_in_published_files_is_an_error_and_the_old_page_stays(tmp_path: Path) -> None:
    runs, folder = write_results(tmp_path, ("heads",))
    output = tmp_path / "page.html"
    output.write_text("before")
    lines = (folder / TRAININGS).read_text().splitlines()
    (folder / TRAININGS).write_text("\n".join([*lines[:2], "{", *lines[3:]]))
    with pytest.raises(ValueError, match=rf"{TRAININGS}, line 3"):
        write(output, runs, folder)
    assert output.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "results"}


@pytest.mark.usefixtures("few")
def test_damaged_runs_and_runs_in_progress_are_on_the_page(tmp_path: Path) -> None:
    run = tmp_path / "broken"
    (run / "checkpoints").mkdir(parents=True)
    (run / "lock").touch()
    (run / "config.json").write_text("{")
    config = sraven_run((Member(),))
    with RunFolder.open(tmp_path / "unfinished", config.to_dict(), {}) as folder:
        folder.save_checkpoint(8, {})
        page = render(content := load(tmp_path, None))
    assert [str(run) in problem for problem in content.problems] == [True]
    assert str(run) in page
    cells = re.findall(r"<t[dh][^>]*>([^<]*)", page[page.index('id="runs"') :])
    assert cells[cells.index("unfinished") :][1:5] == [
        *("running", "sraven", config.model.kind, f"8/{config.steps:,}")
    ]


def test_markup_stays_text_and_every_figure_has_a_text() -> None:
    page = hostile_page()
    assert not re.search("<(img|b|iframe|script)[ >]", page)
    assert page.count("onerror=alert(1)") > 50
    assert not re.search(r"\bnan\b", page, re.IGNORECASE)
    ids = re.findall(' id="([^"]*)"', page)
    assert len(ids) == len({*ids})
    outside, *inside = sorted(re.findall(' href="([^"]*)"', page), reverse=True)
    assert outside.startswith("https://arxiv.org/")
    assert {*inside} <= {f"#{one}" for one in ids} | {"#codes-depth"}
    texts = re.findall('<svg role="img" aria-label="([^"]+)"', page)
    assert len(texts) == page.count("<svg") == page.count('class="drawing"') > 15


@pytest.mark.usefixtures("few")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, folder = write_results(tmp_path, ("heads", "ambiguity"), HOSTILE)
    output, figures = tmp_path / "page.html", tmp_path / "figures"
    report(output, runs, folder, figures)
    assert f"Page: {output}" in capsys.readouterr().out
    names = {"ambiguity-2", "ambiguity", "heads-2", "heads-3", "heads"}
    files = {path.name for path in figures.iterdir()}
    assert files == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert (figures / "heads.png").read_bytes()[1:4] == b"PNG"
    report(output, runs, folder, json=True)
    given = json.loads(capsys.readouterr().out)
    assert given.keys() == {"page", "figures", "outcomes", "experiments", "problems"}
    heads = given["experiments"]["heads"]
    assert (heads["points"], heads["measured"]) == (18, 18)
    (verdict,) = heads["verdicts"]
    assert verdict["claim"] == EXPERIMENTS["heads"].claims[0].text
    assert {one["outcome"] for one in verdict["comparisons"]} <= {*OUTCOMES}
    assert verdict["comparisons"][0]["contrast"]["terms"][0]["axes"]
    assert {*given["outcomes"]} == {*OUTCOMES}
    page = output.read_bytes()
    for wrong in (folder / TRAININGS, folder / "nope"):
        with pytest.raises(ValueError, match=r"^results: "):
            report(output, runs, wrong)
    assert output.read_bytes() == page


def test_blocks_of_a_file_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyla.report.content.EXPERIMENTS", {"ablation": EXPERIMENTS["ablation"]})
    monkeypatch.setattr("hyla.report.content.HEADLINES", ())
    runs, folder = write_results(tmp_path, ("ablation",))
    page, file = tmp_path / "page.html", tmp_path / "README.md"
    words = ["report", "--output", page, "--results", folder, "--runs", runs, "--readme", file]
    file.write_text("no marks")
    with pytest.raises(SystemExit):
        main([*map(str, words)])
    assert not page.exists()
    text = "before\n" + "between\n".join("stale\n".join(marks(name)) for name in BLOCKS) + "\nafter"
    file.write_text(text)
    for _ in range(2):
        main([*map(str, words)])
    for name in BLOCKS:
        text = filled(text, name, load(runs, folder).results)
    assert file.read_text() == text
    assert "stale" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter")


def test_the_blocks_have_table_1_and_every_claim() -> None:
    found = [results(name) for name in EXPERIMENTS]
    text = "\n".join(line for block in BLOCKS.values() for line in block(found))
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    table, claims = cells[1 : 1 + len(ROWS)], cells[2 + len(ROWS) :]
    assert [line[0] for line in table] == [title(*kinds) for kinds in ROWS]
    means = {rounded(row.main.mean) for row in results("ablation").rows}
    assert {cell.split()[0] for line in table for cell in line[1::3]} == means
    paper = [one for one in found if not one.experiment.is_demo]
    judged = [verdict for one in paper for verdict in one.verdicts]
    assert [line[::2][:2] for line in claims] == [[c.text, v.outcome] for c, v in judged]
    counts = [len(v.comparisons) + len(v.untested) for _, v in judged]
    assert [sum(map(int, line[3:])) for line in claims] == counts


def test_the_page_of_the_published_results_is_complete_and_small(published: Content) -> None:
    found = {one.experiment.name: one for one in published.results}
    assert found["ablation"].measured == len(found["ablation"].points)
    assert found["ablation"].as_published
    assert len(published.headlines) == len(HEADLINES)
    page = render(published)
    assert len(page.encode()) < 2e6
    assert page.count("<svg") == len(re.findall('<svg role="img" aria-label="[^"]+"', page)) > 50


def test_local_results_stand_first(tmp_path: Path) -> None:
    """A local run is listed once, beside the paper's value, and not as a published one."""
    trained, analysed = records(EXPERIMENTS["ablation"])
    mine = [replace(one, path=tmp_path) for one in trained]
    found = collect(EXPERIMENTS["ablation"], Store([], mine, analysed))
    page = render(Content([found], [], [], tmp_path))
    yours = page.index('id="yours"')
    assert yours < page.index('id="ablation"')
    assert page.count("<svg") == 1
    assert "63.3 ± 2.3" in page[yours : page.index('id="ablation"')]
    assert trained[0].origin.date not in page


def test_numbers_in_the_alternative_text_are_rounded_not_cut() -> None:
    rows = [row_at("hyla", 0.0571, 0.0573, 0.0575)]
    headline = replace(HEADLINES[0], places={"HYLA": {"kind": "hyla"}})
    view = draw_headline(headline, rows)
    (label,) = re.findall('aria-label="([^"]*)"', view.svg)
    assert f"HYLA {mean_of(rows[0].main)}" in label
    assert "0.057" in label
