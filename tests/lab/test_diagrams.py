from pathlib import Path

import pytest

from bathy import SCHEMES
from bathy.files import write_text
from bathy.lab.diagrams import diagram, drawings

COMMAND = "out of date; write them with: python tests/lab/test_diagrams.py"
FIGURES = Path(__file__).parents[2] / "docs/figures"


@pytest.mark.parametrize("name", drawings())
def test_the_docs_show_the_diagrams_that_the_table_gives(name: str) -> None:
    assert (FIGURES / name).read_text(encoding="utf-8") == drawings()[name], COMMAND


@pytest.mark.parametrize("name", SCHEMES)
def test_a_diagram_has_a_norm_where_the_equation_has_one(name: str) -> None:
    drawn = diagram([name])
    equation = SCHEMES[name].equation.partition(", v,")[0].partition(" with ")[0]
    assert ('class="norm"' in drawn) == ("LN" in equation)


if __name__ == "__main__":
    for name, drawing in drawings().items():
        write_text(FIGURES / name, drawing)
