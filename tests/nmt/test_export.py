"""Exported models: the same numbers and the same translations in the other engine, and refusals where they would differ."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import folders
import pytest
import tiny

from bathy.errors import ConfigError, SchemeError
from bathy.nmt.export import ctranslate, export, plain
from bathy.nmt.search import Decode
from bathy.nmt.text import Codec
from bathy.nmt.translate import Translator

LINES = ["Der Hund schläft.", "Die alte Frau kauft heute ein rotes Haus.", "Wir lachen nie.", "Ja", "Ein Kind sieht den Berg."]
RUNS = {
    "marian": [{}, {"activation": "gelu"}],
    "ctranslate2": [{}, {"scheme": "pre_ln"}, {"learn_first_omega": True}, {"decoder_scheme": "pre_ln"}],
    "bathy": [{}, {"scheme": "rezero_post_ln"}],
}


def exported(tmp_path: Path, data: Path, to: str, kind: str = "float32", **changes: Any) -> Any:
    """The comparison that export makes of a random model."""
    model = folders.model_folder(tmp_path / "model", data, folders.sized(Codec.load(data), **changes))
    return export(model, to, tmp_path / "out", Decode(beam=5, max_length=40), kind=kind, sample=LINES * 4)


def cases() -> list[tuple[str, dict[str, Any]]]:
    return [(to, changes) for to, many in RUNS.items() for changes in many]


@pytest.mark.parametrize(("to", "changes"), cases())
def test_the_target_computes_and_finds_the_same(to: str, changes: dict[str, Any], toy_data: Path, tmp_path: Path) -> None:
    _, rows = exported(tmp_path, toy_data, to, **changes)
    assert [row.beam for row in rows] == [1, 5]
    assert all(row.distance < 1e-4 and not row.different for row in rows)
    assert sum(row.identical for row in rows) > len(LINES)


def test_rms_norms_reach_ctranslate2(toy_data: Path, tmp_path: Path) -> None:
    codec = Codec.load(toy_data)
    model = plain(tiny.shake_(tiny.model(vocab=codec.vocab, norm="rms")).eval().requires_grad_(False))
    ctranslate.write(model, codec, Decode(), tmp_path, "float32")
    source, target = codec.encode(LINES), codec.encode(["a house", "the dog", "we", "yes", "no"], "target")
    assert ctranslate.CTranslate2(tmp_path, codec, "float32").distance(model, source, target) < 1e-4


@pytest.mark.parametrize(
    ("to", "changes", "advice"),
    [
        ("marian", {"scheme": "pre_ln"}, "ctranslate2"),
        ("marian", {"learn_first_omega": True}, "model.learn_first_omega = false"),
        ("ctranslate2", {"scheme": "rezero_post_ln"}, "--to bathy"),
        ("ctranslate2", {"scheme": "peri_ln"}, "--to bathy"),
    ],
)
def test_what_would_not_be_faithful_is_refused(
    to: str, changes: dict[str, Any], advice: str, toy_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(SchemeError, match=re.escape(advice)):
        exported(tmp_path, toy_data, to, **changes)
    assert not (tmp_path / "out").exists()


def test_a_bathy_folder_translates_as_the_run_did(toy_data: Path, tmp_path: Path) -> None:
    models = [folders.sized(Codec.load(toy_data), seed=seed) for seed in (3, 4)]
    run = folders.run_folder(tmp_path / "run", toy_data, models)
    export(run, "bathy", tmp_path / "model", Decode(beam=3, average=2), sample=LINES)
    before, after = (Translator.load([folder], Decode(beam=3, average=2)) for folder in (run, tmp_path / "model"))
    assert [one.texts for one in before.translate(LINES)] == [one.texts for one in after.translate(LINES)]
    assert after.models[0].config.encoder_scheme == "post_ln"


def test_wrong_targets_and_existing_folders_are_refused(toy_data: Path, tmp_path: Path) -> None:
    model = folders.model_folder(tmp_path / "model", toy_data, folders.sized(Codec.load(toy_data)))
    for to, kind, message in (("marain", "float32", "mean marian"), ("marian", "int8", "float32, not int8")):
        with pytest.raises(ConfigError, match=message):
            export(model, to, tmp_path / "out", Decode(), kind=kind)
    with pytest.raises(ConfigError, match="exists"):
        export(model, "bathy", model, Decode())


@pytest.mark.slow
def test_the_guide_runs_without_bathy(toy_data: Path, tmp_path: Path) -> None:
    for to in ("marian", "ctranslate2"):
        folder = tmp_path / to
        exported(folder, toy_data, to)
        code = re.search(r"```python\n(.*)```", (folder / "out" / "README.md").read_text(encoding="utf-8"), re.DOTALL)
        assert code
        script = "import sys; sys.modules['bathy'] = None\n" + code[1].replace("…", LINES[0])
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script], cwd=folder / "out", capture_output=True, text=True, check=False
        )
        ours = Translator.load([folder / "model"], Decode(beam=5, max_length=64)).translate(LINES[:1])[0].texts[0]
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == ours


def test_folding_for_export_keeps_what_does_not_fold(toy_data: Path) -> None:
    model = folders.sized(Codec.load(toy_data), scheme="rezero_post_ln")
    assert plain(model) is model
