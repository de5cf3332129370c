"""The docs say what the code does."""

import re
from pathlib import Path

import pytest

from bathy import SCHEMES

ROOT = Path(__file__).parents[1]


def test_every_scheme_has_its_row_in_the_docs() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/schemes.md").read_text(encoding="utf-8"), re.M)
    assert rows == list(SCHEMES)


def blocks(page: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S))


@pytest.mark.parametrize(
    "pages", [["docs/schemes.md"], ["docs/own_model.md"], ["docs/clinic.md"], ["docs/admin.md", "docs/folding.md"]]
)
def test_the_python_in_the_docs_runs(pages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec("\n".join(map(blocks, pages)), {})


def test_the_scheme_of_contributing_works() -> None:
    import tiny

    import bathy.schemes

    scope = vars(bathy.schemes) | {}
    block = next(
        text for text in re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S) if "def half" in text
    )
    try:
        exec(block, scope)
        assert tiny.model("half")(*tiny.batch(tiny.model("half"))).isfinite().all()
    finally:
        SCHEMES.pop("half", None)
