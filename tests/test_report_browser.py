"""The page in a real browser: no errors or injected markup; desktop, phone, dark mode, print."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_report import hostile_page

from hyla.experiments import HEADLINES

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
COLOURS = """() => [getComputedStyle(document.querySelector("svg text")).fill,
                    getComputedStyle(document.body).color]"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every kind of figure and all headlines, full of markup."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_bytes(hostile_page().encode(errors="replace"))
    return path


class Visit:
    """A page with all that it complains about."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light", **options}
        self.context = browser.new_context(**options)
        self.page, self.complaints = self.context.new_page(), []
        note = self.complaints.append
        self.page.on("console", lambda message: note(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: note(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (note("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: note(request.url))
        self.page.goto(file.as_uri())
        assert self.complaints.pop(0) == file.as_uri()
        self.complaints = [one for one in self.complaints if not one.startswith("data:image/png")]

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()
        complaints = [one for one in self.complaints if not one.startswith("data:image/png")]
        if error[0] is None:
            assert complaints == []

    def width(self) -> int:
        """Of the page on a phone, with everything unfolded."""
        self.page.set_viewport_size({"width": 390, "height": 844})
        self.page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
        return self.page.evaluate("document.documentElement.scrollWidth")


def test_the_first_screen_has_the_answers(browser: Any, file: Path) -> None:
    with Visit(browser, file) as visit:
        articles = visit.page.locator(".headlines article")
        assert articles.count() == len(HEADLINES)
        for i in range(articles.count()):
            box = articles.nth(i).bounding_box()
            assert box["y"] + box["height"] <= 800
            assert articles.nth(i).locator("svg").get_attribute("aria-label")
            assert articles.nth(i).locator(".outcome").count() == 1


def test_dark_phones_and_paper(browser: Any, file: Path) -> None:
    with Visit(browser, file) as visit:
        page = visit.page
        assert page.title()
        assert page.locator("html").get_attribute("lang") == "en"
        light = page.evaluate(COLOURS)
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate(COLOURS)
        assert light[0] == light[1] != dark[0] == dark[1]
        page.emulate_media(media="print")
        assert page.evaluate(COLOURS) == light
        page.set_viewport_size({"width": 718, "height": 1000})  # A4 with margins
        assert page.evaluate("document.documentElement.scrollWidth") <= 718
        page.emulate_media(media="screen")
        assert visit.width() == 390


def test_markup_in_results_stays_text(browser: Any, file: Path) -> None:
    with Visit(browser, file) as visit:
        page = visit.page
        assert page.locator("img, b, script, a[href*=javascript], a[href*=example]").count() == 0
        assert "</script>" in page.locator("#codes-sraven svg").first.text_content()
