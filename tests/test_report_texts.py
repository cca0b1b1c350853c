"""What the report says in words: evidence on the first screen, and notes."""

import json
import random
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from test_report_rows import rows_of, write_results

from hyla.experiments import EXPERIMENTS
from hyla.experiments.ablation import ABLATION
from hyla.experiments.declare import Verdict
from hyla.experiments.judge import find
from hyla.experiments.sraven import ATTENTIONS
from hyla.report import load, render, static
from hyla.report.figures import draw
from hyla.report.parts import Plots
from hyla.report.sections import experiment_section
from hyla.report.summary import first_screen, verdict

ROOT = Path(__file__).parents[1]


def test_the_first_screen_has_all_of_the_evidence(tmp_path: Path) -> None:
    found = load(*write_results(tmp_path))
    text = unescape(first_screen(found)).replace('</summary><span class="evidence">', ": ")
    judged = [one for experiment in found for _, one in experiment.verdicts if one.evidence]
    assert len(judged) > 10
    for one in judged:
        assert f"<summary>Evidence: {one.evidence}</span>" in text


def test_what_went_wrong_stays_in_one_piece() -> None:
    claim = EXPERIMENTS["ablation"].claims[0]
    reason = "rows could not be judged (KeyError: mean)"
    assert f">{reason}<" in verdict(claim, Verdict("not measured", reason), "paper", " (link)")
    assert "<details" not in verdict(claim, Verdict("in part", "1 of 2 hold: a; b"), "paper")


def test_no_panel_or_line_is_named_by_a_number_alone() -> None:
    for experiment in EXPERIMENTS.values():
        for figure in experiment.figures:
            for drawn in draw(figure, rows_of(experiment), experiment.axes):
                names = [panel.title for panel in drawn.panels]
                if figure.kind != "scatter":  # its title says by what points are coloured
                    names += [key.name for key in drawn.legend]
                assert not any(name.replace(".", "").isdigit() for name in names), drawn.title
                words = {word for name in names for word in name.split(", ")}
                assert not words & {"self", "row", "context", "query"}, drawn.title


def test_pictures_hold_their_titles_and_legends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures: list[Any] = []
    monkeypatch.setattr(static, "save", lambda picture, *_: pictures.append(picture))
    static.draw_figures(load(*write_results(tmp_path)), tmp_path / "figures")
    assert len(pictures) > 10
    for picture in pictures:
        picture.draw_without_rendering()
        for text in [*picture.legends, *picture.texts]:
            box = text.get_window_extent()
            assert 0 <= box.x0 < box.x1 <= picture.bbox.width, picture.get_suptitle()


def test_legends_show_lines_and_points_as_they_are_drawn() -> None:
    for experiment in EXPERIMENTS.values():
        for figure in experiment.figures:
            if figure.kind not in ("lines", "table"):
                continue
            (drawn,) = draw(figure, rows_of(experiment), experiment.axes)
            for trace in (trace for panel in drawn.panels for trace in panel.data):
                key = drawn.legend[int(trace["legendgroup"])]
                if "ceiling" not in key.name:
                    assert key.symbol == trace["marker"]["symbol"].removesuffix("-open")
                assert key.dash == trace.get("line", {}).get("dash", "")


def test_panels_share_their_axes() -> None:
    experiment = EXPERIMENTS["fuzzy"]
    rows = [r for r in rows_of(experiment) if r["examples"] < 64 or r["held_out"] == 0.7]
    for figure in experiment.figures:
        (drawn,) = draw(figure, rows, experiment.axes)
        if figure.kind == "lines":
            ranges = {tuple(panel.layout["xaxis"]["range"]) for panel in drawn.panels}
            ((low, high),) = ranges
            assert 10**low < min(row["examples"] for row in rows)
            assert 10**high > max(row["examples"] for row in rows)


def test_the_command_that_goes_on_is_told_from_those_that_would_not(tmp_path: Path) -> None:
    results, runs = write_results(tmp_path, names=("heads",))
    file = results / "heads.json"
    rows = json.loads(file.read_text())[:4]
    rows[3]["search"] = "first-seed"
    file.write_text(json.dumps(rows))
    (found,) = (one for one in load(results, runs) if one.rows)
    how, others = experiment_section(found, Plots()).split("Measured by other commands:")
    first = "hyla reproduce heads --scale paper --search first-seed --precision bf16"
    assert f"<code>{first}</code>" in how.split("this does the rest:")[1]
    assert f"<code>{rows[0]['command']}</code>" not in how
    assert f"<code>{rows[0]['command']}</code>" in others
    # Where each kind has a setting of its own, all of their commands do the rest.
    own = "hyla reproduce heads --scale paper"
    for row in rows:
        row |= {"search": "0.0003,0.3,1000", "command": f"{own} --only ... --search ..."}
    file.write_text(json.dumps(rows))
    (found,) = (one for one in load(results, runs) if one.rows)
    page = experiment_section(found, Plots())
    how, others = page.split("these do the rest:")[1].split("Measured by other commands:")
    for kind in {row["kind"] for row in rows}:
        words = f"--only attention={kind} --search 0.0003,0.3,1000 --precision bf16"
        assert f"{own} {words}" in how
    assert rows[0]["command"] in others
    assert "In the numbers: ‡ Hyperparameters were given, not searched." in page
    assert page.count(" ‡<") == len(rows) * page.count("In the numbers: ‡")
    # The others are searched; so are all where the setting is none or not theirs.
    (only,) = {row["kind"] for row in rows[:1]}
    rows = [row for row in rows if row["kind"] == only]
    for search in ("0.0003,0.3,1000", "0.0003,0.3,3000", "nan,1,2", ["x"], None):
        file.write_text(json.dumps([row | {"search": search} for row in rows]))
        (found,) = (one for one in load(results, runs) if one.rows)
        words = {kind: f"{own} --only attention={kind} --precision bf16" for kind in ATTENTIONS}
        words[only] = f"{own} --only attention={only} --search 0.0003,0.3,1000 --precision bf16"
        good = search == "0.0003,0.3,1000"
        left = found.commands_left()
        assert sorted(left) == (sorted(words.values()) if good else [f"{own} --precision bf16"])
    file.write_text(json.dumps([row | {"precision": None} for row in rows]))
    (found,) = (one for one in load(results, runs) if one.rows)
    assert all("--precision" not in text for text in found.commands_left())


@pytest.mark.parametrize("seed", range(5))
def test_no_command_for_the_rest_touches_a_row_with_another_setting(
    tmp_path: Path, seed: int
) -> None:
    results, runs = write_results(tmp_path, names=("scaling-width",))
    file = results / "scaling-width.json"
    rng = random.Random(seed)
    settings = ("0.001,0.1,1000", "0.0003,0.1,1000")
    rows = rng.sample(json.loads(file.read_text()), [3, 6, 9, 13, 23][seed])
    rows = [row | {"search": rng.choice(settings)} for row in rows]
    file.write_text(json.dumps(rows))
    (found,) = (one for one in load(results, runs) if one.rows)
    asked = []
    for command in found.commands_left():
        words = shlex.split(command)
        options = words[words.index("--only") + 1 : words.index("--precision")]
        pairs = [word.split("=") for word in options if "=" in word]
        only = {axis: [v for a, v in pairs if a == axis] for axis, _ in pairs}
        search = options[options.index("--search") + 1] if "--search" in options else None
        asked.append((only, search))

    def searches(place: Mapping[str, Any]) -> list[str | None]:
        """Those of the commands that name a place."""
        return [s for only, s in asked if all(str(place[a]) in only[a] for a in only)]

    assert found.left
    for point in found.left:
        assert len(searches(point.axes)) == 1
    for row in rows:
        assert searches(row) in ([], [row["search"]])


def test_figures_of_decoding_say_what_is_decoded() -> None:
    for name in ("codes-fuzzy", "codes-sraven"):
        experiment = EXPERIMENTS[name]
        for figure in experiment.figures:
            if figure.kind != "bars":
                continue
            (drawn,) = draw(figure, rows_of(experiment), experiment.axes)
            decoded = figure.where["what"] != "explained"
            for panel in drawn.panels:
                assert panel.layout["xaxis"]["title"]["text"] == "label"
                assert (panel.data[0]["x"][0] == "all") == decoded
            assert figure.caption.startswith('"all" is the mean over') == decoded


def test_every_layer_of_a_deep_model_is_drawn_with_its_control() -> None:
    experiment = EXPERIMENTS["codes-depth"]
    rows = rows_of(experiment)
    layers = sorted({row["layer"] for row in rows})
    for figure in experiment.figures:
        if figure.kind != "bars":
            continue
        (drawn,) = draw(figure, rows, experiment.axes)
        there = [row for row in rows if figure.where.items() <= row.items()]
        words = [word for word in ("Rules", "Answer", "Variance") if word in figure.title]
        assert words == [
            {"decoding": "Rules", "answers": "Answer"}.get(figure.where["what"], "Variance")
        ]
        assert ("with the panels" in figure.title) == (figure.where["keys"] == "row")
        assert ("control" in drawn.note) == (words != ["Variance"])
        assert drawn.numbers is not None
        assert len(drawn.numbers.body) == len(there) == len(layers) * 3 * len(drawn.panels)


def test_numbers_on_a_map_can_be_read() -> None:
    experiment = EXPERIMENTS["ablation"]
    (rules,) = (figure for figure in experiment.figures if figure.kind == "rules")
    rows = [row for row in rows_of(experiment) if row["task"] == "SRAVEN"]
    (trace,) = draw(rules, rows, experiment.axes)[0].panels[0].data
    assert trace["type"] == "heatmap"
    text = luminance(trace["textfont"]["color"])
    for _, colour in trace["colorscale"]:
        assert luminance(colour) + 0.05 > 4.5 * (text + 0.05)  # the contrast that WCAG asks for


def luminance(colour: str) -> float:
    """As WCAG defines it, of #rrggbb."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_table_says_that_runs_of_hyla_differ(tmp_path: Path) -> None:
    figure = ABLATION.figures[0]
    page = unescape(render(ROOT / "results", tmp_path))
    inside = page[page.index(figure.title, page.index('id="ablation"')) :]
    assert figure.caption in inside[: inside.index("</figure>")]
    place = re.search(r'(docs/\S+), "(.*)"', figure.caption)
    assert place is not None
    assert f"**{place[2]}.**" in (ROOT / place[1]).read_text()


def test_hyla_on_sraven_is_one_of_three_runs_that_differ() -> None:
    assert "one of three runs" in ABLATION.figures[0].caption
    trainings = json.loads((ROOT / "results/trainings.json").read_text())
    hyla = {"row": "HYLA", "task": "SRAVEN", "precision": "tf32"}
    chosen = [t for t in trainings if hyla.items() <= t.items()]
    other_figures = {"heads", "instances", "features", "held_out_fraction"}
    chosen = [t for t in chosen if not other_figures & t.keys()]
    searches = {("first-seed" in t["command"], t["kernels"]) for t in chosen}
    assert len(searches) == 3
    row = find(json.loads((ROOT / "results/ablation.json").read_text()), row="HYLA", task="SRAVEN")
    assert row is not None
    assert set(row["runs"]) < {t["run"] for t in chosen}
    ends = defaultdict(list)
    for t in chosen:
        ends[t["seed"], t["learning_rate"], t["weight_decay"]].append(t["held_out"][-1])
    assert max(max(values) - min(values) for values in ends.values()) > 30  # percent


def test_tables_of_measures_tell_rows_apart() -> None:
    experiment = EXPERIMENTS["signs"]
    rows = rows_of(experiment)
    ((drawn,),) = (draw(figure, rows, experiment.axes) for figure in experiment.figures)
    assert drawn.table is not None
    axes = ("heads", "depth", "millions")
    names = ["attention", "heads", "depth", "millions of instances", "told apart"]
    assert drawn.table.head[:5] == names
    places = [tuple(cells[:4]) for cells in drawn.table.body]
    assert places == [(r["kind"], *(str(r[axis]) for axis in axes)) for r in rows]
    assert len(set(places)) == len(experiment.points())
    for cells, row in zip(drawn.table.body, rows, strict=True):
        assert str(cells[4].text).startswith(f"{row['mean']:.1f}")
