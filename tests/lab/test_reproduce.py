"""Items of the paper: each gathers the numbers that its claims need; a result folder says what made it and is made once."""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from bathy.cli import main
from bathy.clinic.readings import Reading
from bathy.errors import BathyError, ConfigError, DataError, InUse
from bathy.files import lock_folder, write_json
from bathy.lab import reproduce
from bathy.lab.claims import CLAIMS
from bathy.lab.reproduce import dependency, gradients, grid, quality, tuning, updates
from bathy.lab.reproduce import lab as laboratory
from bathy.lab.reproduce.folder import conclude, page, read_numbers, write
from bathy.lab.reproduce.item import Item, Measured, Needs, Table, over_seeds, shown
from bathy.lab.reproduce.lab import Lab
from bathy.lab.reproduce.publish import kept_runs, publish, refreshed, summary
from bathy.lab.reproduce.reasons import REASONS
from bathy.lab.reproduce.recipes import recipe
from bathy.lab.reproduce.scale import SCALES, find_scale
from bathy.lab.reproduce.spec import Spec
from bathy.lab.runs import Outcome, identity, train_if_needed
from bathy.tasks.translation.data import read_manifest

SHAPE = {"width": 16, "ffn": 16, "heads": 2}
FINISH = Lab.finish
WITHOUT_CLAIMS = ("batch", "depth", "europarl-admin", "multi30k", "multi30k-deep", "recipe")
SIZES: dict[str, Any] = {"shape": SHAPE, "draws": 2, "tokens": 64, "deepest": 4, "depths": (1, 2, 18)}


@dataclass(frozen=True)
class Pretended:
    """A run that was never trained."""

    lab: Lab
    spec: Spec
    seed: int
    outcome = Outcome(2.0, math.exp(2), curve=[(1, 5.0), (10, 2.0)], improvement=3.0, gap=1.0, updates=10, planned=10)

    @property
    def folder(self) -> Path:
        return self.lab.out / "pretended" / f"{self.spec.name}_{self.seed}"

    def model(self) -> nn.Module:
        return self.lab.fresh(self.spec, 7)

    def checkpoints(self) -> list[tuple[int, nn.Module]]:
        return [(step, self.lab.fresh(self.spec, step)) for step in (1, 2)]

    def bleu(self, config: Any, split: str) -> dict[str, float]:
        return {"bleu": 30.0, "bleu_lower": 31.0}

    def signature(self, split: str) -> str:
        return "nrefs:1|tok:none"


class Bench(Lab):
    """A lab whose runs are pretended."""

    def run(self, spec: Spec, seed: int) -> Any:
        self.config(spec, seed)
        return Pretended(self, spec, seed)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    from bathy.tasks.translation.corpora.toy import write_toy

    out = tmp_path_factory.mktemp("lab")
    write_toy(out / "raw", size=300, held_out=20)
    configs = SCALES["tiny"].configs | {"multi30k": "tiny"}
    scale = replace(SCALES["tiny"], configs=configs, **SIZES)
    return Bench(scale, out, seeds=2)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of two layers where the paper has 18, and no sweep."""
    monkeypatch.setattr(gradients, "LAYERS", (2, 2))
    monkeypatch.setattr(dependency, "STARTS", 1)
    monkeypatch.setattr(Lab, "finish", lambda lab, config: Pretended(lab, None, 0))  # type: ignore[arg-type]
    shallow = Spec.config_changes
    monkeypatch.setattr(
        Spec, "config_changes", lambda spec: [*shallow(spec), "model.encoder_layers=2", "model.decoder_layers=2"]
    )


def test_text_that_is_prepared_otherwise_has_a_folder_of_its_own(lab: Lab) -> None:
    plain, lower = (lab.config(Spec("run", "admin", 2, changes), 1) for changes in ((), ("prepare.lowercase=true",)))
    settings = [read_manifest(config.data.folders[0])["settings"]["prepare"] for config in (plain, lower)]
    assert [text["lowercase"] for text in settings] == [False, True]
    assert plain.data.folders == (lab.data_of("ende"),) != lower.data.folders


@pytest.mark.parametrize("name", reproduce.PLACES)
def test_an_item_gathers_every_number_that_its_claims_need(name: str, lab: Lab) -> None:
    item = reproduce.find_item(name)
    if "tiny" not in item.needs:  # as at the paper's scale, where datasets differ
        lab = replace(lab, scale=replace(lab.scale, configs=lab.scale.configs | {"iwslt": "small"}))
    measured = item.measure(lab)
    numbers = measured.numbers
    needed = {number for claim in CLAIMS.values() if claim.item == name for number in claim.needs}
    assert needed <= numbers.keys() and (needed or name in WITHOUT_CLAIMS)
    assert item.draw is None or item.draw(measured).to_dict()["$schema"]
    assert item.name == name and all(len(row) == len(item.table(numbers).columns) for row in item.table(numbers).rows)


@pytest.mark.parametrize("name", reproduce.PLACES)
def test_an_item_says_what_it_needs(name: str) -> None:
    item = reproduce.find_item(name)
    assert {"paper", "medium", "small"} & item.needs.keys() and all(
        needs.hours > 0 and needs.gigabytes > 0 for needs in item.needs.values()
    )
    assert item.table({}).rows or name in (
        "figure-7",
        "figure-8",
        "table-1",
        "warmup",
        "initialisations",
        "rescaled",
        "depth",
        "recipe",
        "batch",
    )


def test_a_larger_batch_is_held_against_what_the_recipe_reaches_in_its_time(lab: Lab) -> None:
    numbers = reproduce.find_item("batch").measure(lab).numbers
    plain = Outcome(2.0, math.exp(2), curve=[(10, 5.0), (20, 2.0)], updates=20, seconds=40.0)
    assert [tuning._loss_after(plain, seconds) for seconds in (20.0, 30.0, 40.0, 99.0)] == [5.0, 3.5, 2.0, 2.0]
    assert len({name.rpartition(".")[0] for name in numbers}) == 6


def test_the_recipe_is_the_first_within_a_tie_of_the_best() -> None:
    assert tuning.choose({"low": 2.015, "middle": 2.0, "high": 2.3}) == "low"
    assert tuning.choose({"low": 2.03, "middle": 2.0, "high": 1.995}) == "middle"
    assert tuning.choose({"low": math.inf, "middle": 2.0, "high": math.inf}) == "middle"


@pytest.mark.parametrize("config", sorted({name for scale in SCALES.values() for name in scale.configs.values()}))
def test_every_recipe_is_a_config(config: str) -> None:
    assert recipe(config, ["model.encoder_scheme=admin"]).model.width >= 64


def test_needs_are_said_as_people_say_them() -> None:
    assert [Needs("", hours, 1).time for hours in (0.05, 2, 100)] == ["3 min", "2 h", "4 days"]


def test_a_number_is_shown_with_its_spread() -> None:
    numbers: dict[str, float | dict[str, float]] = {"a": {"1": 1.0, "2": 3.0}, "b": 2.0, "c": {"1": math.inf}}
    assert [shown(numbers, name) for name in "abcd"] == ["2 ± 1", "2", "failed", "–"]


def test_the_drop_across_cross_attention_is_its_share_of_the_whole_fall() -> None:
    down = zip((1, 2, 3, 4), ("self_attention", "cross_attention", "ffn", "self_attention"), (0.1, 0.8, 0.8, 1.0), strict=True)
    rows = [Reading("gradient", value, index=index, kind=kind) for index, kind, value in down]
    assert gradients.across_cross_attention(rows) == pytest.approx(math.log(8) / math.log(10))
    assert gradients.first_to_last(rows) == pytest.approx(math.log(0.1))


def test_own_lean_and_growth_of_a_known_matrix() -> None:
    betas = {(1, 0): 0.8, (1, 1): 0.6, (2, 0): 0.5, (2, 1): 0.2, (2, 2): 0.6}
    rows = [Reading("beta", value, stack="encoder", index=i, j=j) for (i, j), value in betas.items()]
    rows += [Reading("output_variance", value, stack="decoder", index=i) for i, value in enumerate((1.0, 2.0, 1.5), 1)]
    assert dependency.own(rows) == pytest.approx(0.6)
    assert dependency.lean(rows) == pytest.approx(0.6 / 0.4)
    assert dependency.growing(rows) == 0.5


def test_the_spread_of_gradients_is_of_all_attention_matrices() -> None:
    sizes = {"q": 0.1, "k": 0.1, "v": 10.0, "out": 10.0, "fc1": 1e6}
    rows = [Reading("weight_gradient", size, role=role, kind="self_attention", seed=3) for role, size in sizes.items()]
    found = updates.numbers(rows)
    assert found["gradient.spread"] == pytest.approx({"3": 1.0})
    assert found["gradient.q"] == pytest.approx({"3": 0.01})


def grid_rows() -> list[Reading]:
    rows = []
    for seed, model, *values in (
        (1, "post_ln", (0.0, 2.0, 2.0), (5.0, 2.0, 2.0), (1.0, 1.0, 0.0), (0.0, 0.09, 1.0)),
        (1, "pre_ln", (1.0, 1.0, 1.0), (3.0, 3.0, 1.0), (0.0, 1.0, 0.0), (1.0, 1.0, 1.0)),
        (1, "admin", (2.0, 2.0, 2.0), (2.0, 2.0, 2.0), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        (2, "admin", (2.0, 2.0, 2.0), (2.0, 2.0, 2.0), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    ):
        for beta2, *own in zip(grid.BETA2, *values, strict=True):
            named = zip(("learnt", "loss", "stopped", "gap"), own, strict=True)
            rows += [Reading(name, value, model=model, site=f"1e-3 {beta2}", seed=seed) for name, value in named]
    return rows


def test_grid_counts_failures_and_wins_of_each_seed_that_is_whole() -> None:
    rows = grid_rows()
    expected = {
        "post_ln.failed": 1.0, "post_ln.ignoring": 1.0, "post_ln.stopped": 2.0, "post_ln.best_loss": 2.0, "post_ln.wins": 0.5,
        "pre_ln.failed": 0.0, "pre_ln.ignoring": 0.0, "pre_ln.stopped": 1.0, "pre_ln.best_loss": 1.0,
        "admin.failed": 0.0, "admin.ignoring": 0.0, "admin.stopped": 0.0, "admin.best_loss": 2.0,
    }  # fmt: skip
    assert grid.numbers(rows, ["1e-3"]) == {name: {"1": value} for name, value in expected.items()}
    assert grid.numbers(rows, ["1e-3", "2e-3"]) == grid.numbers(rows, []) == {}


def test_the_grids_picture_tells_failed_runs_and_those_that_ignore_their_source() -> None:
    rows = [replace(row, value=0.0) if row.quantity == "stopped" else row for row in grid_rows()]
    cells = grid.draw(Measured({}, rows)).to_dict()["data"]["values"]
    assert [cell["text"] for cell in cells if cell["panel"] == "post_ln"] == ["failed", "2*", "2"]


def test_seeds_are_averaged_place_by_place() -> None:
    rows = [Reading("gradient", value, site="x", seed=seed) for seed, value in ((1, 1.0), (2, 4.0))]
    assert over_seeds(rows) == [Reading("gradient", 2.0, site="x")]


def plain(measure: Any = None) -> Item:
    table = lambda numbers: Table(["a"], [[shown(numbers, "post_ln.decoder")]])  # noqa: E731
    return Item("figure-3", "Figure 3", "What it shows.", {"tiny": Needs("toy", 1, 1)}, measure, table)


ORIGIN = {"command": "bathy reproduce figure-3", "seconds": 12.3}


def test_a_result_is_concluded_from_its_numbers_alone(tmp_path: Path) -> None:
    write(tmp_path, plain(), Measured({"post_ln.decoder": 0.02, "x.ppl": {"1": math.inf}}), ORIGIN)
    verdicts = conclude(tmp_path, plain())
    assert read_numbers(tmp_path)[0] == {"post_ln.decoder": 0.02, "x.ppl": {"1": math.inf}}
    assert {v.claim.id: v.answer for v in verdicts}["only-post-ln-decoders-vanish"] == "not decidable"
    text = (tmp_path / "README.md").read_text()
    assert "| 0.02 |" in text and "not measured: post_ln.encoder" in text and "`bathy reproduce figure-3`, 12 s" in text
    assert json.loads((tmp_path / "verdicts.json").read_text())[0]["verdict"] == "not decidable"


def test_what_is_finished_is_not_measured_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measure(lab: Lab) -> Measured:
        calls.append(1)
        lab.run(Spec("pre_ln_6", "pre_ln", 6), 1111)
        return Measured({"post_ln.decoder": 0.02})

    monkeypatch.setattr(reproduce, "find_item", lambda name: plain(measure))
    for again in (False, False, True):
        reproduce.reproduce("figure-3", lab, again)
    reproduce.reproduce("figure-3", replace(lab, seeds=3))
    assert len(calls) == 3
    kept = (lab.out / "figure-3/configs/pre_ln_6_1111.toml").read_text()
    assert (lab.out / "figure-3/configs/scale.json").exists()
    assert 'run = "runs/pre_ln_6_1111"' in kept and str(lab.out) not in kept


def test_a_new_result_gets_a_heading(tmp_path: Path) -> None:
    document, source = tmp_path / "results.md", tmp_path / "work/tiny/figure-3"
    document.write_text("# Results\n")
    write(source, plain(), Measured({"post_ln.decoder": 0.02}), ORIGIN)
    (source / "configs").mkdir()
    for _ in range(2):
        publish(tmp_path / "work/tiny", ["figure-3"], document)
    assert document.read_text().count("## Figure 3: gradients at the start\n\n<!-- result: tiny/figure-3 -->") == 1


def test_a_page_shows_what_its_folders_hold(tmp_path: Path) -> None:
    document = tmp_path / "results.md"
    document.write_text("# Results\n\n<!-- result: tiny/figure-3 -->\noutdated\n<!-- end of result -->\n\nkept\n")
    source = tmp_path / "work/tiny/figure-3"
    write(source, plain(), Measured({"post_ln.decoder": 0.02}), ORIGIN)
    (source / "configs").mkdir()
    publish(tmp_path / "work/tiny", ["figure-3"], document)
    text = document.read_text()
    assert "outdated" not in text and "kept" in text and "0.02" in text
    assert page(reproduce.find_item("figure-3"), source) in text
    assert refreshed(document) == text


def test_table_4_counts_the_parameters_of_the_paper_s_config(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # all layers
    found = quality.table_4(lab).numbers
    width, ffn, vocab, norm = 512, 2048, 40_000, 2 * 512
    attention, forward = 4 * width * (width + 1), width * ffn * 2 + ffn + width
    layers = 60 * (attention + forward + 2 * norm) + 12 * (2 * attention + forward + 3 * norm)
    assert found["admin_60_12.parameters"] == found["post_ln_60_12.parameters"] == vocab * width + layers
    assert found["pre_ln_60_12.parameters"] == vocab * width + layers + 2 * norm, "a norm after each stack"


def test_a_reason_belongs_to_a_claim_and_stands_beside_what_is_not_reproduced(tmp_path: Path) -> None:
    assert not REASONS.keys() - CLAIMS.keys()
    document, measured = tmp_path / "results.md", Measured({"admin.decoder": 0.5, "seeds": 8.0})
    write(tmp_path / "results/small/figure-3", plain(), measured, ORIGIN)
    (row,) = [line for line in summary(document).splitlines() if "✘ not reproduced" in line]
    assert REASONS["admin-vanishes-too"] in row and summary(document).count(REASONS["admin-vanishes-too"]) == 1


def test_the_summary_counts_verdicts_and_shows_what_is_nearest_to_failing(tmp_path: Path) -> None:
    ends = {"encoder": 3.0, "decoder": 2.0}
    numbers: dict[str, Any] = {f"{run}.{end}": value for run in ("pre_ln", "hybrid") for end, value in ends.items()}
    numbers |= {"post_ln.decoder": 0.01, "post_ln.encoder": 0.4, "seeds": 8.0}
    write(tmp_path / "results/small/figure-3", plain(), Measured(numbers), ORIGIN)
    text = summary(tmp_path / "results.md")
    claims = [claim for claim in CLAIMS.values() if claim.item == "figure-3"]
    assert text.startswith(f"{len(claims)} claims: 1 reproduced, 0 not reproduced, {len(claims) - 1} not decidable.")
    assert "`post_ln.decoder < 0.1`: 0.09; and 5 more" in text


def test_the_summary_has_smaller_scales_first_and_items_as_they_are_listed(tmp_path: Path) -> None:
    places = ["tiny/figure-4", "small/figure-3", "small/figure-10", "small/warmup", "medium/europarl", "mine/figure-1"]
    for place in reversed(places):
        write(tmp_path / "results" / place, plain(), Measured(), ORIGIN)
    rows = [line.split(" | ") for line in summary(tmp_path / "results.md").splitlines()[4:]]
    seen = [f"{row[4]}/{row[0].partition('[`')[2].partition('`')[0]}" for row in rows]
    assert list(dict.fromkeys(seen)) == places


def test_a_published_run_is_not_trained_again(lab: Lab, tmp_path: Path) -> None:
    document, results, spec = tmp_path / "results.md", tmp_path / "work/tiny", Spec("post_ln_6", "post_ln", 6)
    document.write_text("# Results\n")
    write(results / "figure-3", plain(), Measured(), ORIGIN)
    write_json(results / "figure-3/configs/post_ln_6_1111.toml", {})
    measured = {"outcome": asdict(Outcome(1.5, 4.5)), **identity(lab.config(spec, 1111))}
    write_json(results / "runs/post_ln_6_1111/outcome.json", measured)
    publish(results, ["figure-3"], document)
    elsewhere = replace(lab, kept=kept_runs(document, "tiny"), before=set(), missing={"post_ln_6_1111"})
    kept = elsewhere.outcome(spec, 1111)
    assert kept and kept.outcome.loss == 1.5 and len(elsewhere.before) == 1 and not elsewhere.missing
    for trained in (elsewhere.outcome(spec, 2222), elsewhere.outcome(spec, 1111, "test"), elsewhere.run(spec, 1111)):
        assert isinstance(trained, Pretended), "another seed, a score that was not kept, the weights"


SHORT = ("train.tokens=64", "train.steps=2", "train.save_every=2", "train.valid_every=2", "optim.warmup=1", "model.width=16")
ONE, OTHER = (Spec(name, "admin", 1, (*SHORT, "model.heads=2", "model.ffn=16")) for name in ("one", "other"))


@pytest.fixture
def real(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab that trains, two updates each."""
    monkeypatch.setattr(Lab, "finish", FINISH)
    return Lab(lab.scale, tmp_path / "tiny", lab.out / "raw", seeds=2)


def test_only_the_runs_that_are_named_are_trained_and_the_rest_is_left_out(real: Lab) -> None:
    some = replace(real, train=("one_*", "other_2222"))
    found = some.train_all([ONE, OTHER])
    assert found.by_seed("one.loss").keys() == {"1111", "2222"} and found.by_seed("other.loss").keys() == {"2222"}
    assert some.missing == {"other_1111"} and not (real.out / "runs/other_1111").exists()
    rest = replace(real, train=("none",), missing=set())
    assert rest.train_all([ONE, OTHER]).numbers == found.numbers and rest.missing == {"other_1111"}
    real.forget()
    real.train_all([ONE, OTHER])
    assert len(real.made) == 1 and not real.missing


def test_two_processes_share_the_runs_of_an_item(real: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock_folder(real.out / "runs/one_1111"):
        assert real.train_all([ONE, OTHER]).by_seed("one.loss").keys() == {"2222"} and real.missing == {"one_1111"}
    once = replace(real, seeds=1, missing=set(), made=set(), before=set())
    calls = iter([InUse("the other process has it")])

    def train_there(config: Any) -> Any:
        run = train_if_needed(config)
        for error in calls:
            raise error
        return run

    monkeypatch.setattr(laboratory, "train_if_needed", train_there)
    assert once.train_all([ONE]).by_seed("one.loss").keys() == {"1111"}, "what is in use at first is looked at again"
    assert not once.missing and not once.made and len(once.before) == 1, "and was not trained here"


def test_what_a_run_s_weights_showed_is_kept_without_them(real: Lab, tmp_path: Path) -> None:
    examine = lambda run: [Reading("layers", float(run.model().config.encoder_layers), seed=7)]  # noqa: E731
    rows = real.readings(ONE, 1111, "depth", examine)
    document = tmp_path / "results.md"
    document.write_text("# Results\n")
    write(real.out / "figure-3", plain(), Measured({"a": 1.0}), ORIGIN)
    write_json(real.out / "figure-3/configs/one_1111.toml", {})
    publish(real.out, ["figure-3"], document)
    elsewhere = replace(real, out=tmp_path / "elsewhere", kept=kept_runs(document, "tiny"), train=("none",))
    assert elsewhere.readings(ONE, 1111, "depth", examine) == rows == [Reading("layers", 2.0, seed=7)]
    assert elsewhere.readings(ONE, 2222, "depth", examine) == [] and elsewhere.missing == {"one_2222"}


def test_a_result_that_lacks_runs_says_so_and_is_measured_again(real: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    item = replace(plain(lambda lab: lab.train_all([ONE, OTHER])), table=quality.TABLE_2.table)
    monkeypatch.setattr(reproduce, "find_item", lambda name: item)
    with pytest.raises(ConfigError, match="no run of figure-3 is finished"):
        reproduce.reproduce("figure-3", replace(real, train=("none",)))
    some = replace(real, train=("one_1111", "othr_*"), missing=set())
    reproduce.reproduce("figure-3", some)
    assert "left out: `one` (2222), `other` (1111, 2222)." in (real.out / "figure-3/README.md").read_text()
    with pytest.raises(ConfigError, match=r"--train othr_\*: figure-3 has no such run. Did you mean other_"):
        reproduce.check_patterns(some, ["figure-3"])
    reproduce.reproduce("figure-3", replace(real, missing=set()))
    assert "missing" not in read_numbers(real.out / "figure-3")[1]


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda lab: reproduce.find_item("figure-33"), "Did you mean figure-3"),
        (lambda lab: find_scale("smal"), "Did you mean small"),
        (lambda lab: reproduce.reproduce("table-4", lab), "cannot be run at --scale tiny"),
        (lambda lab: Lab(SCALES["small"], lab.out).data, "needs --data"),
        (lambda lab: Lab(lab.scale, lab.out, lab.data).data_of("ende", "prepare.lowercase=true"), "needs the raw text"),
        (lambda lab: read_numbers(lab.out / "nowhere"), "not a result"),
    ],
)
def test_what_a_user_got_wrong_is_one_line(act: Any, error: str, lab: Lab) -> None:
    with pytest.raises((ConfigError, DataError), match=error) as caught:
        act(lab)
    assert isinstance(caught.value, BathyError) and "\n" not in str(caught.value)


def test_the_list_shows_every_item_and_scale(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "--list"])
    printed = capsys.readouterr().out
    assert end.value.code == 0 and all(word in printed for word in (*reproduce.PLACES, *SCALES))


def test_a_wrong_item_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "figure-33"])
    assert end.value.code == 2 and "Did you mean figure-3" in capsys.readouterr().err
