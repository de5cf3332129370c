"""Text in, text out: order, batches, cuts, prefixes, averages, ensembles, and the command line."""

import io
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import folders
import pytest

from bathy.cli import main
from bathy.errors import CheckpointError, DataError
from bathy.files import write_json
from bathy.tasks.special_tokens import EOS
from bathy.tasks.sums import write_sums
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.translate import Translator, batches, decode_settings

LINES = ["Der Hund schläft.", "", "Die alte Frau kauft heute ein rotes Haus, weil sie müde ist.", "Wir lachen.", "Ja"]


@pytest.fixture(scope="module")
def run(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = [folders.sized(Codec.load(toy_data), seed=seed) for seed in (3, 4)]
    return folders.run_folder(tmp_path_factory.mktemp("runs") / "run", toy_data, models)


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    return Translator.load([run], Decode(beam=3, n_best=3, average=1))


def call(*args: object) -> int:
    with pytest.raises(SystemExit) as leaving:
        main([str(arg) for arg in args])
    return int(leaving.value.code or 0)


def test_order_is_kept_and_batches_do_not_matter(translator: Translator) -> None:
    alone = [translator.translate([line])[0] for line in LINES]
    for one, other in zip(alone, translator.translate(LINES), strict=True):
        assert one.source == other.source and one.texts == other.texts
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


def test_an_empty_line_stays_empty_and_a_long_one_is_cut(translator: Translator) -> None:
    empty, long = translator.translate(["  ", "Haus " * 100])
    assert empty.texts == ("",) and not empty.cut
    assert long.cut == len(translator.encode(["Haus " * 100])[0]) - 64
    kept = [*translator.encode(["Haus " * 100])[0][:63], EOS]
    assert long.texts == translator.translate([translator.codec.decode([kept], "source")[0]])[0].texts


def test_checkpoints_are_averaged_before_folding(run: Path, toy_data: Path) -> None:
    codec, decode = Codec.load(toy_data), Decode(beam=2, average=2)
    mean = folders.mean([folders.sized(codec, seed=seed) for seed in (3, 4)])
    expected = Translator([mean], codec, decode).translate(LINES)
    for folded in (True, False):
        for one, other in zip(Translator.load([run], decode, folded=folded).translate(LINES), expected, strict=True):
            assert one.texts == other.texts and one.scores == pytest.approx(other.scores, abs=1e-3)


def test_rating_a_set_equals_one_by_one_and_prefers_what_was_found(translator: Translator) -> None:
    given = ["the dog is asleep .", "", "a house", "we laugh", "yes"]
    alone = [translator.rate([line], [text])[0] for line, text in zip(LINES, given, strict=True)]
    assert translator.rate(LINES, given) == pytest.approx(alone, abs=1e-4)
    assert translator.translate(LINES[:1])[0].scores[0] > alone[0]


def test_a_translation_begins_with_its_prefix(translator: Translator) -> None:
    (found,) = translator.translate([LINES[0]], ["the dog"])
    assert all(text.startswith("the dog") for text in found.texts)
    with pytest.raises(DataError, match="1 lines and 2 prefixes"):
        translator.translate([LINES[0]], ["a", "b"])


def test_an_ensemble_of_checkpoints_shares_one_tokenizer(run: Path, toy_data: Path, tmp_path: Path) -> None:
    steps = sorted((run / "checkpoints").iterdir())
    alone, twice, both = (Translator.load(part, Decode(beam=2)).translate(LINES) for part in (steps[:1], steps[:1] * 2, steps))
    assert [one.texts for one in alone] == [one.texts for one in twice]
    assert [one.scores for one in alone] != [one.scores for one in both]
    other = folders.model_folder(tmp_path / "other", toy_data, folders.sized(Codec.load(toy_data)))
    text = (other / "tokenizer.json").read_text(encoding="utf-8").replace('"</s>":3', '"</t>":3')
    (other / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises((CheckpointError, DataError)):
        Translator.load([run, other], Decode())


def test_settings_come_from_the_run_and_flags_come_first(run: Path, toy_data: Path, tmp_path: Path) -> None:
    assert decode_settings(run).beam == 3 and decode_settings(run, beam=7).beam == 7
    model = folders.model_folder(tmp_path / "model", toy_data, folders.sized(Codec.load(toy_data)))
    assert decode_settings(model).beam == 2


def test_batches_hold_every_sentence_once_within_both_limits() -> None:
    lengths = [5, 0, 9, 3, 3, 8, 1, 9, 2]
    found = batches(lengths, 3, 20)
    assert sorted(i for batch in found for i in batch) == [i for i, length in enumerate(lengths) if length]
    assert all(len(batch) <= 3 and len(batch) * lengths[batch[0]] <= 20 for batch in found)


def test_files_to_files_standard_input_and_json_agree(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.de"
    source.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    assert call("translate", run, "--input", source, "--output", tmp_path / "out.en", "--batch", 2) == 0
    written = (tmp_path / "out.en").read_text(encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(source.read_bytes())))
    assert call("translate", run) == 0 and capsys.readouterr().out == written
    assert call("translate", run, "--input", source, "--json", "--n-best", 2) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["source"] for row in rows] == LINES and all(len(row["n_best"]) == 2 for row in rows if row["source"])
    assert call("translate", run, "--input", source, "--score", tmp_path / "out.en") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(LINES)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--beam", "0"], "decode.beam is 0"),
        (["--n-best", "9"], "decode.n_best is 9"),
        (["--precision", "float23"], "Did you mean float32"),
        (["--device", "toaster"], "--device toaster cannot be used here"),
        (["--input", "nowhere"], "nowhere cannot be read"),
        (["--output", "a", "--output", "b"], "0 inputs and 2 outputs"),
        (["--checkpoint", "77"], "has no checkpoint 77"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line(
    run: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("translate", run, *args) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_broken_folders_and_text_are_one_line(
    run: Path, toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.de"
    bad.write_bytes(b"gut\n\xff\xfe\n")
    assert call("translate", run, "--input", bad, "--output", tmp_path / "x") == 2
    assert "bad.de, line 2, byte 1 is not UTF-8" in capsys.readouterr().err and not (tmp_path / "x").exists()
    empty = tmp_path / "run"
    Codec.load(toy_data).save(empty)
    assert call("translate", empty) == 2
    assert "has no checkpoints" in capsys.readouterr().err
    model = folders.model_folder(tmp_path / "model", toy_data, folders.sized(Codec.load(toy_data)))
    (model / "model.safetensors").write_bytes(b"something else")
    assert call("translate", model) == 2
    assert "model.safetensors is not what was written" in capsys.readouterr().err
    (model / "tokenizer.json").unlink()
    assert call("translate", model) == 2
    assert "tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(("folder", "expected"), [("run", "hyps_of_run.txt"), ("model", "hyps.txt")])
def test_folders_of_version_0_1_translate_as_they_did(folder: str, expected: str, tmp_path: Path) -> None:
    """The texts were written by version 0.1; its model folder is the mean of two checkpoints, its run kept the second."""
    old = Path(__file__).parents[2] / "version_0_1"
    assert call("translate", old / folder, "--input", old / "test.de", "--output", tmp_path / "out") == 0
    assert (tmp_path / "out").read_text(encoding="utf-8") == (old / expected).read_text(encoding="utf-8")


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_finished(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.en"
    # A shell gives its background jobs an ignored SIGINT; a user's terminal does not.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += f"from bathy.cli import main; main(['translate', {str(run)!r}, '--output', {str(out)!r}, '--batch', '1'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert child.stdin
    child.stdin.write(b"Der Hund.\n" * 16)
    child.stdin.flush()
    partial = tmp_path / f".out.en.{platform.node()[:20]}.{child.pid}.tmp"
    while child.poll() is None and not (partial.exists() and partial.stat().st_size):
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == 130
    child.stdin.close()
    assert len(out.read_text(encoding="utf-8").splitlines()) == 16


def flip(path: Path) -> None:
    """One bit of the file, in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def said(run: Path, *args: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and standard error of a translation of one line."""
    (run.parent / "one.de").write_text("Der Hund schläft.\n", encoding="utf-8")
    code = call("translate", run, "--input", run.parent / "one.de", "--output", run.parent / "one.en", *args)
    return code, capsys.readouterr().err


def test_a_damaged_newest_checkpoint_is_never_passed_over_silently(
    toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [folders.sized(Codec.load(toy_data), seed=seed) for seed in (3, 4)]
    run = folders.run_folder(tmp_path / "run", toy_data, models)
    oldest, newest = sorted((run / "checkpoints").iterdir())
    flip(newest / "model.safetensors")
    code, error = said(run, capsys=capsys)
    assert code == 0 and f"{newest.name} is damaged" in error
    assert call("export", run, "--to", "bathy", "--out", tmp_path / "out") == 0
    assert f"{newest.name} is damaged" in capsys.readouterr().err
    for args in ((newest,), (run, "--checkpoint", "2")):
        code, error = said(*args, capsys=capsys)
        assert code == 2 and "is damaged" in error and "Traceback" not in error
    flip(oldest / "model.safetensors")
    code, error = said(run, capsys=capsys)
    assert code == 2 and "every checkpoint" in error


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "text.json", "checksums.json", "README.md"]
)
@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "gone", "null"])
def test_a_damaged_model_folder_is_refused(
    name: str, how: str, toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folders.model_folder(tmp_path / "model", toy_data, folders.sized(Codec.load(toy_data)))
    (folder / "README.md").write_text("how to run it\n" * 3)
    write_sums(folder)
    path = folder / name
    if how == "gone":
        path.unlink()
    elif how == "flipped":
        flip(path)
    else:
        path.write_bytes({"cut": path.read_bytes()[:-9], "empty": b"", "null": b"null"}[how])
    if (name, how) == ("checksums.json", "gone"):
        return  # a folder of version 0.1 has none
    code, error = said(folder, capsys=capsys)
    assert code == 2 and len(error.strip().splitlines()) == 1 and "Traceback" not in error, error


def test_an_empty_list_of_checksums_is_not_intact(toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folders.model_folder(tmp_path / "model", toy_data, folders.sized(Codec.load(toy_data)))
    write_json(folder / "checksums.json", {"sha256": {}}, seal=True)
    code, error = said(folder, capsys=capsys)
    assert code == 2 and "lists no file" in error


def test_weights_that_are_not_finite_are_refused_by_name(
    toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folders.sized(Codec.load(toy_data))
    model.get_parameter("decoder.layers.1.ffn.f.fc1.weight")[1, 2] = float("nan")
    run = folders.run_folder(tmp_path / "run", toy_data, [model])
    code, error = said(run, capsys=capsys)
    assert code == 2 and "decoder.layers.1.ffn.f.fc1.weight has values that are not finite" in error


@pytest.mark.parametrize("option", ["--score", "--prefix"])
@pytest.mark.parametrize("lines", [0, 2, 4])
def test_each_line_needs_its_counterpart(
    run: Path, tmp_path: Path, option: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.de").write_text("Ja\n" * 3, encoding="utf-8")
    (tmp_path / "beside").write_text("we\n" * lines, encoding="utf-8")
    out = tmp_path / "out"
    assert call("translate", run, "--input", tmp_path / "in.de", option, tmp_path / "beside", "--output", out) == 2
    assert f"has 3 lines and {tmp_path / 'beside'} has {lines}" in capsys.readouterr().err and not out.exists()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Ja\nJa\nJa\n")))
    assert call("translate", run, option, tmp_path / "beside") == 2
    assert "standard input has 3 lines" in capsys.readouterr().err


def test_outputs_are_checked_before_a_model_is_loaded(
    tmp_path: Path, toy_data: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.de").write_text("Ja\n", encoding="utf-8")
    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr(Translator, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    for out in (tmp_path, tmp_path / "file" / "out", Path("/proc/nothing/out")):
        assert call("translate", run, "--input", tmp_path / "in.de", "--output", out) == 2
        error = capsys.readouterr().err
        assert len(error.strip().splitlines()) == 1 and "Traceback" not in error
    assert (tmp_path / "file").read_text() == "kept"


def test_devices_and_pipes_are_written_and_read_not_replaced(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.de").write_text("Der Hund schläft.\n" * 3, encoding="utf-8")
    assert call("translate", run, "--input", tmp_path / "in.de", "--output", "/dev/null") == 0
    assert Path("/dev/null").is_char_device()
    os.mkfifo(tmp_path / "in")
    os.mkfifo(tmp_path / "out")
    found: list[str] = []
    ends = [
        threading.Thread(target=lambda: (tmp_path / "in").write_text("Der Hund schläft.\n" * 3, encoding="utf-8")),
        threading.Thread(target=lambda: found.append((tmp_path / "out").read_text(encoding="utf-8"))),
    ]
    for end in ends:
        end.start()
    assert call("translate", run, "--input", tmp_path / "in", "--output", tmp_path / "out") == 0
    for end in ends:
        end.join()
    assert len(found[0].splitlines()) == 3 and (tmp_path / "out").is_fifo()
