"""Scores: against sacreBLEU called by hand, with signatures, several references, systems and formats."""

import json
from pathlib import Path

import pytest
import sacrebleu
import sacremoses

from bathy.cli import main
from bathy.errors import ConfigError, DataError
from bathy.tasks.translation.score import METRICS, score

REFERENCE = [
    "The cat sat on the mat, didn't it?",
    "A man reads a book.",
    "Two dogs play in the snow.",
    "She is very tired today.",
]
GOOD = ["The cat sat on the mat, did it?", "A man reads a book.", "Two dogs play in snow.", "She is tired."]
POOR = ["Cat on mat", "Man book the", "Dogs snow in two", "Tired she very is"]


def test_each_metric_is_sacrebleus_own() -> None:
    found = {one.metric: one.score for one in score({"good": GOOD}, [REFERENCE], samples=0)}
    expected = {
        "bleu": sacrebleu.corpus_bleu(GOOD, [REFERENCE]),
        "chrf": sacrebleu.corpus_chrf(GOOD, [REFERENCE]),
        "ter": sacrebleu.corpus_ter(GOOD, [REFERENCE]),
    }
    assert found == {name: pytest.approx(value.score) for name, value in expected.items()}


def test_tokenised_bleu_is_on_moses_tokens_and_says_so() -> None:
    moses = sacremoses.MosesTokenizer("en")
    hyps, refs = ([moses.tokenize(line, escape=False, return_str=True) for line in lines] for lines in (GOOD, REFERENCE))
    expected = sacrebleu.corpus_bleu(hyps, [refs], tokenize="none", force=True).score
    (found,) = score({"good": GOOD}, [REFERENCE], ["tokenised"], samples=0)
    assert found.score == pytest.approx(expected) and "tok:none" in found.signature and found.signature.endswith("|moses:en")


def test_a_clearly_better_system_has_a_small_p_and_equals_have_a_large_one() -> None:
    many = [lines * 10 for lines in (POOR, GOOD, POOR, REFERENCE)]
    first, better, same = score(dict(zip("abc", many[:3], strict=True)), [many[3]], ["bleu"], samples=200)
    assert first.p is None and better.p is not None and same.p is not None
    assert better.score > first.score and better.p < 0.05 < same.p
    assert "bs:200" in first.signature


def test_several_references_count_and_case_can_be_left_out() -> None:
    (one,) = score({"good": GOOD}, [REFERENCE], ["bleu"], samples=0)
    (two,) = score({"good": GOOD}, [REFERENCE, GOOD], ["bleu"], samples=0)
    assert one.score < two.score == pytest.approx(100) and "nrefs:2" in two.signature
    reference = [*REFERENCE, "He lives in No. 5 there."]  # to Moses No. 5 is an abbreviation, NO. 5 is not
    for metric in ("bleu", "tokenised"):
        (lower,) = score({"up": [line.upper() for line in reference]}, [reference], [metric], lowercase=True, samples=0)
        assert lower.score == pytest.approx(100)


def test_text_json_and_json_lines_give_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ref.txt").write_text("\n".join(REFERENCE), encoding="utf-8")
    (tmp_path / "a.txt").write_text("\n".join(GOOD) + "\n", encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps(GOOD), encoding="utf-8")
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps({"translation": line}) for line in GOOD), encoding="utf-8")
    files = [str(tmp_path / name) for name in ("a.txt", "b.json", "c.jsonl")]
    with pytest.raises(SystemExit) as leaving:
        main(["score", *files, "-r", str(tmp_path / "ref.txt"), "--samples", "0", "--json", "--out", str(tmp_path / "s.json")])
    rows = json.loads(capsys.readouterr().out)["scores"]
    assert not leaving.value.code and len(rows) == 3 * len(METRICS)
    assert len({(row["metric"], row["score"]) for row in rows}) == len(METRICS)
    assert json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))["scores"] == rows


def test_what_cannot_be_scored_is_said() -> None:
    with pytest.raises(DataError, match="a has 3 lines, reference 1 has 4"):
        score({"a": GOOD[:3]}, [REFERENCE])
    with pytest.raises(ConfigError, match="Did you mean bleu"):
        score({"a": GOOD}, [REFERENCE], ["blue"])
    with pytest.raises(DataError, match="empty"):
        score({"a": []}, [[]])


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", "not json"])
def test_foreign_json_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as leaving:
        main(["score", str(tmp_path / "x.json"), "-r", str(tmp_path / "x.json")])
    assert leaving.value.code == 2 and "is not a list of sentences" in capsys.readouterr().err
