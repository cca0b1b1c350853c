"""The page in a real browser: drawn, quiet, safe, on a phone, in the dark and on paper."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_report_rows import HOSTILE, write_results

from hyla.report import load, write
from hyla.report.figures import draw

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
COLOURS = """() => {
    const plot = document.querySelector(".js-plotly-plot");
    return [getComputedStyle(plot.querySelector("svg.main-svg")).backgroundColor,
            getComputedStyle(document.body).backgroundColor];
}"""
ALL_DRAWN = """() => {
    const plots = [...document.querySelectorAll(".plot")];
    return plots.length > 0 && plots.every((p) => p.querySelector("svg.main-svg") && p.data);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Files: all results, and every kind of figure with results full of markup."""
    folder = tmp_path_factory.mktemp("pages")
    names = SimpleNamespace(full=folder / "full.html", hostile=folder / "hostile.html")
    names.folders = write_results(folder / "full")
    write(names.full, *names.folders)
    some = ("ablation", "heads", "ambiguity", "codes-sraven")
    write(names.hostile, *write_results(folder / "hostile", some, HOSTILE))
    return names


class Visit:
    """A page with all that it complains about."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light", **options}
        self.context = browser.new_context(**options)
        self.page, self.complaints = self.context.new_page(), []
        note = self.complaints.append
        self.page.on("console", lambda message: note(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: note(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (note("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: note(request.url))
        self.page.goto(file.as_uri())
        assert self.complaints.pop(0) == file.as_uri()

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()
        if error[0] is None:
            assert self.complaints == []

    def draw_all(self) -> None:
        """In print everything is drawn."""
        self.page.emulate_media(media="print")
        self.page.wait_for_function(ALL_DRAWN)

    def width(self) -> int:
        """Of the page on a phone, with everything unfolded."""
        self.page.set_viewport_size({"width": 360, "height": 740})
        self.page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
        return self.page.evaluate("document.documentElement.scrollWidth")


def test_every_figure_is_drawn_also_on_paper(browser: Any, pages: SimpleNamespace) -> None:
    drawings = [
        drawn
        for found in load(*pages.folders).found
        for figure in found.experiment.figures
        for drawn in [draw(figure, found.flat, found.experiment.axes)]
    ]
    panels = sum(len(drawn.panels) for drawn in drawings)
    with Visit(browser, pages.full, color_scheme="dark") as visit:
        page = visit.page
        assert page.title()
        assert page.locator("html").get_attribute("lang") == "en"
        assert page.locator("figure").count() == len(drawings)
        visit.draw_all()
        assert page.locator(".js-plotly-plot").count() == panels
        assert page.evaluate(COLOURS) == ["rgb(255, 255, 255)"] * 2
        assert page.locator("details:not([open])").count() == 0
        page.set_viewport_size({"width": 718, "height": 1000})  # A4 with margins
        assert page.evaluate("document.documentElement.scrollWidth") <= 718


def test_hovers_legends_dark_mode_and_phones(browser: Any, pages: SimpleNamespace) -> None:
    with Visit(browser, pages.full) as visit:
        page = visit.page
        page.locator("td[data-about]").first.focus()
        assert "learning rate" in page.locator("#about").inner_text()
        page.keyboard.press("Escape")
        assert page.locator("#about").is_hidden()

        figure = page.locator("#fuzzy figure").first
        figure.scroll_into_view_if_needed()
        figure.locator(".scatterlayer .point").first.hover(force=True)
        page.locator("#about").wait_for()
        hover = page.locator("#about").inner_text()
        assert "NVIDIA H200" in hover
        assert "run-" in hover
        lines = figure.locator(".plot").first.locator(".scatterlayer .trace")
        before, key = lines.count(), figure.locator(".legend button").first
        key.press("Enter")
        assert key.get_attribute("aria-pressed") == "false"
        assert lines.count() == before - 1

        light = page.evaluate(COLOURS)
        page.emulate_media(color_scheme="dark")
        page.wait_for_timeout(300)
        dark = page.evaluate(COLOURS)
        assert light == ["rgb(255, 255, 255)"] * 2
        assert dark[0] == dark[1] != light[0]
        assert visit.width() == 360


def test_markup_in_results_stays_text(browser: Any, pages: SimpleNamespace) -> None:
    with Visit(browser, pages.hostile) as visit:
        assert visit.width() == 360
        visit.draw_all()
        page = visit.page
        assert page.locator("img, b, .plot a, a[href*=javascript]").count() == 0
        assert page.locator("script").count() == 3
        count = "(root) => root.textContent.split('onerror=alert(1)').length"
        assert page.locator("main").evaluate(count) > 100
        plots = page.locator(".plot").evaluate_all("(all) => all.map((p) => p.textContent).join()")
        assert plots.count("<b>bold</b>") == plots.count("bold") > 20
