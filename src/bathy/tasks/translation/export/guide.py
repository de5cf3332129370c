"""The README of an exported folder: how to run it where no bathy is installed."""

from __future__ import annotations

from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.text import Codec

LONGEST = 256
"""Tokens of a translation that written settings allow at most."""
MOSES = """\
from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

tokenise, detokenise = MosesTokenizer({source!r}), MosesDetokenizer({target!r})
words = tokenise.tokenize({line}, aggressive_dash_splits={aggressive}, escape={escape}, return_str=True){lower}
"""
MARIAN = """\
from transformers import AutoTokenizer, MarianMTModel

model, tokenizer = MarianMTModel.from_pretrained("."), AutoTokenizer.from_pretrained(".")
batch = tokenizer([words], return_tensors="pt", padding=True, return_token_type_ids=False)
found = tokenizer.decode(model.generate(**batch)[0], skip_special_tokens=True)
"""
CTRANSLATE2 = """\
import ctranslate2
from tokenizers import Tokenizer

engine, tokenizer = ctranslate2.Translator("."), Tokenizer.from_file("tokenizer.json")
tokens = tokenizer.encode(words).tokens  # ends with </s>
search = {{"beam_size": {beam}, "length_penalty": {penalty}, "patience": {patience}}}  # patience: as bathy; 1 is far faster
result = engine.translate_batch([tokens], min_decoding_length=0, max_decoding_length={longest}, **search)
found = tokenizer.decode([tokenizer.token_to_id(token) for token in result[0].hypotheses[0]])
"""
PIECES = """\
import ctranslate2
from sentencepiece import SentencePieceProcessor

engine, pieces = ctranslate2.Translator("."), SentencePieceProcessor(model_file="sentencepiece.model")
search = {{"beam_size": {beam}, "length_penalty": {penalty}, "patience": {patience}}}  # patience: as bathy; 1 is far faster
tokens = [*pieces.encode(words, out_type=str), "</s>"]
result = engine.translate_batch([tokens], min_decoding_length=0, max_decoding_length={longest}, **search)
found = {target}.decode_pieces(result[0].hypotheses[0])
"""
BATHY = """\
echo "…" | bathy translate .
"""
ARGOS = """\
from pathlib import Path

from argostranslate import package, translate

package.install_from_path(next(Path().glob("*.argosmodel")))
print(translate.translate("…", {source!r}, {target!r}))
"""
TITLES = {"marian": "Hugging Face Transformers", "ctranslate2": "CTranslate2", "bathy": "bathy", "argos": "Argos Translate"}


def guide(to: str, codec: Codec, decode: Decode, max_length: int) -> str:
    """What the folder is, and the lines that translate with it."""
    text = codec.config
    title = (
        f"# {text.source} → {text.target}, for {TITLES[to]}\n\nWritten by `bathy export`; learned shortcuts are folded away.\n"
    )
    if to == "bathy":
        return f"{title}\n```sh\n{BATHY}```\n"
    if to == "argos":
        return f"{title}\n```python\n{ARGOS.format(source=text.source, target=text.target)}```\n"
    engine = MARIAN if to == "marian" else PIECES if text.tokeniser == "sentencepiece" else CTRANSLATE2
    search = {"beam": decode.beam, "penalty": decode.length_penalty, "patience": 50 if decode.beam > 1 else 1}
    target = "pieces" if codec.joint else 'SentencePieceProcessor(model_file="sentencepiece.target.model")'
    code = engine.format(**search, longest=min(max_length, LONGEST), target=target)
    return f"{title}\n```python\n{before(codec)}\n{code}{after(codec)}```\n"


def before(codec: Codec) -> str:
    """Lines that turn `line` into what the tokenizer reads."""
    text = codec.config
    lower = ".lower()" if text.lowercase else ""
    line = f"MosesPunctNormalizer({text.source!r}).normalize(line)" if text.normalise else "line"
    if text.tokeniser == "moses":
        options = {"aggressive": text.aggressive, "escape": text.escape}
        shown = MOSES.format(source=text.source, target=text.target, line=line, lower=lower, **options)
        return 'line = "…"\n' + (shown if text.normalise else shown.replace(" MosesPunctNormalizer,", ""))
    return f'line = "…"\nwords = line{lower}\n'


def after(codec: Codec) -> str:
    """Lines that turn `found` into a natural line."""
    return "print(detokenise.detokenize(found.split()))\n" if codec.config.tokeniser == "moses" else "print(found)\n"
