# mypy: disable-error-code="union-attr, operator, index"
"""Exported models: the same numbers and the same translations in the other engine, and refusals where they would differ."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import folders
import pytest
import tiny

from bathy.errors import ConfigError, SchemeError
from bathy.tasks.models import fold_if_possible
from bathy.tasks.translation.export import argos, ctranslate, export
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.settings import TextConfig
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.text.pieces import learn_pieces
from bathy.tasks.translation.translate import Translator

LINES = ["Der Hund schläft.", "Die alte Frau kauft heute ein rotes Haus.", "Wir lachen nie.", "Ja", "Ein Kind sieht den Berg."]
RUNS: dict[str, list[dict[str, Any]]] = {
    "marian": [{}, {"activation": "gelu"}],
    "ctranslate2": [{}, {"scheme": "pre_ln"}, {"learn_first_omega": True}, {"decoder_scheme": "pre_ln"}],
    "bathy": [{}, {"scheme": "rezero_post_ln"}],
    "argos": [{}],
}


def export_random(tmp_path: Path, data: Path, to: str, kind: str = "float32", **changes: Any) -> Any:
    """The comparison that export makes of a random model."""
    model = folders.model_folder(tmp_path / "model", data, folders.sized(Codec.load(data), **changes))
    return export(model, to, tmp_path / "out", Decode(beam=5, max_length=40), kind=kind, sample=LINES * 4)


def cases() -> list[tuple[str, dict[str, Any]]]:
    return [(to, changes) for to, many in RUNS.items() for changes in many]


@pytest.mark.parametrize(("to", "changes"), cases())
def test_the_target_computes_and_finds_the_same(to: str, changes: dict[str, Any], toy_data: Path, tmp_path: Path) -> None:
    _, rows = export_random(tmp_path, toy_data, to, **changes)
    assert [row.beam for row in rows] == [1, 5]
    assert all(row.distance < 1e-4 and not row.different for row in rows)
    assert sum(row.identical for row in rows) > len(LINES)


def test_rms_norms_reach_ctranslate2(toy_data: Path, tmp_path: Path) -> None:
    codec = Codec.load(toy_data)
    model = fold_if_possible(tiny.shake_(tiny.model(vocab=codec.vocab, norm="rms")).eval().requires_grad_(False))
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
        export_random(tmp_path, toy_data, to, **changes)
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
def test_the_guide_runs_without_bathy(toy_data: Path, toy_raw: Path, tmp_path: Path) -> None:
    pieces = sentencepiece_data(toy_raw, tmp_path / "data")
    for to, data in (("marian", toy_data), ("ctranslate2", toy_data), ("ctranslate2", pieces)):
        folder = tmp_path / f"{to}-{data.parent.name}"
        export_random(folder, data, to)
        code = re.search(r"```python\n(.*)```", (folder / "out" / "README.md").read_text(encoding="utf-8"), re.DOTALL)
        assert code
        script = "import sys; sys.modules['bathy'] = None\n" + code[1].replace("…", LINES[0])
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script], cwd=folder / "out", capture_output=True, text=True, check=False
        )
        ours = Translator.load([folder / "model"], Decode(beam=5, max_length=64)).translate(LINES[:1])[0].texts[0]
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == ours


def test_what_does_not_fold_is_kept_and_a_vanishing_omega_is_said(
    toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folders.sized(Codec.load(toy_data), scheme="rezero_post_ln")
    assert fold_if_possible(model) is model and not capsys.readouterr().err
    model = folders.sized(Codec.load(toy_data))
    model.decoder.layers[1].ffn.skip.omega[3] = 0.0
    folder = folders.model_folder(tmp_path / "model", toy_data, model)
    Translator.load([folder], Decode())
    assert "decoder.layers.1.ffn has an ω entry of size 0" in capsys.readouterr().err
    with pytest.raises(SchemeError, match="not admin"):
        export(folder, "ctranslate2", tmp_path / "out", Decode(), sample=LINES)
    assert "ω is kept" in capsys.readouterr().err


ARGOS = """
import json, sys
from argostranslate import package, sbd, translate
# The sentence splitter's models come from the network; each line here is one sentence.
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text] if text else []
package.install_from_path(sys.argv[1])
lines = json.loads(sys.argv[2])
pair = translate.get_translation_from_codes("de", "en")
tokens = [pair.underlying.pkg.tokenizer.encode(line) for line in lines]
print(json.dumps([tokens, [pair.translate(line) for line in lines]]))
"""
ODD = ["Das ist 'gut' & [schlecht] <b> | \"ja\"", "AT&T's Haus", "R&B &c", "'s war einmal", "a|b [c]"]


def sentencepiece_data(toy_raw: Path, folder: Path) -> Path:
    """The tokenizer of a data folder that was prepared with SentencePiece."""
    lines = [line for side in ("de", "en") for line in (toy_raw / f"train.{side}").read_text(encoding="utf-8").splitlines()]
    folder.mkdir()
    Codec(TextConfig(tokeniser="sentencepiece"), learn_pieces([lines[::9]], 300)).save(folder)
    return folder


@pytest.mark.parametrize("tokeniser", ["moses", "sentencepiece"])
def test_argos_installs_the_package_and_translates_with_it(
    tokeniser: str, toy_data: Path, toy_raw: Path, tmp_path: Path
) -> None:
    """Also where Moses escapes what the model has never seen escaped."""
    data = toy_data if tokeniser == "moses" else sentencepiece_data(toy_raw, tmp_path / "data")
    codec = Codec.load(data)
    export_random(tmp_path, data, "argos")
    (package,) = (tmp_path / "out").glob("*.argosmodel")
    home = {name: str(tmp_path / "argos") for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    command = [sys.executable, "-W", "ignore", "-c", ARGOS, str(package), json.dumps([*LINES, *ODD])]
    done = subprocess.run(command, env=os.environ | home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tokens, texts = json.loads(done.stdout.splitlines()[-1])
    names = argos.source_names(codec)
    known = set(names)
    expected = [[names[i] for i in row[:-1]] for row in codec.encode([*LINES, *ODD])]
    assert [["<unk>" if one not in known else one for one in row] for row in tokens] == expected
    decode = Decode(beam=4, length_penalty=0.2, patience=1, min_length=2, max_length=64)
    ours = [one.texts[0] for one in Translator.load([tmp_path / "model"], decode).translate(LINES)]
    assert ours == [text.removesuffix("@@") for text in texts[: len(LINES)]]  # a random model may stop inside a word


def test_argos_refuses_text_it_would_split_differently(toy_raw: Path, tmp_path: Path) -> None:
    codec = Codec.load(toy_raw.parent / "data")
    plain = codec.config
    for change in ({"tokeniser": "raw"}, {"aggressive": True}, {"lowercase": True}):
        codec.config = plain.model_copy(update=change)
        with pytest.raises(ConfigError, match=next(iter(change))):
            argos.check_text(codec)
    pieces = Codec.load(sentencepiece_data(toy_raw, tmp_path / "data"))
    argos.check_text(pieces)
    for text, sides, message in (
        (TextConfig(tokeniser="sentencepiece", normalise=True), 1, "normalise"),
        (TextConfig(tokeniser="sentencepiece"), 2, "one SentencePiece model"),
    ):
        with pytest.raises(ConfigError, match=message):
            argos.check_text(Codec(text, *[pieces.subwords["source"]] * sides))
