"""The demo's page: the same base page as the clinic's report, with its story and figures."""

import json
import re
from pathlib import Path
from statistics import mean, stdev

import tiny

import bathy
from bathy.lab.demo import NAMES, Story
from bathy.lab.demo.page import comparison, write_page
from bathy.tasks.translation.config import Config

NASTY = "<img src=x onerror=alert(1)>"


def test_the_page_tells_the_story_and_draws_its_figures(tmp_path: Path) -> None:
    found = bathy.Examination([])
    for scheme, label in NAMES.items():
        model = tiny.model(scheme, (4, 4))
        found = found + bathy.examine(model, tiny.batch(model), name=label)
    story = Story(found, {"post_ln": 0.97, "pre_ln": 0.02, "admin": 0.03})
    story.curves = [
        {"model": label, "step": step, "nll": 3.0, "valid_loss": 3.0, "source_gap": 0.5}
        for step in (1, 2)
        for label in NAMES.values()
    ]
    story.stops = {"post_ln": "it diverged", "pre_ln": "", "admin": ""}
    story.samples, story.exports = [{"German": NASTY, "Admin": "A cat."}], [("CTranslate2", "equal")]
    page = write_page(tmp_path / "report.html", story, Config()).read_text(encoding="utf-8")
    specs = re.search(r'id="specs">(.*?)</script>', page, flags=re.S)
    assert specs is not None and set(json.loads(specs[1])) == {"scales", "output_change", "gradients", "curves"}
    assert all(f'id="figure-{name}"' in page for name in json.loads(specs[1]))
    assert (
        "97 % chance of failing" in page
        and "it diverged" in page
        and "3 of 3 forecasts" in page
        and NASTY not in page
        and "&lt;img src=x" in page
    )
    assert re.findall(r'(?:src|href)="(?!data:|#main)', re.sub(r"<script.*?</script>", "", page, flags=re.S)) == []


def test_what_the_page_says_of_three_seeds_is_what_they_gave() -> None:
    file = Path(__file__).parents[2] / "docs/results/demo_seeds.json"
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
    text = comparison(Story(bathy.Examination([]), {}))
    for scheme in ("pre_ln", "admin"):
        scores = [run["bleu"] for run in runs if run["scheme"] == scheme]
        assert len(scores) == 3 and f"{NAMES[scheme]} " in text
        assert f"{mean(scores):.1f} ± {stdev(scores):.1f}" in text
    assert all(run["stopped"] for run in runs if run["scheme"] == "post_ln")
