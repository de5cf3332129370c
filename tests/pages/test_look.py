"""All pages share one look: told apart by anyone, readable in light and dark, with nothing from anywhere else."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import bathy
from bathy.pages import BADGES, CATEGORIES, Summary, embedded, environment, render_page

SOURCE = Path(bathy.__file__).parent
PAGES = [path for path in SOURCE.rglob("*.html") if path.name not in ("base.html", "parts.html", "blocks.html")]
STYLE = (SOURCE / "pages/style.css").read_text(encoding="utf-8")
LIGHT, DARK = (dict(re.findall(r"--(\w+): (#\w{6})", text)) for text in re.findall(r":root \{(.*?)\}", STYLE, re.S)[:2])
DEUTERANOPIA = [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]  # Machado et al., 2009
PROTANOPIA = [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_lines_stand_out_from_what_is_behind_them(theme: dict[str, str]) -> None:
    text = ["ink", "soft", "accent", "serious", "warning", "note", "healthy"]
    assert min(contrast(theme[name], theme[behind]) for name in text for behind in ("page", "card")) >= 4.5
    assert min(contrast(colour, theme["card"]) for colour in CATEGORIES) >= 3


@pytest.mark.parametrize("vision", [np.eye(3).tolist(), DEUTERANOPIA, PROTANOPIA], ids=["usual", "deuteranopia", "protanopia"])
def test_the_first_colours_differ_for_every_colour_vision(vision: list[list[float]]) -> None:
    seen = [np.clip(np.array(vision) @ linear(colour), 0, 1) ** (1 / 2.4) for colour in CATEGORIES[:4]]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 0.15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(SOURCE)))
def test_every_page_extends_the_one_base_and_styles_little_itself(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith('{% extends "base.html" %}') and "<style" not in text and not re.search(r"#[0-9a-f]{6}", text)
    assert text.count("<table") == text.count("<caption") and "<h1>" in text
    assert not re.search(r"https?://", text)


def test_a_page_without_charts_holds_no_code_that_draws_them_and_escapes_what_it_is_given() -> None:
    page = render_page("bathy.tasks.translation.serve", "page.html")
    assert len(page) < 20_000 and all(f"<{mark}" in page for mark in ("main", "header", "footer", "h1"))
    card = environment("bathy.clinic").from_string('{% from "parts.html" import summary_card %}{{ summary_card(summary) }}')
    text = card.render(summary=Summary("serious", "<b>&"))
    assert "&lt;b&gt;&amp;" in text and BADGES["serious"] in text and "Since" not in text
    assert "</" not in embedded("</script>")
