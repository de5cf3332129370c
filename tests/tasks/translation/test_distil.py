"""Distillation: a plain corpus folder whose lines belong together, however often it was stopped; a student trained on it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import folders
import pytest

from bathy.cli import main
from bathy.errors import ConfigError, DataError
from bathy.tasks.translation.distil import write_corpus
from bathy.tasks.translation.distil.select import choose, select
from bathy.tasks.translation.distil.teacher import Taught
from bathy.tasks.translation.distil_settings import DistilConfig
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.translate import Translator


@pytest.fixture(scope="module")
def teacher(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = folders.sized(Codec.load(toy_data))
    for layer in model.decoder.layers:  # so that each source has a translation of its own
        layer.get_parameter("cross_attention.f.out.weight").mul_(30)
    return folders.model_folder(tmp_path_factory.mktemp("teacher") / "model", toy_data, model)


@pytest.fixture(scope="module")
def raw(toy_raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 130 training pairs of the toy corpus, and its validation split."""
    folder = tmp_path_factory.mktemp("small")
    for path in toy_raw.glob("[tv][ra][al]i*.??"):
        lines = path.read_text(encoding="utf-8").splitlines()[: 130 if path.stem == "train" else 10]
        (folder / path.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def settings(teacher: Path, raw: Path, **changes: Any) -> DistilConfig:
    return DistilConfig(
        **{"teacher": (str(teacher),), "raw": str(raw), "beam": 2, "shard": 40, "workers": 1, "max_ratio": 0, **changes}
    )


def texts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.??"))}


def test_the_corpus_holds_each_source_beside_the_teachers_translation(teacher: Path, raw: Path, tmp_path: Path) -> None:
    written = write_corpus(settings(teacher, raw), tmp_path / "text")
    sources = (raw / "train.de").read_text(encoding="utf-8").splitlines()
    translator = Translator.load([teacher], Decode(beam=2))
    found = [one for start in range(0, len(sources), 40) for one in translator.translate(sources[start : start + 40])]
    pairs = zip(
        *((tmp_path / f"text/train.{side}").read_text(encoding="utf-8").splitlines() for side in ("de", "en")), strict=True
    )
    expected = [(one.source, one.texts[0]) for one in found if one.texts[0].strip()]
    assert list(pairs) == expected and len({text for _, text in expected}) > 20
    assert texts(tmp_path / "text")["valid.en"] == texts(raw)["valid.en"]
    assert written["splits"]["train"]["lines"] == len(expected) and written["distil"]["beam"] == 2


def test_shards_and_processes_do_not_change_a_byte_and_damage_is_made_again(teacher: Path, raw: Path, tmp_path: Path) -> None:
    write_corpus(settings(teacher, raw), tmp_path / "one")
    expected = texts(tmp_path / "one")
    write_corpus(settings(teacher, raw, workers=2), tmp_path / "two")
    assert texts(tmp_path / "two") == expected
    shards = sorted((tmp_path / "one/.work").rglob("0*.json"))
    assert len(shards) == 4
    shards[0].write_text(shards[0].read_text(encoding="utf-8").replace("texts", "text5", 1), encoding="utf-8")
    shards[1].unlink()
    shards[2].write_bytes(shards[3].read_bytes())  # whole, but of other sources
    kept = shards[3].stat().st_mtime_ns
    write_corpus(settings(teacher, raw), tmp_path / "one")
    assert texts(tmp_path / "one") == expected and shards[3].stat().st_mtime_ns == kept


STUDENT = [
    "model.encoder_layers=2", "model.decoder_layers=1", "model.width=16", "model.ffn=16", "model.heads=2", "train.steps=40",
    "train.tokens=256", "train.valid_every=0", "train.save_every=2", "data.vocab=150", "distil.beam=2", "distil.shard=10",
    "distil.workers=1", "distil.max_ratio=0",
]  # fmt: skip


def command(teacher: Path, raw: Path, folder: Path) -> list[str]:
    """The words after `bathy` that distil a small student into a folder."""
    words = [word for change in [*STUDENT, f"data.path='{folder / 'data'}'"] for word in ("--set", change)]
    return ["distil", "--teacher", str(teacher), "--raw", str(raw), "--run", str(folder / "run"), *words]


@pytest.mark.slow
def test_a_killed_teacher_and_a_killed_student_resume_bit_for_bit(teacher: Path, raw: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with pytest.raises(SystemExit) as leaving:
        main(command(teacher, raw, whole))
    assert not leaving.value.code
    shards, saved = "run-text/.work/*/00002.json", "run/checkpoints/step_*"
    for wanted in (shards, saved, "nothing"):
        child = subprocess.Popen([sys.executable, "-m", "bathy", *command(teacher, raw, killed)])
        while child.poll() is None and not [*killed.glob(wanted)]:
            time.sleep(0.01)
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.wait()
    assert child.returncode == 0 and texts(killed / "run-text") == texts(whole / "run-text")
    ends = [folder / "run/checkpoints/step_00000040/model.safetensors" for folder in (whole, killed)]
    assert ends[0].read_bytes() == ends[1].read_bytes()


def test_a_student_is_trained_on_the_teachers_text(teacher: Path, raw: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([*command(teacher, raw, tmp_path), "--set", "train.steps=3", "--set", "distil.shard=2000"])
    assert not leaving.value.code
    with pytest.raises(SystemExit) as leaving:  # the student's data folder holds other text than this corpus
        main([*command(teacher, raw, tmp_path), "--run", str(tmp_path / "other")])
    assert leaving.value.code == 2 and not [*tmp_path.glob("other*")]
    manifest = json.loads((tmp_path / "data/manifest.json").read_text(encoding="utf-8"))
    assert (tmp_path / "run/checkpoints/step_00000003").is_dir() and "train" in manifest["splits"]
    assert len((tmp_path / "run-text/train.de").read_text(encoding="utf-8").splitlines()) > 100


def test_selection_drops_what_it_says() -> None:
    rows = [
        Taught("a b", ("x y", "good one"), (-1.0, -2.0)),
        Taught("a", ("",), (-0.5,)),
        Taught("a", ("x " * 9,), (-0.6,)),
        Taught("b", ("z",), (-9.0,)),
    ]
    references = ["good one", "r", "r", "r"]
    config = DistilConfig(max_ratio=3)
    assert select(rows, references, config)[0] == [("a b", "x y"), ("b", "z")]
    pairs, dropped = select(rows, references, config.model_copy(update={"drop_worst": 0.25}))
    assert pairs == [("a b", "x y")] and dropped == {
        "a side is empty": 1,
        "unequal lengths": 1,
        "among the worst by the teacher's score": 1,
    }
    assert choose(rows[0], references[0], "similar") == ("good one", -2.0)


def test_what_is_missing_or_does_not_belong_together_is_one_line(teacher: Path, raw: Path, tmp_path: Path) -> None:
    for wrong, message in (({"teacher": ()}, "distil.teacher"), ({"raw": ""}, "distil.raw")):
        with pytest.raises(ConfigError, match=message):
            write_corpus(settings(teacher, raw).model_copy(update=wrong), tmp_path / "text")
    uneven = tmp_path / "uneven"
    uneven.mkdir()
    (uneven / "train.de").write_text("Ja\nNein\n")
    (uneven / "train.en").write_text("yes\n")
    with pytest.raises(DataError, match=r"2 lines, .* 1;"):
        write_corpus(settings(teacher, uneven), tmp_path / "text")


def test_text_of_others_is_never_replaced(teacher: Path, raw: Path, tmp_path: Path) -> None:
    before = texts(raw)
    (tmp_path / "raw").symlink_to(raw)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.de").write_text("Ja\n")
    for folder in (raw, tmp_path / "raw", tmp_path / "mine"):
        with pytest.raises(ConfigError, match="--corpus"):
            write_corpus(settings(teacher, raw), folder)
    assert texts(raw) == before and (tmp_path / "mine/train.de").read_text() == "Ja\n"


def test_a_line_that_the_teacher_reads_in_part_is_dropped(teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for language in ("de", "en"):
        (tmp_path / f"raw/train.{language}").write_text(
            "Der Hund schläft.\n" + "Der Hund schläft. " * 40 + "\n", encoding="utf-8"
        )
    written = write_corpus(settings(teacher, tmp_path / "raw"), tmp_path / "text")
    assert written["dropped"] == {"longer than the teacher reads": 1} and written["splits"]["train"]["lines"] == 1
