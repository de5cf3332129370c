"""Words as the Perl tools split them, subwords as subword-nmt's codes say, and the way back."""

import io
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sacremoses
from hypothesis import given, settings
from hypothesis import strategies as st
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe
from tokenizers import Tokenizer

from bathy.errors import ConfigError, DataError
from bathy.tasks.special_tokens import EOS, UNK
from bathy.tasks.translation.settings import TextConfig
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.text.bpe import (
    END,
    LONGEST_CHUNK,
    Subwords,
    from_codes,
    learn,
    read_codes,
    unite,
    with_short_chunks,
)
from bathy.tasks.translation.text.moses import Moses, Normaliser

# Written by tokenizer.perl 1.1, normalize-punctuation.perl and detokenizer.perl of the Moses toolkit.
GOLDEN = json.loads(Path(__file__).with_name("moses_golden.json").read_text(encoding="utf-8"))
BOTH = {"de", "en"}
MOSES = {(language, hard): Moses(language, hard, hard) for language in BOTH for hard in (False, True)}
CHAIN = {language: sacremoses.MosesTokenizer(language) for language in BOTH}


@pytest.mark.parametrize("row", GOLDEN, ids=[row["line"][:24] for row in GOLDEN])
def test_moses_splits_normalises_and_joins_as_the_perl_tools_do(row: dict[str, str]) -> None:
    plain, hard = (MOSES[row["language"], way] for way in (False, True))
    assert plain.split(row["line"]) == row["tokens"]
    assert hard.split(row["line"]) == row["aggressive, escaped"]
    assert hard.join(row["aggressive, escaped"]) == row["detokenised"].strip()
    assert Normaliser(row["language"])(row["line"]).strip() == row["normalised"].strip()


SOUP = """der Dr. No. etc. 5 1,5 3. a-b z.B. it's 's ' '' " ( ) , . .. ... ! ? x' ,y 7, % € Ä é – & <a> @ / ² 字 A.B e. ß, '2"""
PIECES = [*SOUP.split(), "\u00a0", "\t", "\x07"]
soup = st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(["", " ", " ", "  "])), max_size=14)


@settings(deadline=None, max_examples=400)
@given(soup=soup, language=st.sampled_from(sorted(BOTH)), hard=st.booleans())
def test_splitting_by_remembered_chunks_equals_the_whole_chain(soup: list[tuple[str, str]], language: str, hard: bool) -> None:
    line = "".join(piece + space for piece, space in soup)
    options = {"aggressive_dash_splits": hard, "escape": hard, "return_str": True}
    assert MOSES[language, hard].split(line) == " ".join(CHAIN[language].tokenize(line, **options).split())


@pytest.fixture(scope="module")
def lines(toy_raw: Path) -> list[str]:
    return [
        MOSES[side, False].split(line) for side in sorted(BOTH) for line in (toy_raw / f"train.{side}").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def codes(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bpe") / "codes"
    with path.open("w") as file:
        learn_bpe(io.StringIO("\n".join(lines)), file, 400)
    return path


def test_published_codes_replay_as_subword_nmt_applies_them(lines: list[str], codes: Path) -> None:
    subwords = Subwords(from_codes(codes, {char for line in lines for char in line}))
    with codes.open() as file:
        reference = BPE(file)
    for line in [*lines, "aaa aaaa Straßenbahnhaltestelle x"]:
        names = [subwords.names[i] for i in subwords.encode(line)]
        assert " ".join(name[: -len(END)] if name.endswith(END) else name + "@@" for name in names) == reference.process_line(
            line
        )


def learnt(lines: list[str], vocab: int, **more: Any) -> Tokenizer:
    return learn(iter([lines]), {char for line in lines for char in line}, vocab, **more)


def test_learning_gives_the_same_file_in_every_process(lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join(lines))
    code = f"from bathy.tasks.translation.text.bpe import learn; t = open({str(tmp_path / 'text')!r}).read();"
    code += "print(learn([t.split('\\n')], set(t) - {'\\n'}, 700).to_str())"
    runs = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(3)}
    assert len(runs) == 1


@pytest.mark.parametrize("raw", [False, True])
def test_what_is_learnt_is_a_standard_file_with_the_asked_size(lines: list[str], raw: bool) -> None:
    tokenizer = learnt(lines, 500, raw=raw)
    again = Tokenizer.from_str(tokenizer.to_str())
    subwords = Subwords(tokenizer)
    assert again.get_vocab_size() == 500
    for line in lines[:50]:
        assert again.encode(line).ids == [*subwords.encode(line), EOS]
        assert subwords.decode(subwords.encode(line)) == line == again.decode(again.encode(line).ids)


def test_merges_are_counted_as_the_recipes_count(lines: list[str]) -> None:
    tokenizer = learnt(lines, 8000, merges=300)
    characters = {form for line in lines for word in line.split() for char in word for form in (char, char + END)}
    assert tokenizer.get_vocab_size() == 4 + len(characters) + 300


def test_a_chunk_of_a_million_characters_is_learned_from_and_encoded() -> None:
    """The trainer's own time is quadratic in a chunk's length: this would take hours."""
    chunk = "".join(random.Random(1).choices("abcdefgh", k=1_000_000))
    subwords = Subwords(learnt([chunk], 60))
    assert subwords.decode(subwords.encode(chunk)) == chunk


def test_cutting_chunks_leaves_ordinary_text_alone() -> None:
    lines = ["a b", "x" * LONGEST_CHUNK, "y" * (2 * LONGEST_CHUNK + 1) + " z"]
    assert with_short_chunks(lines[:2]) == lines[:2]
    cut = with_short_chunks(lines)
    assert cut[:2] == lines[:2] and cut[2].split(" ") == ["y" * LONGEST_CHUNK, "y" * LONGEST_CHUNK, "y", "z"]


def test_separate_merges_share_one_vocabulary(lines: list[str]) -> None:
    german, english = (learnt(part, 300) for part in (lines[:1500], lines[1500:]))
    first, second = map(Subwords, unite(german, english))
    assert first.names == second.names and first.names[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    for own, line in ((first, lines[0]), (second, lines[-1])):
        assert own.decode(own.encode(line)) == line
    pieces = [second.names[i] for i in second.encode(lines[-1])]
    assert pieces == [Subwords(english).names[i] for i in Subwords(english).encode(lines[-1])]


def test_dropout_skips_merges_at_its_rate_and_none_at_zero(lines: list[str]) -> None:
    subwords = Subwords(learnt(lines, 600))
    rng = random.Random(1)
    assert all(subwords.encode_with_dropout(line, 0.0, rng) == subwords.encode(line) for line in lines[:300])
    text = " ".join(lines[:200])
    sizes = [len(subwords.encode_with_dropout(text, chance, rng)) for chance in (0.0, 0.1, 0.5, 0.999)]
    assert sizes == sorted(sizes) and sizes[3] >= 0.99 * len(text.replace(" ", ""))
    # A word of two characters with one merge: skipped with exactly the chance, a binomial of 4,000 draws.
    pair = Subwords(from_codes_of([("a", "b</w>")]))
    split = Counter(len(pair.encode_with_dropout("ab", 0.3, rng)) for _ in range(4000))
    assert abs(split[2] / 4000 - 0.3) < 0.03


def from_codes_of(merges: list[tuple[str, str]]) -> Tokenizer:
    from bathy.tasks.translation.text.bpe import assemble, numbered

    return assemble(numbered([*{p for m in merges for p in m}, *map("".join, merges)]), merges, raw=False)


def test_what_cannot_be_learnt_is_said(lines: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.vocab is 90000, but the training text allows \d+; ask for at most"):
        learnt(lines, 90_000)
    with pytest.raises(ConfigError, match="characters and special tokens are"):
        learnt(lines, 20)
    with pytest.raises(ConfigError, match=r"prepare\.merges is 90000"):
        learnt(lines, 100, merges=90_000)
    (tmp_path / "codes").write_text("a b\n")
    with pytest.raises(DataError, match=r"does not begin with '#version: 0\.2'"):
        read_codes(tmp_path / "codes")
    (tmp_path / "codes").write_text("#version: 0.2\na b\nabc\n")
    with pytest.raises(DataError, match="line 3: a merge is two subwords"):
        read_codes(tmp_path / "codes")
    (tmp_path / "codes").write_text("#version: 0.2\nabc\na b\n")
    with pytest.raises(DataError, match="line 2: a merge is two subwords"):
        read_codes(tmp_path / "codes")


def test_a_codec_travels_with_its_folder_and_gives_natural_text_back(toy_data: Path, toy_raw: Path, tmp_path: Path) -> None:
    Codec.load(toy_data).save(tmp_path)
    codec = Codec.load(tmp_path)
    raw = (toy_raw / "test.en").read_text().splitlines()
    assert codec.decode(codec.encode(raw, "target")) == raw
    assert codec.tokens(codec.encode(["It's 5 o'clock."], "target"))[0].count("<unk>") == codec.encode(
        ["It's 5 o'clock."], "target"
    )[0].count(UNK)
    with pytest.raises(DataError, match=r"has no text\.json"):
        Codec.load(tmp_path / "nowhere")


def test_lower_casing_normalising_and_raw_text_are_settings(lines: list[str]) -> None:
    both = Subwords(learnt([line.lower() for line in lines], 500))
    codec = Codec(TextConfig(lowercase=True, normalise=True), both)
    assert (
        codec.tokens(codec.encode(["„Der Hund“ schläft."], "source"), "source")[0].count('"')
        + codec.encode(["„Der Hund“ schläft."])[0].count(UNK)
        == 2
    )
    assert codec.decode(codec.encode(["DER HUND SCHLÄFT."]), "source") == ["der hund schläft."]
    raw = Codec(TextConfig(tokeniser="raw"), Subwords(learnt(lines, 500, raw=True)))
    assert raw.decode(raw.encode(["Der  Hund schläft ,  sagt er."])) == ["Der Hund schläft , sagt er."]
