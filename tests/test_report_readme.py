"""The README's part of the results."""

import json
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from test_report_rows import RULES, rows_of, write_results

from hyla.cli import main
from hyla.experiments import EXPERIMENTS
from hyla.experiments.declare import Claim, Verdict
from hyla.experiments.judge import find
from hyla.experiments.results import read_rows
from hyla.report import load, render
from hyla.report.beyond import ABOUT, ABOUT_YARDSTICKS, beyond
from hyla.report.found import Found
from hyla.report.markdown import claims_block, marks, results_block, update

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("grid", "x"), ("grid", [3]), ("ceiling", None), ("measures", {}), ("per_seed", "x"),
        ("feature_accuracy_by_rule", None), ("active_units", 3), ("solver_by_rule", True),
        ("mean", 10**400), ("ceiling", float("nan")), ("solver_by_rule", {"addition": 1.0}),
        ("solver_by_rule", dict.fromkeys(RULES, float("nan"))),
    ],
)  # fmt: skip
def test_an_odd_row_does_not_stop_what_is_said_of_the_others(name: str, odd: Any) -> None:
    rows = [row for row in rows_of(EXPERIMENTS["ablation"]) if row["task"] == "SRAVEN"]
    whole = _lines(rows)
    rows[1] |= {name: odd}
    lines, (_, notes) = _lines(rows), beyond(rows)
    damaged = [note for note in notes if "damaged" in note]
    assert len(whole) == len(rows) + 1 == len(lines) + len(damaged)
    assert [line in whole for line in lines].count(False) <= 1
    assert [rows[1]["row"] in note for note in damaged] == [True] * (name != "grid")
    assert [lines[0], *lines[-2:]] == [whole[0], *whole[-2:]]


def _lines(rows: list[Any]) -> list[Any]:
    grid, _ = beyond(rows)
    assert grid is not None
    return [*grid.body]


def test_yardsticks_stand_below_the_solver() -> None:
    ablation = next(one for one in load(ROOT / "results", ROOT / "none") if one.rows)
    assert ablation.experiment.name == "ablation"
    grid, told = beyond(ablation.rows, ablation.beside)
    alone, notes = beyond(ablation.rows)
    assert grid is not None
    assert alone is not None
    assert [line[0] for line in grid.body[-3:]] == ["exact solver", "slot by slot", "no sign"]
    assert grid.body[:-2] == alone.body
    assert told == [ABOUT_YARDSTICKS, *notes]
    page = unescape(render(ROOT / "results", ROOT / "none"))
    assert ABOUT_YARDSTICKS in page[page.index('id="ablation"') :]
    damaged = [ablation.beside[0] | {"feature_accuracy_by_rule": None}, ablation.beside[1]]
    grid, told = beyond(ablation.rows, damaged)
    assert grid is not None
    assert [line[0] for line in grid.body[-2:]] == ["exact solver", "no sign"]
    assert [note for note in told if note.startswith("slot by slot: the row is damaged")]


def test_no_sound_row_means_no_table() -> None:
    assert beyond([]) == (None, [])
    rows = [row for row in rows_of(EXPERIMENTS["ablation"]) if row["task"] == "SRAVEN"][:1]
    table, notes = beyond([rows[0] | {"ceiling": None}])
    assert table is None
    assert [rows[0]["row"] in note for note in notes] == [True]


def test_seeds_that_diverged_are_told_in_the_table(tmp_path: Path) -> None:
    rows = rows_of(EXPERIMENTS["ablation"])
    (tmp_path / "ablation.json").write_text(json.dumps(rows))
    assert "of 3 seeds" not in results_block(load(tmp_path, tmp_path / "runs"))
    rows[0]["per_seed"] = [60.0, None, 62.0]
    (tmp_path / "ablation.json").write_text(json.dumps(rows))
    assert "(2 of 3 seeds) |" in results_block(load(tmp_path, tmp_path / "runs"))
    assert "(2 of 3 seeds)" in render(tmp_path, tmp_path / "runs")


def test_a_row_searched_on_one_seed_is_marked(tmp_path: Path) -> None:
    rows = rows_of(EXPERIMENTS["ablation"])
    rows[0] |= {"search": "first-seed"}
    (tmp_path / "ablation.json").write_text(json.dumps(rows))
    assert "†" not in results_block(load(*write_results(tmp_path / "full", dict)))
    lines = results_block(load(tmp_path, tmp_path / "runs")).splitlines()
    assert sum(" † |" in line for line in lines) == 1
    page = render(tmp_path, tmp_path / "runs")
    assert page.count(" †<") == page.count("† The grid was searched on the first seed only,") == 1
    assert any(line.startswith("† ") and "experts" in line for line in lines)


def test_every_claim_has_one_line_and_what_is_missing_its_command(tmp_path: Path) -> None:
    rows = [row | {"scale": "paper"} for row in rows_of(EXPERIMENTS["ablation"])]
    (tmp_path / "ablation.json").write_text(json.dumps(rows))
    found = load(tmp_path, tmp_path / "runs")
    lines, sections = results_block(found).splitlines(), claims_block(found).split("\n## ")
    for experiment in EXPERIMENTS.values():
        for claim in experiment.claims:
            told = [x for x in lines if x.startswith(f"| {claim.text} ({experiment.where}) | ")]
            assert len(told) == ("paper" in experiment.scales), claim.text
            heading = f"{experiment.title} ({experiment.where})".lower()
            place = "".join(c for c in heading if c.isalnum() or c in " -").replace(" ", "-")
            end = f" | not measured | [how](docs/claims.md#{place}) |"
            missing = [line for line in told if line.endswith(end)]
            assert missing == (told if experiment.name != "ablation" else [])
            inside = [x for x in sections if x.split("\n")[0].endswith(f" ({experiment.where})")]
            assert len(inside) == len(told)
            for section in inside:
                assert f": {claim.text}.**" in section
                command = f"**Not measured: {claim.text}.**\n\n- `hyla reproduce {experiment.name} "
                assert (f"{command}--scale paper`\n" in section) == bool(missing)


def test_each_comparison_of_a_claim_is_listed() -> None:
    each = ("label 0; with: marks: 1.0 against 0.0", "label 1: 2.0 against 1.0, holds")
    verdict = Verdict("in part", "R2 lost, some hold (an aside; another)", each)
    claim = Claim("A claim", lambda rows: verdict)
    experiment = replace(EXPERIMENTS["fuzzy"], where="figure 0")
    found = Found(experiment, "paper", rows_of(experiment), verdicts=[(claim, verdict)])
    assert f"| A claim (figure 0) | in part | {verdict.summary} |\n" in results_block([found])
    listed = "".join(f"- {text}\n" for text in each)
    whole = f"**In part: A claim.** {verdict.summary}\n\n{listed}"
    assert claims_block([found]) == f"## {experiment.title} (figure 0)\n\n{whole}"
    smaller = replace(found, scale="smoke")  # says nothing of the paper's claim
    place = "docs/claims.md#fuzzy-logic-examples-in-context-and-fraction-held-out-figure-0"
    line = f"| A claim (figure 0) | not measured | [how]({place}) |\n"
    assert line in results_block([smaller])
    assert all(text not in claims_block([smaller]) for text in (verdict.summary, *each))
    assert "- `hyla reproduce fuzzy --scale paper`\n" in claims_block([smaller])


def test_rows_that_cannot_be_judged_break_no_table_and_have_their_command() -> None:
    verdict = Verdict("not measured", "rows could not be judged (KeyError: 'a|b\nc')")
    claim = Claim("A claim", lambda rows: verdict)
    experiment = replace(EXPERIMENTS["fuzzy"], where="figure 0")
    found = Found(experiment, "paper", rows_of(experiment), verdicts=[(claim, verdict)])
    assert "(KeyError: 'a\\|b c') |\n" in results_block([found])
    assert "- `hyla reproduce fuzzy --scale paper`\n" in claims_block([found])


def test_the_command_writes_each_block_between_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, runs = write_results(tmp_path, dict)
    file, page, found = tmp_path / "both.md", tmp_path / "page.html", load(results, runs)
    words = ["hyla", "report", "--output", page, "--results", results, "--runs", runs]
    monkeypatch.setattr(
        "sys.argv", [*map(str, words), "--readme", str(file), "--claims", str(file)]
    )
    file.write_text("".join(marks("results")) + "\n")
    with pytest.raises(SystemExit):
        main()  # the marks of claims are missing
    assert not page.exists()
    file.write_text("".join(marks("results")) + "\n" + "".join(marks("claims")) + "\n")
    main()
    (first, end), (begin, last) = marks("results"), marks("claims")
    blocks = f"{first}{results_block(found)}{end}\n{begin}{claims_block(found)}{last}\n"
    assert file.read_text() == blocks
    assert page.exists()


def test_the_block_of_a_readme_is_replaced(tmp_path: Path) -> None:
    results, runs = write_results(tmp_path, dict)
    file = tmp_path / "README.md"
    begin, end = marks("results")
    file.write_text(f"before\n{begin}stale\n{end}\nafter\n")
    for _ in range(2):
        update(file, "results", results_block(load(results, runs)))
        text = file.read_text()
        assert text.startswith(f"before\n{begin}| held out")
        assert text.endswith(f"{end}\nafter\n")
        assert "stale" not in text
    parts = text.split("\nOf 31 claims")[0], text.split(ABOUT)[1]
    tables = [[line for line in part.splitlines() if line.startswith("| ")] for part in parts]
    assert [len(lines) for lines in tables] == [14, 2 + 13 + 1]  # the table's own, and the solver
    assert "HYLA has dead value networks, never on: layer 2 of the model with" in text
    # Never rounded up: what is said of all other rules holds for the least of them.
    hyla = find(load(results, runs)[0].rows, row="HYLA", task="SRAVEN")
    assert hyla is not None
    line = next(line for line in tables[1] if line.startswith("| HYLA |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    head = [cell.strip() for cell in tables[1][0].strip("|").split("|")]
    means = {rule: one["mean"] for rule, one in hyla["feature_accuracy_by_rule"].items()}
    named = head[2:5]
    assert named == [*reversed(RULES[-3:])]  # the least learned of all rows
    assert cells[2:5] == [f"{means[rule]:.0f}" for rule in named]
    others = min(mean for rule, mean in means.items() if rule not in named)
    assert cells[5] == f"{int(10 * others) / 10} or more"
    assert cells[-1] == "7.2 to 98.8 (2)"
    assert float(cells[1]) == pytest.approx(hyla["ceiling"] - hyla["mean"], abs=0.051)
    solver = [cell.strip() for cell in tables[1][-1].strip("|").split("|")]
    best = hyla["solver_by_rule"]
    assert solver[:5] == [
        "exact solver",
        f"(at {hyla['ceiling']:.1f})",
        *(f"{best[r]:.0f}" for r in named),
    ]
    page = render(results, runs)
    assert all(f">{cell}<" in page for cell in [*cells, *solver] if cell not in ("", "-"))
    assert "HYLA has dead value networks" in page
    assert ABOUT in text
    assert ABOUT in unescape(page)
    file.write_text("no marks")
    with pytest.raises(ValueError, match="expected a file with the lines"):
        update(file, "results", results_block(load(results, runs)))
    assert file.read_text() == "no marks"


def test_the_grid_of_a_result_says_why_its_setting_was_chosen() -> None:
    rows = [row for name in EXPERIMENTS for row in read_rows(ROOT / "results" / f"{name}.json")]
    grids = [row for row in rows if "grid" in row]
    assert len(grids) > 40
    for row in grids:
        losses = [setting["validation_loss"] for setting in row["grid"]]
        best = row["grid"][losses.index(min(losses))]
        assert row["hyperparameters"].items() <= best.items(), row["command"]
        assert best["held_out"] == pytest.approx(row["mean"])
