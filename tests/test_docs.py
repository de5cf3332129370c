"""The docs say what the code does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bathy import SCHEMES
from bathy.clinic.plots import FIGURES
from bathy.clinic.rules import RULES

ROOT = Path(__file__).parents[1]


def test_every_scheme_has_its_row_in_the_docs() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/schemes.md").read_text(encoding="utf-8"), re.M)
    assert rows == list(SCHEMES)


def test_every_finding_and_every_figure_has_its_place_in_the_docs() -> None:
    """Each finding is a heading of its page; each figure is named under one, in the order of the report."""
    findings, figures = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("findings.md", "figures.md"))
    explained = {name for title in re.findall(r"^## ([a-z_, ]+)$", findings, re.M) for name in title.split(", ")}
    assert explained == set(RULES) | {"healthy"}
    assert re.findall(r"^## .+\n\n`(\w+)`", figures, re.M) == list(FIGURES)


def test_prose_has_one_spelling() -> None:
    """British, and the paper's words: sub-layer, feed-forward, warm-up."""
    american = r"\w*(?:behavior|color|(?:normal|initial|optim|stabil|recogn)iz|sublayer|feedforward|warmup)\w*"
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        prose = re.sub(
            r"^```.*?^```$|^ {4}.*?$|`[^`]*`|<!--.*?-->|\]\([^)]*\)", "", page.read_text(encoding="utf-8"), flags=re.M | re.S
        )
        assert not re.findall(american, prose, re.I), page.name


def anchors(page: Path) -> set[str]:
    """The places of a page that a link can name, as GitHub spells them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Pages, pictures and anchors exist; addresses elsewhere are whole."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        address, _, anchor = link.partition("#")
        path = page.parent / address if address else page
        assert re.match(r"https://[\w.-]+\.\w+(/|$)", link) or path.exists(), link
        assert not anchor or path.suffix != ".md" or anchor in anchors(path), link


def test_the_scheme_of_contributing_works() -> None:
    import tiny

    import bathy.core.schemes

    scope = vars(bathy.core.schemes) | {}
    block = next(
        text for text in re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S) if "def half" in text
    )
    try:
        exec(block, scope)
        assert tiny.model("half")(*tiny.batch(tiny.model("half"))).isfinite().all()
    finally:
        SCHEMES.pop("half", None)


def test_the_documentation_builds_strictly(tmp_path: Path) -> None:
    """No broken link, no page that the navigation forgets, no name that the API reference cannot find."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(build, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob("*.md")}
    listed = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    assert pages == listed


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_every_page_starts_with_what_a_reader_can_do_after_it(page: Path) -> None:
    title, blank, first, *_ = page.read_text(encoding="utf-8").split("\n")
    assert title.startswith("# ") and not blank and first.startswith("After this page you can "), page.name


def test_no_page_uses_words_of_its_own_where_the_field_has_one() -> None:
    """The left column of our style's table, as far as a machine can tell."""
    ours = r"\b(encoder-attention|end marks?|begin marks?|learnt|as ever|mends?|mended|deaf|going on from|the watch)\b"
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.html"), *ROOT.glob("examples/*.*")]
    prose = {page.name: re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8")) for page in pages}
    assert not {name: words for name, text in prose.items() if (words := re.findall(ours, text, re.I))}


def test_the_tree_in_the_readme_is_the_tree() -> None:
    tree = re.search(r"    src/bathy/\n(.*?)    configs/", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert tree
    listed = {name.rstrip("/") for name in re.findall(r"^      (\S+)", tree[1], re.M)}
    found = {path.name for path in (ROOT / "src/bathy").iterdir() if not path.name.startswith(("_", "py.typed"))}
    assert listed == found
