"""The report stands alone; figures are drawn from saved rows."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny

import bathy
from bathy.clinic.plots import FIGURES, save
from bathy.errors import ConfigError

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
NASTY = "</script><img src=x onerror=alert(1)>&amp; \u2028"


@pytest.fixture(scope="module")
def examination() -> bathy.Examination:
    parts = []
    for scheme in ("post_ln", "pre_ln"):
        model = tiny.model(scheme, (12, 12), width=32, heads=2)
        parts.append(bathy.examine(model, tiny.batch(model), name=f"{scheme} {NASTY if scheme == 'pre_ln' else ''}"))
    found = parts[0] + parts[1]
    live = [replace(row, step=step) for row in parts[0].readings for step in (1, 2) if row.exam in ("activations", "gradients")]
    return bathy.Examination([*found.readings, *(replace(row, model="live") for row in live)], found.origin)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_from_saved_rows(name: str, examination: bathy.Examination, tmp_path: Path) -> None:
    examination.save(tmp_path / "readings.jsonl")
    again = bathy.Examination.load(tmp_path / "readings.jsonl")
    chart = FIGURES[name](again.readings)
    assert chart.to_dict() == FIGURES[name](examination.readings).to_dict()
    save(chart, tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text()[:300] and FIGURES[name]([]) is None


def test_a_figure_is_saved_as_png_and_pdf_and_other_names_are_refused(examination: bathy.Examination, tmp_path: Path) -> None:
    chart = FIGURES["gradients"](examination.readings)
    for kind, head in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        save(chart, tmp_path / f"figure.{kind}")
        assert (tmp_path / f"figure.{kind}").read_bytes().startswith(head)
    with pytest.raises(ConfigError, match=r"\.png, \.svg"):
        save(chart, tmp_path / "figure.gif")
    with pytest.raises(ConfigError, match=r"\.html or \.jsonl"):
        examination.save(tmp_path / "report.txt")


def test_the_report_names_no_address_and_escapes_every_name(examination: bathy.Examination, tmp_path: Path) -> None:
    examination.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<img src=x" not in page and "onerror=alert(1)&gt;" in page
    tags = re.findall(r"<[a-z][^<>]*>", re.sub(r"(<script)[^>]*>.*?</script>", r"\1>", page, flags=re.S))
    assert [tag for tag in tags if "src=" in tag or "href=" in tag] == [
        '<link rel="icon" href="data:,">', '<a class="skip" href="#main">',
    ]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip("there is no /usr/bin/chromium; `apt-get install chromium` brings it")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.mark.slow
@pytest.mark.parametrize("view", [{"width": 1200, "height": 900}, {"width": 390, "height": 844}], ids=["desktop", "phone"])
def test_the_report_works_in_a_browser(
    view: dict[str, int], examination: bathy.Examination, browser: Any, tmp_path: Path
) -> None:
    examination.save(tmp_path / "report.html")
    page = browser.new_page(viewport=view, color_scheme="dark")
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_function(f"document.querySelectorAll('.figure svg').length === {len(FIGURES)}")
    assert not said and [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= view["width"]
    assert page.locator(".figure svg .mark-rect path").count() > 50
    shown = page.locator(".finding:visible").count()
    page.locator("button[data-severity=serious]").click()
    assert 0 < page.locator(".finding:visible").count() < shown
    page.locator("#find").fill("no such words")
    assert page.locator(".finding:visible").count() == 0 and page.locator("#none").is_visible()
    page.locator("#search").fill("branch_share decoder")
    assert page.locator("#where").inner_text().startswith("1 to 25 of")
    page.close()
