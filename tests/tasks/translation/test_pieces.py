"""SentencePiece: what the library itself says, in bathy's numbering, whatever the model's own."""

import io
import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from bathy.errors import BathyError, ConfigError, DataError
from bathy.tasks.special_tokens import EOS, SPECIALS, UNK
from bathy.tasks.translation.batches import Batches
from bathy.tasks.translation.data import Split
from bathy.tasks.translation.prepare import prepare
from bathy.tasks.translation.settings import DataConfig, PrepareConfig, Preparing
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.text.pieces import Pieces, learn_pieces, unite_pieces


@pytest.fixture(scope="module")
def lines(toy_raw: Path) -> list[str]:
    return [line for language in ("de", "en") for line in (toy_raw / f"train.{language}").read_text().splitlines()]


def settings_of(raw: Path, out: Path, vocab: int = 300, **more: Any) -> Preparing:
    prepare_settings = PrepareConfig(raw=str(raw), workers=1, tokeniser="sentencepiece", **more)
    return Preparing(data=DataConfig(path=str(out), vocab=vocab), prepare=prepare_settings)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_data_folder_holds_what_the_library_says(kind: str, toy_raw: Path, tmp_path: Path) -> None:
    prepare(settings_of(toy_raw, tmp_path / "d", model_type=kind))
    library: Any = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "d/sentencepiece.model"))
    assert library.get_piece_size() == 300 and [library.id_to_piece(i) for i in range(4)] == SPECIALS
    data = Split(tmp_path / "d", "train")
    for side, language in (("source", "de"), ("target", "en")):
        text = (toy_raw / f"train.{language}").read_text().splitlines()[:200]
        assert [getattr(data, side)[i].tolist() for i in range(200)] == [[*library.encode(line), EOS] for line in text]
        assert Codec.load(tmp_path / "d").decode([getattr(data, side)[i] for i in range(200)], side) == text  # type: ignore[arg-type]


def test_learning_gives_the_same_file_every_time(lines: list[str]) -> None:
    assert len({learn_pieces([lines], 200, kind).model for kind in ("unigram", "unigram")}) == 1


def foreign(lines: list[str], **options: Any) -> bytes:
    """A model as others make it: no padding, other ids."""
    model = io.BytesIO()
    trainer: Any = sentencepiece.SentencePieceTrainer
    trainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=250, minloglevel=2, **options)
    return model.getvalue()


@pytest.mark.parametrize("options", [{}, {"unk_id": 5, "bos_id": -1, "eos_id": 0, "pad_id": 3}, {"model_type": "bpe"}])
def test_a_model_of_any_numbering_is_read(options: dict[str, Any], lines: list[str], toy_raw: Path, tmp_path: Path) -> None:
    (tmp_path / "their.model").write_bytes(foreign(lines, **options))
    library: Any = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "their.model"))
    prepare(settings_of(toy_raw, tmp_path / "d", codes=str(tmp_path / "their.model")))
    codec = Codec.load(tmp_path / "d")
    assert (tmp_path / "d/sentencepiece.model").read_bytes() == (tmp_path / "their.model").read_bytes()
    for line in lines[:100]:
        (ids,) = codec.encode([line])
        assert [codec.subwords["source"].names[i] for i in ids[:-1]] == [library.id_to_piece(i) for i in library.encode(line)]


def test_two_models_share_one_vocabulary(toy_raw: Path, tmp_path: Path) -> None:
    manifest = prepare(settings_of(toy_raw, tmp_path / "d", vocab=200, joint=False, model_type="bpe"))
    codec = Codec.load(tmp_path / "d")
    source, target = codec.subwords["source"], codec.subwords["target"]
    assert source.names == target.names and 200 < manifest["vocab"] == codec.vocab < 400
    for side, language in (("source", "de"), ("target", "en")):
        library: Any = sentencepiece.SentencePieceProcessor(
            model_file=str(tmp_path / "d" / ("sentencepiece.model" if side == "source" else "sentencepiece.target.model"))
        )
        line = (toy_raw / f"train.{language}").read_text().splitlines()[7]
        (ids,) = codec.encode([line], side)  # type: ignore[arg-type]
        assert [source.names[i] for i in ids[:-1]] == [library.id_to_piece(i) for i in library.encode(line)]
        assert codec.decode([ids], side) == [line]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def with_bytes(lines: list[str]) -> Pieces:
    return learn_pieces([lines], 600, "bpe", byte_fallback=True, symbols=["<de>", "<en>"])


@settings(deadline=None, max_examples=100)
@given(text=st.text(st.characters(categories=["L", "N", "P"], max_codepoint=0xFFFF), min_size=1))
def test_with_bytes_nothing_is_unknown(text: str, with_bytes: Pieces) -> None:
    ids = with_bytes.encode(text)
    normal = with_bytes.processor.normalize(text).replace("▁", " ").strip()
    assert UNK not in ids and with_bytes.decode(ids) == normal


def test_symbols_are_one_piece_wherever_they_stand(with_bytes: Pieces) -> None:
    names = [with_bytes.names[i] for i in with_bytes.encode("<de> der Hund<en>x")]
    assert names.count("<de>") == names.count("<en>") == 1


def test_dropout_skips_merges_and_none_at_zero(lines: list[str], with_bytes: Pieces) -> None:
    rng = random.Random(1)
    assert all(with_bytes.encode_with_dropout(line, 0.0, rng) == with_bytes.encode(line) for line in lines[:200])
    sizes = [sum(len(with_bytes.encode_with_dropout(line, p, rng)) for line in lines[:50]) for p in (0.0, 0.1, 0.9)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[2]
    assert with_bytes.decode(with_bytes.encode_with_dropout("der 字 Hund", 0.5, rng)) == "der 字 Hund"


def test_dropout_of_a_unigram_model_is_refused(toy_raw: Path, tmp_path: Path) -> None:
    prepare(settings_of(toy_raw, tmp_path / "d"))
    with pytest.raises(ConfigError, match=r"data\.bpe_dropout needs merges"):
        Batches([Split(tmp_path / "d", "train")], 512, dropout=0.1)


@pytest.mark.parametrize("content", [b"", b"no model", b"null"])
def test_a_file_that_is_no_model_is_one_line(content: bytes, toy_raw: Path, tmp_path: Path) -> None:
    (tmp_path / "x.model").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.model is not a SentencePiece model that can be read"):
        prepare(settings_of(toy_raw, tmp_path / "d", codes=str(tmp_path / "x.model")))


def test_a_damaged_model_is_noticed_and_repaired(toy_raw: Path, tmp_path: Path) -> None:
    prepare(settings_of(toy_raw, tmp_path / "d"))
    path = tmp_path / "d/sentencepiece.model"
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DataError, match="is damaged"):
        Codec.load(tmp_path / "d")
    prepare(settings_of(toy_raw, tmp_path / "d"))
    assert Codec.load(tmp_path / "d").vocab == 300


BAD = {
    "data.vocab is 90000, but the training text allows": {"vocab": 90_000},
    "data.vocab is 20, but characters and special tokens are": {"vocab": 20},
    "prepare.merges does not go with SentencePiece": {"merges": 5},
    "prepare.symbols is": {"symbols": ("</s>",)},
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_learned_is_said(message: str, toy_raw: Path, tmp_path: Path) -> None:
    with pytest.raises(BathyError, match=message):
        prepare(settings_of(toy_raw, tmp_path / "d", **BAD[message]))  # type: ignore[arg-type]


@pytest.mark.parametrize("symbols", [("",), ("<x>", "<x>"), ("<pad>",), ("a b",), ("a\nb",), ("x ",)])
def test_a_symbol_that_cannot_be_one_piece_is_refused(symbols: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"prepare\.symbols is"):
        PrepareConfig(tokeniser="sentencepiece", symbols=symbols)


def test_its_settings_without_it_are_refused() -> None:
    for setting in ({"byte_fallback": True}, {"symbols": ("<x>",)}, {"model_type": "bpe"}):
        with pytest.raises(ConfigError, match="are SentencePiece's"):
            PrepareConfig(**setting)


def test_fewer_characters_can_be_kept(toy_raw: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"prepare\.characters is 20, which is \d+ % of the text; .*: at least (\d+)"
    ) as caught:
        prepare(settings_of(toy_raw, tmp_path / "d", characters=20))
    least = int(str(caught.value).rsplit(maxsplit=1)[1])
    prepare(settings_of(toy_raw, tmp_path / "d", characters=least))
    prepare(settings_of(toy_raw, tmp_path / "all"))
    few, every = (sum(len(name) == 1 for name in Codec.load(tmp_path / name).subwords["source"].names) for name in ("d", "all"))
    assert few < every


def test_united_models_keep_their_own_pieces(lines: list[str]) -> None:
    a, b = Pieces(foreign(lines[:1500])), Pieces(foreign(lines[1500:]))
    first, second = unite_pieces(a, b)
    for own, united, line in ((a, first, lines[0]), (b, second, lines[-1])):
        assert [own.names[i] for i in own.encode(line)] == [united.names[i] for i in united.encode(line)]
