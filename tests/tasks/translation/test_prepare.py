"""Preparing: nothing twice, nothing half, everything counted, and a clear line for what is wrong."""

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest
from subword_nmt.learn_bpe import learn_bpe

from bathy.cli import main
from bathy.errors import BathyError, ConfigError, DataError
from bathy.files import digest, lock_folder, read_json, write_json
from bathy.tasks import read_config
from bathy.tasks.blocks import block_sums
from bathy.tasks.lines import read_lines
from bathy.tasks.special_tokens import EOS
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.corpora.toy import write_toy
from bathy.tasks.translation.data import Split, verify
from bathy.tasks.translation.prepare import Preparation, clean, encode, prepare
from bathy.tasks.translation.prepare.inputs import inspect_all
from bathy.tasks.translation.settings import CleanConfig, DataConfig, EncodeConfig, LearnConfig, PrepareConfig, read_preparing
from bathy.tasks.translation.text import Codec


def settings(raw: Path, out: Path, vocab: int = 300, **more: Any) -> Config:
    return Config(data=DataConfig(path=str(out), vocab=vocab), prepare=PrepareConfig(raw=str(raw), workers=1, **more))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "manifest.json"}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A raw folder of 220 pairs that is worked on in shards of 50."""
    for module in ("inputs", "clean"):
        monkeypatch.setattr(f"bathy.tasks.translation.prepare.{module}.SHARD", 50)
    raw = tmp_path / "raw"
    write_toy(raw, size=220, held_out=5, seed=3)
    return raw


def test_a_data_folder_is_the_text_encoded_line_by_line(toy_raw: Path, toy_data: Path) -> None:
    codec = Codec.load(toy_data)
    for split in ("train", "test_structure"):
        data = Split(toy_data, split)
        for side, language in (("source", "de"), ("target", "en")):
            lines = (toy_raw / f"{split}.{language}").read_text().splitlines()
            assert [getattr(data, side)[i].tolist() for i in range(len(data))] == codec.encode(lines, cast(Any, side))
    assert Split(toy_data, "train").source.ids.dtype == np.uint16
    verify(toy_data, data.manifest)


def test_the_manifest_counts_what_is_there(toy_data: Path) -> None:
    data = Split(toy_data, "train")
    row = data.manifest["splits"]["train"]
    lengths = data.target.lengths
    assert row["target"]["tokens"] == lengths.sum() and row["target"]["longest"] == lengths.max()
    assert row["target"]["median"] == np.median(lengths) and row["target"]["mean"] == round(float(lengths.mean()), 2)
    assert data.manifest["round_trip"] == {"source": 1.0, "target": 1.0}, "the toy corpus has no ambiguous punctuation"
    assert row["lines"] == row["sentences"] == 1500 and row["dropped"] == {} and data.manifest["vocab"] == 600


def test_shards_workers_and_compression_change_nothing(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(settings(small, tmp_path / "a"))
    for path in small.glob("train.*"):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    monkeypatch.setattr("bathy.tasks.translation.prepare.SMALL", 0)
    config = settings(small, tmp_path / "b")
    prepare(Config(data=config.data, prepare=config.prepare.model_copy(update={"workers": 2})))
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_again_with_nothing_changed_does_nothing_and_changes_redo_what_depends(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def counted(name: str, function: Any) -> Any:
        return lambda job: (done.append(name), function(job))[1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(clean, "clean_shard", counted("clean", clean.clean_shard))
    monkeypatch.setattr(encode, "encode_shard", counted("encode", encode.encode_shard))
    out = tmp_path / "data"
    first = prepare(settings(small, out))
    assert (done.count("clean"), done.count("encode")) == (8, 8)  # 5 shards of train, one each of three others
    done.clear()
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert prepare(settings(small, out)) == first and done == []
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    prepare(settings(small, out, vocab=320))
    assert (done.count("clean"), done.count("encode")) == (0, 8), "another vocabulary does not tokenise again"
    done.clear()
    (small / "test.en").write_text((small / "test.en").read_text().replace("the", "THE"))
    prepare(settings(small, out, vocab=320))
    assert done.count("clean") == 1, "a changed test set leaves the training text alone"
    done.clear()
    (out / "train.source.ids.npy").unlink()
    prepare(settings(small, out, vocab=320))
    assert (out / "train.source.ids.npy").exists(), "a lost file is made again"


def test_a_run_that_fails_midway_goes_on_where_it_stopped(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(settings(small, tmp_path / "whole"))
    real, calls = clean.clean_shard, []

    def failing(job: clean.Job) -> int:
        calls.append(job.number)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device", "x")
        return real(job)

    monkeypatch.setattr(clean, "clean_shard", failing)
    out = tmp_path / "data"
    with pytest.raises(DataError, match=r"no space left on the disk; free some and run the same command again"):
        prepare(settings(small, out))
    assert {path.name for path in out.iterdir()} == {".lock", ".work"} and not list(out.rglob("*.tmp"))
    with pytest.raises(DataError, match="not finished; run it again"):
        Split(out, "train")
    prepare(settings(small, out))
    assert calls[:5] == [0, 1, 2, 3, 3], "finished shards are not made again"
    assert files(out) == files(tmp_path / "whole")


def test_cleaning_drops_by_reason_and_never_touches_test_sets(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    rows = [("Haus Haus", "house house")] * 3 + [
        ("", "empty"),
        ("a b c d e f g", "a b c d e f"),
        ("eins zwei drei vier", "one"),
        ("x y", "z w"),
    ]
    for split in ("train", "test"):
        (raw / f"{split}.de").write_text("".join(f"{a}\n" for a, _ in rows))
        (raw / f"{split}.en").write_text("".join(f"{b}\n" for _, b in rows))
    manifest = prepare(settings(raw, tmp_path / "d", merges=2, max_length=5, max_ratio=2.0, deduplicate=True))
    train, test = manifest["splits"]["train"], manifest["splits"]["test"]
    assert train["dropped"] == {"empty": 1, "ratio": 1, "repeated": 2, "too long": 1} and train["sentences"] == 2
    assert test["sentences"] == 7 and test["dropped"] == {}
    after = prepare(settings(raw, tmp_path / "e", merges=2, max_length=6, measure="subwords"))
    assert after["splits"]["train"]["dropped"] == {"empty": 1, "too long": after["splits"]["train"]["dropped"]["too long"]}
    assert Split(tmp_path / "e", "train").source.lengths.max() <= 7


def test_over_long_sentences_are_cut_and_counted(toy_raw: Path, tmp_path: Path) -> None:
    manifest = prepare(settings(toy_raw, tmp_path / "d", vocab=600, longest=12, overlong="cut"))
    data = Split(tmp_path / "d", "train")
    both = np.maximum(data.source.lengths, data.target.lengths)
    assert both.max() == 12 and 0 < manifest["splits"]["train"]["cut"] <= (both == 12).sum()
    assert all(data.source[i][-1] == EOS for i in range(50))
    dropped = prepare(settings(toy_raw, tmp_path / "e", vocab=600, longest=12))["splits"]
    assert dropped["train"]["dropped"] == {"over longest": manifest["splits"]["train"]["cut"]}
    assert dropped["test"]["cut"] == manifest["splits"]["test"]["cut"] > 0


def test_every_nth_training_pair_can_be_for_validation(small: Path, tmp_path: Path) -> None:
    for path in small.glob("valid.*"):
        path.unlink()
    prepare(settings(small, tmp_path / "d", valid_every=23))
    codec = Codec.load(tmp_path / "d")
    lines = (small / "train.en").read_text().splitlines()
    valid, train = (Split(tmp_path / "d", name).target for name in ("valid", "train"))
    assert [valid[i].tolist() for i in range(len(valid))] == codec.encode(lines[22::23], "target")
    assert len(train) == 220 - 9


def test_subwords_are_learned_again_for_every_setting_that_learning_reads(small: Path, tmp_path: Path) -> None:
    """One folder prepared with one setting after another has the tokenizer of a fresh folder with that setting."""
    for path in small.glob("valid.*"):
        path.unlink()
    one = tmp_path / "one"
    seen = set[bytes]()
    for valid_every in (0, 2, 3, 0, 10):
        fresh = tmp_path / f"fresh{len(seen)}"
        prepare(settings(small, one, valid_every=valid_every))
        prepare(settings(small, fresh, valid_every=valid_every))
        assert files(one) == files(fresh)
        seen.add((one / "tokenizer.json").read_bytes())
    assert len(seen) == 4, "each leaves other pairs out"


def test_every_setting_of_a_stage_is_part_of_its_key(small: Path, tmp_path: Path) -> None:
    """A stage sees no setting but those of its own class, and each of them changes the key."""
    other: dict[str, object] = {"valid_every": 7,
                                "joint": False, "merges": 9, "characters": 50, "min_length": 2, "max_length": 90,
                                "max_ratio": 3.0, "measure": "subwords", "longest": 99, "overlong": "cut", "invalid": "skip",
                                "deduplicate": True, "source": "fr", "target": "es", "normalise": True, "tokeniser": "space",
                                "aggressive": True, "escape": True, "lowercase": True, "model_type": "bpe",
                                "byte_fallback": True, "symbols": ("<x>",)}  # fmt: skip
    pair = inspect_all(small, "de", "en", tmp_path / "memory.json", 1)[0]

    def keys(**change: Any) -> dict[Any, str]:
        one = Preparation(settings(small, tmp_path / "d", **change), tmp_path / "d")
        return {
            CleanConfig: one.text_key(pair),
            LearnConfig: one.learn_key("x"),
            EncodeConfig: one.encode_key("train", "x", "y"),
        }

    for stage in keys():
        for name in stage.model_fields.keys() - {"codes", "codes_target"}:
            base = {"tokeniser": "sentencepiece"} if name in ("model_type", "byte_fallback", "symbols") else {}
            assert keys(**base, **{name: other[name]})[stage] != keys(**base)[stage], (stage, name)


def test_a_byte_order_mark_is_no_part_of_the_text(small: Path, tmp_path: Path) -> None:
    prepare(settings(small, tmp_path / "a"))
    for path in small.glob("*.*n"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    prepare(settings(small, tmp_path / "b"))
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert next(read_lines(small / "train.en")) == next(iter((small / "train.en").read_text(encoding="utf-8-sig").splitlines()))


def test_codes_and_separate_sides_and_raw_text_are_prepared(small: Path, tmp_path: Path) -> None:
    lines = (small / "train.de").read_text().splitlines()
    with (tmp_path / "codes").open("w") as file:
        learn_bpe(iter(f"{line}\n" for line in lines), file, 50)
    prepare(settings(small, tmp_path / "codes_out", codes=str(tmp_path / "codes")))
    prepare(settings(small, tmp_path / "apart", vocab=200, joint=False))
    assert (tmp_path / "apart" / "tokenizer.target.json").exists()
    prepare(settings(small, tmp_path / "plain", tokeniser="raw"))
    for name in ("codes_out", "apart", "plain"):
        codec, data = Codec.load(tmp_path / name), Split(tmp_path / name, "train")
        assert codec.decode([data.source[i].tolist() for i in range(20)], "source") == lines[:20]


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "lines": (r"train\.en ends at line 219, but .*train\.de goes on to line 220", {}),
    "utf8": (r"train\.de, line 61: not UTF-8 .* --set prepare\.invalid=skip", {}),
    "empty": (r"train\.de is empty", {}),
    "partner": (r"train\.de has no partner train\.en", {}),
    "damaged": (r"train\.de\.gz is damaged", {}),
    "vocab": (r"data\.vocab is 90000, but the training text allows", {"vocab": 90_000}),
    "nothing left": (r"no training pair of .* is left after cleaning", {"min_length": 400}),
    "twice valid": (r"prepare\.valid_every is 5, but .* has a validation split", {"valid_every": 5}),
    "no codes": (r"the BPE codes nowhere cannot be read", {"codes": "nowhere"}),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_line_and_leaves_no_data_folder(what: str, small: Path, tmp_path: Path) -> None:
    german, english = small / "train.de", small / "train.en"
    lines = german.read_bytes().splitlines(keepends=True)
    if what == "lines":
        english.write_bytes(b"".join(english.read_bytes().splitlines(keepends=True)[:-1]))
    elif what == "utf8":
        german.write_bytes(b"".join([*lines[:60], b"caf\xe9\n", *lines[61:]]))
    elif what == "empty":
        german.write_bytes(b"")
        english.write_bytes(b"")
    elif what == "partner":
        english.unlink()
    elif what == "damaged":
        german.unlink()
        (small / "train.de.gz").write_bytes(gzip.compress(b"".join(lines))[:-200])
    match, more = BAD[what]
    with pytest.raises(BathyError, match=match) as caught:
        prepare(settings(small, tmp_path / "data", **more))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data" / "manifest.json").exists() and not list(tmp_path.rglob("*.tmp"))


def test_undecodable_lines_can_be_skipped(small: Path, tmp_path: Path) -> None:
    lines = (small / "train.de").read_bytes().splitlines(keepends=True)
    (small / "train.de").write_bytes(b"".join([*lines[:60], b"caf\xe9\n", *lines[61:]]))
    row = prepare(settings(small, tmp_path / "data", invalid="skip"))["splits"]["train"]
    assert row["dropped"] == {"not UTF-8": 1} and row["sentences"] == 219


def test_a_killed_run_leaves_nothing_in_place_and_goes_on(tmp_path: Path) -> None:
    write_toy(tmp_path / "raw", size=21_000, held_out=5)
    command = [
        sys.executable,
        "-m",
        "bathy",
        "prepare",
        "--raw",
        str(tmp_path / "raw"),
        "--out",
        str(tmp_path / "d"),
        "--workers",
        "1",
    ]
    process = subprocess.Popen([*command, "--vocab", "3000"], stdout=subprocess.DEVNULL)
    while not list((tmp_path / "d").glob(".work/text-*/*.json")) and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert {path.name for path in (tmp_path / "d").iterdir()} == {".lock", ".work"}
    prepare(settings(tmp_path / "raw", tmp_path / "d", vocab=3000))
    assert len(Split(tmp_path / "d", "train")) == 21_000


def test_a_changed_file_is_found_by_its_checksum(toy_raw: Path, tmp_path: Path) -> None:
    prepare(settings(toy_raw, tmp_path / "d"))
    path = tmp_path / "d" / "test.source.ids.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(DataError, match="checksum differs"):
        verify(tmp_path / "d", json.loads((tmp_path / "d" / "manifest.json").read_text()))


def damage(path: Path, random: Random) -> None:
    """One of many ways to spoil a file: a flipped bit, a cut, nothing, noise, another type."""
    whole = path.read_bytes()
    place = random.randrange(len(whole))
    flipped = whole[:place] + bytes([whole[place] ^ (1 << random.randrange(8))]) + whole[place + 1 :]
    path.write_bytes(random.choice([flipped, whole[:place], b"", random.randbytes(len(whole)), b"null", b"[]", whole + b"x"]))


@pytest.mark.parametrize("seed", range(12))
def test_preparing_again_repairs_whatever_is_damaged(seed: int, small: Path, tmp_path: Path) -> None:
    """Also in .work, which the next vocabulary would be made from; a file that was not touched does not hide one that was."""
    random = Random(seed)
    out, again = settings(small, tmp_path / "d", deduplicate=True), settings(small, tmp_path / "d", vocab=310, deduplicate=True)
    prepare(out)
    whole = files(tmp_path / "d")
    found = sorted(p for p in (tmp_path / "d").rglob("*") if p.is_file() and p.name != ".lock")
    for path in random.sample(found, 3):
        damage(path, random)
    prepare(out)
    assert files(tmp_path / "d") == whole
    for path in random.sample(sorted((tmp_path / "d" / ".work").rglob("*.*")), 3):
        damage(path, random)
    prepare(again)
    prepare(settings(small, tmp_path / "fresh", vocab=310, deduplicate=True))
    assert files(tmp_path / "d") == files(tmp_path / "fresh")


def test_a_killed_shard_is_not_trusted(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that lost its end, as after a power cut, is made again; nothing is lost silently."""
    prepare(settings(small, tmp_path / "whole"))
    monkeypatch.setattr(encode, "encode_shard", lambda job: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare(settings(small, tmp_path / "d"))
    monkeypatch.undo()
    for module in ("inputs", "clean"):
        monkeypatch.setattr(f"bathy.tasks.translation.prepare.{module}.SHARD", 50)
    shard = next((tmp_path / "d").glob(".work/text-*/000002.tsv"))
    shard.write_bytes(b"".join(shard.read_bytes().splitlines(keepends=True)[:-7]))
    prepare(settings(small, tmp_path / "d"))
    assert files(tmp_path / "d") == files(tmp_path / "whole")


def test_two_cannot_prepare_one_folder_at_once(small: Path, tmp_path: Path) -> None:
    with lock_folder(tmp_path / "d"), pytest.raises(DataError, match="is in use by another process"):
        prepare(settings(small, tmp_path / "d"))


@pytest.mark.parametrize("kind", ["ids", "offsets"])
def test_a_flipped_bit_is_an_error_when_its_block_is_first_read(
    kind: str, toy_raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bathy.tasks.blocks.BLOCK", 256)
    prepare(settings(toy_raw, tmp_path / "d"))
    path = tmp_path / "d" / f"train.source.{kind}.npy"
    whole = bytearray(path.read_bytes())
    whole[-300] ^= 1
    path.write_bytes(whole)
    side = Split(tmp_path / "d", "train").source
    assert side[0][-1] == EOS, "blocks that are intact can be read"
    with pytest.raises(DataError, match=rf"train\.source\.{kind}\.npy is damaged between bytes"):
        [side[i] for i in range(len(side))]


def test_an_id_beyond_the_vocabulary_is_an_error_also_where_checksums_agree(toy_raw: Path, tmp_path: Path) -> None:
    prepare(settings(toy_raw, tmp_path / "d"))
    manifest = read_json(tmp_path / "d" / "manifest.json")
    path = tmp_path / "d" / "train.target.ids.npy"
    ids = np.load(path)
    ids[77] = manifest["vocab"]
    np.save(path, ids)
    facts = manifest["splits"]["train"]["target"]
    facts["sha256"][path.name], facts["blocks"][path.name] = digest(path), block_sums(path)
    write_json(tmp_path / "d" / "manifest.json", manifest, seal=True)
    with pytest.raises(DataError, match=r"has the id 300 at place 77, but the vocabulary has 300 entries"):
        Split(tmp_path / "d", "train").target[3]


def test_a_folder_of_version_0_1_is_read_and_its_files_are_checked(toy_raw: Path, tmp_path: Path) -> None:
    """Its manifest has no seal and no blocks: the checksum of the whole file is compared at the first read."""
    prepare(settings(toy_raw, tmp_path / "d"))
    manifest = read_json(tmp_path / "d" / "manifest.json")
    for row in manifest["splits"].values():
        row["source"].pop("blocks"), row["target"].pop("blocks")
    write_json(tmp_path / "d" / "manifest.json", manifest | {"format": 1})
    text = read_json(tmp_path / "d" / "text.json")
    write_json(tmp_path / "d" / "text.json", {name: value for name, value in text.items() if name != "sha256"})
    lines = (toy_raw / "train.de").read_text().splitlines()[:5]
    assert (
        Codec.load(tmp_path / "d").decode([Split(tmp_path / "d", "train").source[i].tolist() for i in range(5)], "source")
        == lines
    )
    path = tmp_path / "d" / "train.source.ids.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    with pytest.raises(DataError, match="is damaged"):
        Split(tmp_path / "d", "train").source[0]


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"{}", b"\xff\xfe", b'{"vocab": 5, "splits": []}', b"9" * 5000])
def test_a_damaged_manifest_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(DataError, match="prepare the folder again") as caught:
        Split(tmp_path, "train")
    assert "\n" not in str(caught.value)


def test_settings_come_from_a_file_and_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[data]\npath = "here"\nvocab = 100\n[prepare]\nsource = "fr"\nlowercase = true\n')
    config = read_config(path, ["data.vocab=200", "prepare.target=en", "prepare.max_ratio=1.5", 'data.path=["a", "b"]'])
    assert (config.data.vocab, config.prepare.source, config.prepare.max_ratio) == (200, "fr", 1.5)
    assert [folder.name for folder in config.data.folders] == ["a", "b"]
    assert read_preparing(path).prepare.lowercase
    for change, message in {
        "data.vocba=3": r"data\.vocba is not a setting\. Did you mean data\.vocab\?",
        "dta.vocab=3": r"\[dta\] is not a section\. Did you mean data\?",
        "vocab=3": "write it as section.key=value",
        "data.vocab=x": r"data\.vocab is 'x'",
        "data.weights=[1.0]": r"data\.weights has 1 entries for 2 folders",
    }.items():
        with pytest.raises(ConfigError, match=message):
            read_config(path, ['data.path=["a", "b"]', change])
    with pytest.raises(ConfigError, match="there is no config"):
        read_config(tmp_path / "nowhere.toml")


def test_the_commands_work_together_and_err_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*args: str) -> int:
        with pytest.raises(SystemExit) as left:
            main(list(args))
        return int(left.value.code or 0)

    raw, out = str(tmp_path / "raw"), str(tmp_path / "data")
    assert run("corpus", "toy", raw, "--size", "300", "--held-out", "10") == 0
    assert run("prepare", "--raw", raw, "--out", out, "--vocab", "300") == 0
    assert run("data", out, "--check", "--tokens", "512", "--picture", str(tmp_path / "lengths.svg")) == 0
    text = capsys.readouterr().out
    assert "train" in text and "real tokens" in text and (tmp_path / "lengths.svg").read_text().startswith("<svg")
    assert run("prepare", "--raw", str(tmp_path / "nowhere"), "--out", out) == 2
    assert run("corpus", "tyo", raw) == 2
    assert run("data", str(tmp_path)) == 2
    assert "error:" in capsys.readouterr().err


def test_the_processes_that_prepare_text_need_no_torch() -> None:
    code = "import sys, bathy.tasks.translation.prepare, bathy.tasks.translation.corpora.toy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
