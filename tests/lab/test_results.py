"""The published results: page, verdicts and numbers say the same."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from bathy.files import read_json, write_json, write_text
from bathy.lab.bench.postmortem.design import AS_WELL, CAUSES, PER_CAUSE, TRAINED
from bathy.lab.claims.predicate import half_width
from bathy.lab.reproduce.folder import judged, plain, read_numbers
from bathy.lab.reproduce.publish import BLOCK, refreshed
from bathy.lab.runs import read_run

PAGE = Path(__file__).parents[2] / "docs/results.md"
FOLDERS = sorted(path.parent for path in PAGE.with_suffix("").glob("*/*/numbers.json"))


AGAIN = "is out of date; write it with: python tests/lab/test_results.py"


def test_the_page_follows_from_the_committed_files() -> None:
    assert refreshed(PAGE) == PAGE.read_text(encoding="utf-8"), f"{PAGE.name} {AGAIN}"


def test_every_committed_result_is_on_the_page() -> None:
    shown = [match[2] for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted(f"{folder.parent.name}/{folder.name}" for folder in FOLDERS)


def verdicts(folder: Path) -> Any:
    return plain([verdict.row() for verdict in judged(folder.name, read_numbers(folder)[0])])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_verdicts_follow_from_the_numbers(folder: Path) -> None:
    origin = read_numbers(folder)[1]
    assert json.loads((folder / "verdicts.json").read_text()) == verdicts(folder), f"verdicts.json {AGAIN}"
    assert origin["command"].startswith(f"bathy reproduce {folder.name} --scale {folder.parent.name}")
    assert (folder / "configs/scale.json").exists()


@pytest.mark.parametrize("run", sorted(PAGE.with_suffix("").glob("*/runs/*")), ids=lambda run: run.name)
def test_every_kept_run_stands_behind_a_published_number(run: Path) -> None:
    seed, published = run.name.rpartition("_")[2], [read_numbers(folder)[0].items() for folder in FOLDERS]
    losses = [value for numbers in published for name, value in numbers if name.endswith(".loss")]
    assert read_run(run).outcome.loss in [value[seed] for value in losses if isinstance(value, dict) and seed in value]
    assert "recovered" not in read_json(run / "outcome.json")["origin"], "what no run wrote is no result"


def bench(name: str) -> dict[str, Any]:
    return json.loads((PAGE.with_suffix("") / f"bench_{name}.json").read_text(encoding="utf-8"))["result"]


def train_rows() -> list[str]:
    """The table of training speed."""
    rows = bench("train")["speed"].items()
    return [
        f"| {case} | {v['utilisation']:.3f} | {v['tokens']:.0f} | {100 * v['efficiency']:.1f} % | {v['memory']:.2f} GB |"
        for case, v in rows
    ]


def depth_rows() -> list[str]:
    """The tables of step time and of learning at depth."""
    times = [f"| {n}L-{n}L | {seconds:.2f} s |" for n, seconds in bench("train")["depth"].items()]
    found = bench("depth")
    learned: dict[str, list[float]] = {}
    for run in found["runs"]:
        learned.setdefault(run["scheme"], []).append(run["train_nll"])
    spread = [f"| `{scheme}` | {', '.join(f'{nll:.2f}' for nll in values)} |" for scheme, values in learned.items()]
    return [*times, *spread, f"unigram entropy of {found['unigram_entropy']:.2f} nats"]


def prepare_rows() -> list[str]:
    """The table of preparing text."""
    found = bench("prepare")
    return [
        f"| CPU time against sacremoses and subword-nmt | {found['cpu_ratio']:.2f} |",
        f"| wall time, one core against two | {found['wall_ratio']:.2f} |",
        f"| peak memory, 2,000,000 pairs against 200,000 | {found['memory_ratio']:.2f} |",
    ]


def audit_rows() -> list[str]:
    """The mistakes, the table of models with their own initialisation, and why some were left out."""
    found = bench("audit")
    made, named = sum(found["made"].values()), sum(found["found"].values())
    models = [
        f"| {row['library']} | {row['tried']} | {row['left_out']} | {row['audited']} | {row['failed']} | {row['alarms']} |"
        for row in found["by_library"]
    ]
    reasons = Counter(next(text for start, text in LEFT_OUT.items() if start in why) for why in found["left_out"].values())
    return [f"{named} of {made} ", *models, *(f"| {text} | {count} |" for text, count in reasons.items())]


LEFT_OUT = {
    "cannot be built": "cannot be built by the rules for small sizes",
    "no batch made": "no batch made by general rules runs",
    "million parameters": "stays large by the rules for small sizes",
    "no residual connection": "refused: it has no residual connection",
    "refused": "refused for another reason",
    "takes more than": "takes more than 30 s of CPU time",
}
"""How a reason is recognised, and how the page puts it."""


def interval(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def serve_rows() -> list[str]:
    """Throughput and the table of latencies."""
    found = bench("serve")
    latency = [
        f"| {clients} | {row['requests']} | {row['p50']:,.0f} ms | {row['p99']:,.0f} ms | {row['wrong']} |"
        for clients, row in found["latency"].items()
    ]
    return [*latency, interval(found["throughput"]), interval(found["CPU"])]


def distil_section() -> str:
    """What the page on distilling says of Multi30k."""
    found = bench("distil")
    ways = ("teacher", "student", "student, int8", "student, times as fast", "int8, times as fast")
    speed = [
        (f"{case.removeprefix('batch ')} at a time", *(f"{row['ms per sentence']:.1f} ms" for row in rows.values()),
         *(interval(row["times as fast"]) for row in list(rows.values())[1:]))
        for case, rows in found.get("speed", found).items()
    ]  # fmt: skip
    parts = [table(("CPU time per sentence", *ways), speed)]
    if "scores" in found:
        expected = [(what, "yes" if true else "no") for what, true in found["expected"].items()]
        parts = [table(("expected before the runs", "came true"), expected), *parts]
        parts = [table(("", "BLEU", "chrF"), quality_rows(found)), quality_notes(found), *parts]
    else:
        parts = [
            ["**The runs have not ended yet.** The speed of the shapes, random weights and translations of 20 tokens:"],
            *parts,
        ]
    return "\n\n".join("\n".join(part) for part in parts)


def quality_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Teacher, students and the int8 student with BLEU and chrF."""
    one = {(row["system"], row["metric"]): f"{row['score']:.1f} ± {row['half_width']:.1f}" for row in found["scores"]}
    rows: list[tuple[str, ...]] = [("teacher, 12-6", one["teacher", "bleu"], one["teacher", "chrf"])]
    for kind, text in (("plain", "student, 6-2, without distillation"), ("distilled", "student, 6-2, distilled")):
        values = [found["means"][kind][metric] for metric in ("bleu", "chrf")]
        spread = ["" if value["deviation"] is None else f" ± {value['deviation']:.1f}" for value in values]
        rows.append((text, *(f"{value['mean']:.1f}{more}" for value, more in zip(values, spread, strict=True))))
    return [*rows, ("distilled, first seed, CTranslate2 int8", one["int8", "bleu"], one["int8", "chrf"])]


def quality_notes(found: dict[str, Any]) -> list[str]:
    """What the numbers rest on, and the paired tests."""
    seeds = [row["second"].removeprefix("distilled ") for row in found["pairs"] if row["metric"] == "chrf"][:-1]
    chances = [f"{row['p']:.3f}" for row in found["pairs"] if row["metric"] == "chrf"]
    return [
        f"{found['split']}, {found['sentences']} sentences. Students: mean and standard deviation over the seeds",
        f"{', '.join(seeds)};",
        "the others: one model, and the half width of its 95 % interval by bootstrap. p of the difference in chrF by paired",
        f"bootstrap: distilled against not, seed by seed, {', '.join(chances[:-1])}; int8 against float32 {chances[-1]}.",
    ]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows)]


def postmortem_section() -> str:
    """What the page on failures says of the benchmark."""
    found = bench("postmortem")
    rows, total = found["rows"], len(CAUSES) * PER_CAUSE
    cells = [(cause, *map(str, outcomes([row for row in rows if row["cause"] == cause]))) for cause in CAUSES]
    cells.append(("together", *map(str, outcomes(rows))))
    head = ("injected", "runs", "cause named", "twins that train", "of these blamed", "recovered", "twins touched")
    missed = [f"{row['cause']} {row['seed']}: {row['failing_verdict'] or 'none'}" for row in rows if not row["named"]]
    ends = [f"{row['cause']} {row['seed']}: {ending(row)}" for row in rows if not recovered(row)]
    left = [] if len(rows) == total else [[f"**{total - len(rows)} of the {total} runs have not ended yet.**"]]
    notes = [
        f"Named otherwise (seed, what was named): {'; '.join(missed) or 'none'}.",
        f"Not as well as their twins with recovery (seed, changes, loss in nats, twin's): {'; '.join(ends) or 'none'}.",
    ]
    return "\n\n".join("\n".join(part) for part in [*left, table(head, cells), notes])


def outcomes(rows: Sequence[dict[str, Any]]) -> tuple[int, ...]:
    """Runs, causes named, twins that train, of these blamed, runs that recover, twins touched."""
    healthy = [row for row in rows if trains(row)]
    blamed, touched = sum(bool(row["healthy_failure"]) for row in healthy), sum(bool(row["twin"]["changes"]) for row in healthy)
    named = sum(row["named"] for row in rows)
    return len(rows), named, len(healthy), blamed, sum(map(recovered, rows)), touched


def number(value: float | None) -> float:
    """A number of the file; null is infinite."""
    return math.inf if value is None else value


def trains(row: dict[str, Any]) -> bool:
    """Whether the twin counts as healthy."""
    return number(row["healthy_loss"]) < row["healthy_guessing"] - TRAINED


def recovered(row: dict[str, Any]) -> bool:
    """Whether a run with recovery ends as well as its twin, which trains."""
    ended = row["recovered"]["ended"] and number(row["recovered"]["loss"]) <= number(row["twin"]["loss"]) + AS_WELL
    return trains(row) and ended


def ending(row: dict[str, Any]) -> str:
    """What recovery tried, and where the run and its twin ended."""
    found = row["recovered"]
    losses = [f"{number(one['loss']):.2f}" for one in (found, row["twin"])]
    return ", ".join([*(found["changes"] or ["no change"]), *losses])


SECTIONS = {"distil": ("distil.md", distil_section), "postmortem": ("failures.md", postmortem_section)}
"""Benchmark to the page that shows it, and what stands there."""


def from_file(name: str) -> re.Pattern[str]:
    """Where a page has what follows from a benchmark's file."""
    return re.compile(rf"(?<=<!-- from results/bench_{name}.json -->\n).*?(?=\n<!-- end -->)", re.S)


def renewed(text: str, name: str, section: str) -> str:
    """A page with the section that follows from a benchmark's file."""
    return from_file(name).sub(lambda _: section, text)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_page_follows_from_the_file_of_its_benchmark(name: str) -> None:
    page, section = SECTIONS[name]
    assert from_file(name).findall(PAGE.with_name(page).read_text(encoding="utf-8")) == [section()], f"{page} {AGAIN}"


def test_the_post_mortems_numbers_follow_from_its_rows() -> None:
    found = bench("postmortem")
    keys = ("runs", "named", "twins_trained", "blamed", "recovered", "twins_touched")
    assert tuple(found[key] for key in keys) == outcomes(found["rows"])


@pytest.mark.parametrize(
    ("page", "rows"),
    [
        ("training.md", train_rows),
        ("training.md", depth_rows),
        ("data.md", prepare_rows),
        ("serve.md", serve_rows),
        ("predict.md", audit_rows),
    ],
)
def test_the_benchmarks_in_the_docs_are_the_committed_numbers(page: str, rows: Callable[[], list[str]]) -> None:
    text = (PAGE.parent / page).read_text(encoding="utf-8")
    assert [row for row in rows() if row not in text] == []


def numbers_of(item: str) -> dict[str, Any]:
    return dict(read_numbers(PAGE.with_suffix("") / "small" / item)[0])


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def headlines() -> list[str]:
    """What the README says of trained models and of Figure 4, as the committed numbers have it."""
    means = {
        f"{item}.{name}": fmean(value.values()) if isinstance(value, dict) else value
        for item in ("figure-1", "initialisations", "figure-4")
        for name, value in numbers_of(item).items()
    }
    improved = [means[f"figure-1.{scheme}_18.improvement"] for scheme in ("post_ln", "pre_ln", "admin")]
    short = [means[f"initialisations.{scheme}_18.improvement"] for scheme in ("rezero", "fixup", "admin")]
    powers = [means[f"figure-4.{scheme}.exponent"] for scheme in ("post_ln", "pre_ln", "admin")]
    loss, bleu = ([(fmean(values), half_width(values)) for values in differences(what)] for what in ("loss", "bleu"))
    return [
        f"Post-LN is {-improved[0]:.1f} nats worse than guessing",
        f"Pre-LN ends {improved[1]:.2f} and Admin {improved[2]:.2f} nats better",
        "lower by {:.3f} ± {:.3f}, {:.3f} ± {:.3f} and {:.3f} ± {:.3f} nats (95 %)".format(
            *(x for mean, half in loss for x in (-mean, half))
        ),
        "apart by {} ± {}, {} ± {} and {} ± {},".format(*(x for mean, half in bleu for x in (signed(mean), f"{half:.2f}"))),
        "as N^{:.2f} for Post-LN, N^{:.2f} for Pre-LN and N^{:.2f} for Admin".format(*powers),
        "{:.2f} and {:.2f} nats below guessing against {:.2f}".format(*short),
    ]


def differences(what: str) -> list[list[float]]:
    """Admin minus Pre-LN, seed by seed, at 6, 12 and 18 layers."""
    found = numbers_of("table-2")
    pairs = [(found[f"admin_{layers}.{what}"], found[f"pre_ln_{layers}.{what}"]) for layers in (6, 12, 18)]
    return [[one[seed] - other[seed] for seed in one] for one, other in pairs]


@pytest.mark.parametrize("sentence", headlines())
def test_the_readme_says_what_the_files_say(sentence: str) -> None:
    readme = " ".join((PAGE.parents[1] / "README.md").read_text(encoding="utf-8").split())
    assert sentence in readme


if __name__ == "__main__":
    for folder in FOLDERS:
        write_json(folder / "verdicts.json", verdicts(folder))
    write_text(PAGE, refreshed(PAGE))
    for name, (page, section) in SECTIONS.items():
        write_text(PAGE.with_name(page), renewed(PAGE.with_name(page).read_text(encoding="utf-8"), name, section()))
