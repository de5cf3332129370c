"""From text to streams of ids and back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bathy.cli import app
from bathy.errors import BathyError, ConfigError, DataError
from bathy.tasks.language import corpora
from bathy.tasks.language.codec import PIECE, Codec, bytes_codec, characters_codec, learn_bpe, pieces
from bathy.tasks.language.data import TextStream, read_manifest
from bathy.tasks.language.prepare import prepare
from bathy.tasks.language.settings import DataConfig, PrepareConfig, Preparing
from bathy.tasks.language.text import documents, find_splits
from bathy.tasks.verify import repair, verify

TEXTS = ["def f(x):\n    return x\n\n\nclass Größe:\n    pass\n" * 9, "€ and 🐟 <|endoftext|>\n"]
CODECS: dict[str, Callable[[], Codec]] = {
    "bpe": lambda: learn_bpe(TEXTS, 280),
    "byte": bytes_codec,
    "character": lambda: characters_codec(TEXTS),
}


def preparing(folder: Path, raw: Path, vocab: int = 300, **settings: object) -> Preparing:
    return Preparing(
        data=DataConfig(path=str(folder), vocab=vocab),
        prepare=PrepareConfig(raw=str(raw), **settings),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("kind", CODECS)
def test_decoding_gives_the_text_back_also_where_it_spells_a_special_token(kind: str, tmp_path: Path) -> None:
    codec = CODECS[kind]()
    codec.save(tmp_path)
    for one in (codec, Codec.load(tmp_path)):
        for text in TEXTS:
            ids = one.encode(text)
            assert one.decode(ids) == text
            assert not np.isin(ids, [one.end, one.mask]).any()


@pytest.mark.parametrize("kind", ["byte", "character"])
def test_tables_give_the_tokenizers_own_ids(kind: str) -> None:
    codec = CODECS[kind]()
    assert codec.lookup
    for text in [*TEXTS, "unseen: ß\t\x7f"]:
        slow = codec.tokenizer.encode(text, add_special_tokens=False).ids
        assert codec.encode(text).tolist() == slow


@given(st.text(alphabet=st.sampled_from("ab \n\tß'"), max_size=60), st.integers(1, 9))
@settings(max_examples=120, deadline=None)
def test_no_token_crosses_the_border_of_two_pieces(text: str, size: int) -> None:
    codec = bytes_codec() if not text else learn_bpe([text * 3, "ab ab"], 259)
    import bathy.tasks.language.codec as module

    whole = codec.tokenizer.encode(text, add_special_tokens=False).ids
    before, module.PIECE = module.PIECE, size
    try:
        parts = list(pieces(text))
        found = [i for part in parts for i in codec.tokenizer.encode(part, add_special_tokens=False).ids]
    finally:
        module.PIECE = before
    assert "".join(parts) == text and found == whole


def test_the_stream_is_the_documents_each_between_two_ends(language_raw: Path, language_data: Path) -> None:
    codec, expected = Codec.load(language_data), {"train": [], "valid": []}  # type: ignore[var-annotated]
    for number, text in enumerate(documents(language_raw), 1):
        expected["train" if number % 10 else "valid"].append(text)
    for split, texts in expected.items():
        stream = TextStream(language_data, split)
        ids = [codec.end, *(i for text in texts for i in [*codec.encode(text).tolist(), codec.end])]
        assert stream.ids[:].tolist() == ids
        assert np.flatnonzero(np.array(ids) == codec.end).tolist() == stream.starts.tolist()
        assert stream.bytes_per_token * len(stream) == pytest.approx(sum(len(text.encode()) for text in texts))


def test_preparing_again_does_nothing_unless_something_changed_or_broke(language_raw: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first = prepare(preparing(folder, language_raw))
    when = (folder / "train.ids.npy").stat().st_mtime_ns
    assert prepare(preparing(folder, language_raw)) == first
    assert (folder / "train.ids.npy").stat().st_mtime_ns == when
    content = (folder / "train.ids.npy").read_bytes()
    (folder / "train.ids.npy").write_bytes(content[:-9] + b"wrong" + content[-4:])
    prepare(preparing(folder, language_raw))
    assert (folder / "train.ids.npy").read_bytes() == content
    assert prepare(preparing(folder, language_raw, vocabulary="byte"))["vocab"] == 258


def test_json_lines_compressed_files_and_splits_are_read(tmp_path: Path) -> None:
    import gzip

    raw = tmp_path / "raw"
    (raw / "valid").mkdir(parents=True)
    with gzip.open(raw / "train.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(json.dumps({"body": text}) for text in ["one", "", "two ß"]) + "\n")
    (raw / "valid" / "a.txt").write_text("three", encoding="utf-8-sig")
    manifest = prepare(preparing(tmp_path / "data", raw, field="body", vocabulary="byte"))
    assert {name: row["documents"] for name, row in manifest["splits"].items()} == {"train": 2, "valid": 1}
    assert TextStream(tmp_path / "data", "valid").ids[:].tolist()[1:-1] == bytes_codec().encode("three").tolist()


def test_few_documents_are_held_out_by_their_ends(tmp_path: Path) -> None:
    (tmp_path / "play.txt").write_text("0123456789" * 10)
    prepare(preparing(tmp_path / "data", tmp_path / "play.txt", vocabulary="character"))
    codec = Codec.load(tmp_path / "data")
    texts = [codec.decode(TextStream(tmp_path / "data", split).ids[:]) for split in ("train", "valid")]
    assert "".join(texts) == "0123456789" * 10 and len(texts[1]) == 10


def test_an_existing_tokenizer_is_used_with_its_own_end_of_document(
    language_raw: Path, language_data: Path, tmp_path: Path
) -> None:
    import tokenizers as lib

    words = {"</s>": 0, "[UNK]": 1, "def": 2, "return": 3}
    tokenizer = lib.Tokenizer(lib.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = lib.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    manifest = prepare(preparing(tmp_path / "data", language_raw, tokenizer=str(tmp_path / "tokenizer.json")))
    codec = Codec.load(tmp_path / "data")
    assert (codec.end, codec.mask, manifest["vocab"]) == (0, 4, 5)
    assert manifest["round_trip"] < 1 and manifest["splits"]["train"]["unknown"] > 100


def test_the_standard_library_is_a_corpus_and_splits_are_disjoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib"
    for number in range(40):
        (library / "json").mkdir(parents=True, exist_ok=True)
        (library / "json" / f"m{number:02}.py").write_text(f"# {number}\n")
    (library / "test").mkdir()
    (library / "test" / "test_x.py").write_text("# no")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(library))
    facts = corpora.write("stdlib", tmp_path / "raw")
    assert [facts["splits"][split]["documents"] for split in ("train", "valid")] == [38, 2]
    texts = [set(documents(path)) for path in find_splits(tmp_path / "raw").values()]
    assert not texts[0] & texts[1] and len(texts[0] | texts[1]) == 40


def test_tinyshakespeare_is_cut_as_nanogpt_cuts_it(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("x" * 95)
    found = {split: list(texts) for split, texts in corpora.shakespeare(tmp_path / "input.txt").items()}
    assert [len(found[split][0]) for split in ("train", "valid")] == [85, 10]


def make_binary(folder: Path) -> None:
    (folder / "a.txt").write_text("text")
    (folder / "b.bin").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")


def make_json(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"text": "good"}\n{"content": "bad"}\n')


BAD: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {
    "an empty folder": (lambda folder: None, {}, "has no text files"),
    "a binary file": (make_binary, {}, "b.bin is not text"),
    "a missing key": (make_json, {}, "line 2 has no text under 'text' .its keys are content."),
    "a line that is not JSON": (lambda folder: (folder / "a.jsonl").write_text('{"text": "a"}\n{'), {}, "line 2 is not JSON"),
    "a list": (lambda folder: (folder / "a.jsonl").write_text("[1]"), {}, "line 1 has no text under 'text' .it is .1."),
    "a number": (lambda folder: (folder / "a.jsonl").write_text('{"text": 5}'), {}, "line 1 has no text .* .it is 5."),
    "half a surrogate pair": (lambda folder: (folder / "a.jsonl").write_text(r'{"text": "\ud800"}'), {}, "line 1 .*surrogates"),
    "one character": (lambda folder: (folder / "a.txt").write_text("a"), {}, "no text for the train split"),
    "another encoding": (lambda folder: (folder / "a.txt").write_text("ß", encoding="latin-1"), {}, "byte 1 is not UTF-8"),
    "no file of the ending": (make_binary, {"endings": (".md",)}, "none of its 2 files ends in .md"),
    "a vocabulary that does not fit": (make_json, {"field": "text", "invalid": "skip"}, "line 2"),
    "empty files": (lambda folder: (folder / "a.txt").write_text(""), {}, "no text"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case: str, tmp_path: Path) -> None:
    make, options, message = BAD[case]
    raw = tmp_path / "raw"
    raw.mkdir()
    make(raw)
    with pytest.raises(BathyError, match=message) as caught:
        prepare(preparing(tmp_path / "data", raw, vocabulary="byte", **options))
    assert "\n" not in str(caught.value)


def test_a_vocabulary_that_the_text_cannot_fill_or_hold_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be")
    for vocab in (100, 5000):
        with pytest.raises(ConfigError, match=f"data.vocab is {vocab}"):
            prepare(preparing(tmp_path / "data", tmp_path / "a.txt", vocab))


def test_a_tokenizer_that_finds_nothing_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be")
    (tmp_path / "none.json").write_text('{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}')
    with pytest.raises(DataError, match=r"none.json finds no token"):
        prepare(preparing(tmp_path / "data", tmp_path / "a.txt", tokenizer=str(tmp_path / "none.json")))
    assert not [path for path in (tmp_path / "data").iterdir() if path.name != ".lock"]


def test_binary_files_can_be_skipped(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    make_binary(raw)
    (raw / "c.txt").write_text("more text")
    assert prepare(preparing(tmp_path / "data", raw, vocabulary="byte", invalid="skip"))["splits"]["train"]["documents"] == 2


def test_nanogpts_bin_files_are_read_and_its_pickle_is_not(tmp_path: Path) -> None:
    ids = np.arange(50, dtype=np.uint16) % 7
    for name in ("train.bin", "val.bin"):
        ids.tofile(tmp_path / name)
    (tmp_path / "meta.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    stream = TextStream(tmp_path, "valid", vocab=7)
    assert stream.ids[3:9].tolist() == ids[3:9].tolist() and stream.codec is None and len(stream) == 49
    with pytest.raises(DataError, match=r"data\.vocab above its largest"):
        TextStream(tmp_path, "train", vocab=6).ids[:]
    with pytest.raises(DataError, match="nothing says where documents end"):
        assert len(stream.starts)


@pytest.mark.parametrize("offset", [0, 70_000])
def test_bin_files_of_uint32_are_read_as_what_they_are(tmp_path: Path, offset: int) -> None:
    ids = np.arange(60, dtype=np.uint32) % 7 + offset
    ids.tofile(tmp_path / "train.bin")
    assert TextStream(tmp_path, "train", vocab=offset + 7).ids[:].tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "0 bytes"), (b"abc", "3 bytes, which are no uint16"), (None, "missing")]
)
def test_a_bin_file_that_holds_no_ids_is_one_clear_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "val.bin").write_bytes(content)
    (tmp_path / "train.bin").write_bytes(b"ab")
    with pytest.raises(DataError, match=message):
        TextStream(tmp_path, "valid", vocab=7)


def test_a_damaged_stream_is_an_error_when_it_is_read(language_data: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(language_data, tmp_path / "copy")
    content = bytearray((copy / "train.ids.npy").read_bytes())
    content[-3] ^= 1
    (copy / "train.ids.npy").write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        TextStream(copy, "train").ids[:]


def test_the_commands_lead_from_files_to_an_overview(language_raw: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    steps = [
        ["corpus", "folder", str(tmp_path / "raw"), "--text", str(language_raw)],
        ["prepare", "--task", "language", "--raw", str(tmp_path / "raw"), "--out", str(tmp_path / "data"), "--vocab", "400"],
        ["data", str(tmp_path / "data"), "--check", "--picture", str(tmp_path / "lengths.svg")],
    ]
    for step in steps:
        result = runner.invoke(app, step, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    assert "bytes per token" in result.output and "samples" in result.output
    assert (tmp_path / "lengths.svg").read_text(encoding="utf-8").count("<path aria-label=") > 1
    assert read_manifest(tmp_path / "data")["splits"]["train"]["documents"] == 11
    assert PIECE > 1000


@pytest.mark.parametrize("name", ["train.ids.npy", "valid.offsets.npy", "tokenizer.json"])
def test_a_data_folder_is_verified_and_repaired(name: str, language_raw: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    prepare(preparing(folder, language_raw, vocabulary="byte"))
    assert not verify(folder).faults
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    report = verify(folder)
    assert report.kind == "data" and any(
        name.split(".")[0] in str(fault) or "text.json" in str(fault) for fault in report.faults
    )
    assert "prepared" in " ".join(repair(report))
    assert (folder / name).read_bytes() == whole and not verify(folder).faults


def test_a_data_folder_is_not_repaired_from_another_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be")
    prepare(preparing(tmp_path / "data", tmp_path / "a.txt", vocabulary="byte"))
    (tmp_path / "a.txt").write_text("that is the question")
    (tmp_path / "data" / "train.ids.npy").unlink()
    assert "no longer the text" in " ".join(repair(verify(tmp_path / "data")))


def test_a_corpus_of_text_is_verified(language_raw: Path, tmp_path: Path) -> None:
    corpora.write("folder", tmp_path / "raw", language_raw)
    assert not verify(tmp_path / "raw").faults
    with (tmp_path / "raw" / "train.jsonl").open("a") as file:
        file.write("{}\n")
    assert "damaged" in str(verify(tmp_path / "raw").faults[0])
