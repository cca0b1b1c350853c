"""Results that are damaged or full of markup: named, the rest shown, and nothing but text."""

import json
import random
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from test_report_rows import HOSTILE, drawings, hostile, rows_of, write_results

from hyla.cli.report import report
from hyla.experiments import EXPERIMENTS
from hyla.report import render
from hyla.train.runs import list_runs

PAPER_LINK = "https://arxiv.org/abs/2406.05816"


@pytest.mark.usefixtures("small_library")
@pytest.mark.parametrize("seed", range(4))
def test_damaged_rows_never_stop_the_page(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    oddities = [None, "text", -1, 1e400, [], {}, [None], {"mean": "x"}, True, 10**400]

    def damaged(thing: Any, depth: int = 0) -> Any:
        if isinstance(thing, dict):
            return {
                key: damaged(value, depth + 1) if rng.random() > 0.04 else rng.choice(oddities)
                for key, value in thing.items()
                if rng.random() > 0.02 or key == "scale"
            }
        if isinstance(thing, list) and depth < 6:
            return [damaged(value, depth + 1) if rng.random() > 0.01 else None for value in thing]
        return thing

    results, runs = write_results(tmp_path, damaged)
    page = render(results, runs)
    assert "not shown here" in page


@pytest.mark.usefixtures("small_library")
def test_damaged_files_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    results, runs = write_results(tmp_path)
    (results / "fuzzy.json").write_text("[{")
    (results / "heads.json").write_text(json.dumps([{"scale": "paper", "kind": "hyla"}]))
    run = runs / "broken"
    (run / "checkpoints").mkdir(parents=True)
    (run / "lock").touch()
    (run / "config.json").write_text("{")
    assert [state.state for state in list_runs(runs)] == ["damaged"]
    page = render(results, runs)
    assert "fuzzy.json" in page
    assert "hyla: no heads" in page
    assert "broken is damaged" in page
    assert "81.1 ± 7.8" in page  # of the paper's table of ablations


class Elements(HTMLParser):
    """The elements of a page, and whether they are closed."""

    VOID = ("meta", "br", "img", "link", "input", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: dict[str, int] = {}
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] = self.found.get(tag, 0) + 1
        values = dict(attrs)
        assert not any(name.startswith("on") for name in values)
        self.ids += [values["id"]] if values.get("id") else []
        self.links += [values["href"]] if values.get("href") else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.usefixtures("small_library")
def test_the_page_is_well_formed_and_markup_in_results_stays_text(tmp_path: Path) -> None:
    for change in (dict, hostile):
        results, runs = write_results(tmp_path / change.__name__, change)
        text = render(results, runs)
        page = Elements(text)
        assert page.open == []
        assert len(page.ids) == len(set(page.ids))
        assert page.links[0].startswith("#")
        inside = [link for link in page.links if link != PAPER_LINK]
        assert len(page.links) == len(inside) + 1
        assert all(link[0] == "#" and link[1:] in page.ids for link in inside)
        assert page.found["script"] == 3
        assert page.found["h1"] == 1
        assert not {"img", "b", "iframe", "link"} & set(page.found)
        assert HOSTILE not in text
    assert "onerror=alert(1)" in text


def test_markup_does_not_reach_the_labels_of_figures() -> None:
    def texts(thing: Any) -> Iterator[str]:
        if isinstance(thing, str):
            yield thing
        elif isinstance(thing, dict):
            for value in thing.values():
                yield from texts(value)
        elif isinstance(thing, list):
            for value in thing:
                yield from texts(value)

    seen = 0
    for _, drawn in drawings(hostile):
        for panel in drawn.panels:
            for text in texts([panel.data, panel.layout]):
                assert "<" not in text.replace("<br>", "")
                seen += "&lt;" in text
    assert seen > 1000


@pytest.mark.usefixtures("small_library")
def test_markup_in_pictures_and_half_characters(tmp_path: Path) -> None:
    results, runs = write_results(tmp_path, hostile, ("ablation", "heads"))
    output, figures = tmp_path / "page.html", tmp_path / "figures"
    report(output, runs, results, figures)
    assert "onerror=alert(1)" in output.read_text()
    assert len(list(figures.iterdir())) == 4


def test_absurd_numbers_and_deep_nesting_do_not_stop_the_page(tmp_path: Path) -> None:
    deep: Any = "bottom"
    for _ in range(900):
        deep = [deep]
    rows = rows_of(EXPERIMENTS["heads"])
    rows[0] |= {"members": 1e200, "instances": 1e200, "seconds": 1e300}
    rows[1] |= {"device": deep, "runs": [deep], "versions": {"torch": deep}}
    (tmp_path / "heads.json").write_text(json.dumps(rows))
    assert "the number of heads" in render(tmp_path, tmp_path / "runs")
