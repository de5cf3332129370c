"""A sample of the zoo is tried; the page and the laws are held against what `make zoo` found."""

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from libraries import LIBRARIES, entries
from trial import judged
from whole_zoo import attempt, quiet

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "zoo.json"
SAMPLE = {
    "torch": ["TransformerDecoder"],
    "x-transformers": ["Encoder, post-norm", "Decoder, scalenorm", "Encoder, sandwich", "Encoder, layer dropout"],
    "peft": ["LoraConfig on bert"],
    "diffusers": ["DiT", "SD3"],
    "transformers": ["xlm", "fnet", "olmo2", "gpt_neox", "mixtral", "opt", "deberta-v2", "albert", "deepseek_v4"],
}
ROWS: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
TRIED = [row for row in ROWS if row["verdict"] != "excluded"]
SHORT = [(library, name) for library, names in SAMPLE.items() for name in names]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("library", "name"), SHORT)
def test_a_specimen_is_what_the_results_say(library: str, name: str) -> None:
    quiet()
    entry = next(entry for entry in entries(library) if entry[0] == name)
    with warnings.catch_warnings(action="ignore"):
        found = judged(attempt(entry).row())
    known = next(row for row in ROWS if (row["library"], row["name"]) == (library, name))
    assert found["verdict"] in ("right", "refused"), found["reason"]
    assert [found[key] for key in ("verdict", "sites", "placement")] == [
        known[key] for key in ("verdict", "sites", "placement")
    ]


def test_nothing_is_silently_wrong_and_few_are_refused() -> None:
    counts = Counter(row["verdict"] for row in TRIED)
    assert not [row["name"] for row in TRIED if row["verdict"] == "wrong"]
    assert counts["refused"] <= 0.15 * len(TRIED)
    assert all(row["reason"] for row in ROWS if row["verdict"] != "right")


def test_every_library_is_there() -> None:
    assert {row["library"] for row in ROWS} <= set(LIBRARIES)
    assert len(TRIED) >= 250
