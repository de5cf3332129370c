"""An Argos Translate package: `translate-de_en-1_0.argosmodel`, a zip of metadata, a CTranslate2 model and a tokenizer.

With SentencePiece the tokenizer is the model's own file. Otherwise Argos splits with Moses, always escaping (' becomes &apos;),
then applies BPE codes that mark the pieces inside a word with @@. A model trained on words that were not escaped is made to
fit: in its codes and source vocabulary every such character stands escaped, and merges before all others put the characters of
an escape together again. CTranslate2 appends EOS to the source.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path

from bathy.core.transformer import Transformer
from bathy.errors import ConfigError
from bathy.tasks.special_tokens import SPECIALS
from bathy.tasks.translation.export import ctranslate
from bathy.tasks.translation.export.compare import Rows
from bathy.tasks.translation.languages import language_name
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.text import Codec
from bathy.tasks.translation.text.bpe import END, parts
from bathy.tasks.translation.text.pieces import Pieces

ESCAPES = {"&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;", "]": "&#93;"}
"""What Moses escapes."""
VERSION = "1.0"

check = ctranslate.check


def package_name(codec: Codec) -> str:
    """The folder inside the package, and the file's name."""
    return f"translate-{codec.config.source}_{codec.config.target}-{VERSION.replace('.', '_')}"


def check_text(codec: Codec) -> None:
    """Refuse text settings that Argos cannot follow."""
    text = codec.config
    pieces = text.tokeniser == "sentencepiece"
    if pieces and not codec.joint:
        raise ConfigError("Argos has one SentencePiece model for both languages; this one has two: export it --to ctranslate2")
    wrong = {"lowercase": text.lowercase}
    wrong |= (
        {"normalise": text.normalise} if pieces else {"tokeniser": text.tokeniser != "moses", "aggressive": text.aggressive}
    )
    for name in (name for name, no in wrong.items() if no):
        raise ConfigError(
            f"Argos splits by plain {'SentencePiece' if pieces else 'Moses'}; "
            f"this model has prepare.{name} = {getattr(text, name)!r}: export it --to ctranslate2"
        )


def tokenizer_file(codec: Codec) -> tuple[str, bytes]:
    """Name and content of what Argos splits text with."""
    subwords = codec.subwords["source"]
    return ("sentencepiece.model", subwords.model) if isinstance(subwords, Pieces) else ("bpe.model", codes(codec).encode())


def write(model: Transformer, codec: Codec, decode: Decode, folder: Path, kind: str) -> None:
    """Write the package into the folder."""
    check_text(codec)
    name, text = package_name(codec), codec.config
    metadata = {
        "package_version": VERSION,
        "argos_version": "1.9",
        "from_code": text.source,
        "from_name": language_name(text.source),
        "to_code": text.target,
        "to_name": language_name(text.target),
    }
    with tempfile.TemporaryDirectory() as scratch:
        names = source_names(codec), target_names(codec)
        spec = ctranslate.build(model, names[0], None if kind == "float32" else kind, names[1])
        spec.config.add_source_eos = True
        (Path(scratch) / "model").mkdir()
        spec.save(str(Path(scratch) / "model"))
        with zipfile.ZipFile(folder / f"{name}.argosmodel", "w", zipfile.ZIP_DEFLATED) as package:
            package.writestr(f"{name}/metadata.json", json.dumps(metadata, indent=2, ensure_ascii=False))
            tokenizer, content = tokenizer_file(codec)
            package.writestr(f"{name}/{tokenizer}", content)
            package.writestr(f"{name}/README.md", f"# {metadata['from_name']} – {metadata['to_name']}\n\nTrained with bathy.\n")
            for path in sorted((Path(scratch) / "model").iterdir()):
                package.write(path, f"{name}/model/{path.name}")


def escape(name: str, codec: Codec) -> str:
    """A subword's name with its characters as Argos' tokeniser writes them; its end-of-word mark stays."""
    if codec.config.escape or name in SPECIALS:
        return name
    return "".join(ESCAPES.get(character, character) for character in name.removesuffix(END)) + END * name.endswith(END)


def source_names(codec: Codec) -> list[str]:
    """The source vocabulary in the order of its ids, as Argos writes subwords."""
    source = codec.subwords["source"]
    return source.names if isinstance(source, Pieces) else mark([escape(name, codec) for name in source.names])


def target_names(codec: Codec) -> list[str]:
    """The target vocabulary in the order of its ids, as Argos joins subwords."""
    target = codec.subwords["target"]
    return target.names if isinstance(target, Pieces) else mark(target.names)


def mark(names: list[str]) -> list[str]:
    """The names with @@ after pieces inside a word instead of </w> after the last one."""
    marked = [name if name in SPECIALS else name.removesuffix(END) if name.endswith(END) else f"{name}@@" for name in names]
    if len(set(marked)) < len(marked):
        twice = next(name for i, name in enumerate(marked) if name in marked[:i])
        raise ConfigError(f"two subwords would both be {twice!r} in an Argos package; export it --to ctranslate2")
    return marked


def codes(codec: Codec) -> str:
    """The source's merges as a subword-nmt codes file, those that build escapes first."""
    merges = [] if codec.config.escape else escape_merges()
    merges += [(escape(a, codec), escape(b, codec)) for a, b in parts(codec.bpe("source", "an Argos package").tokenizer)[1]]
    return "\n".join(["#version: 0.2", *(f"{a} {b}" for a, b in merges)]) + "\n"


def escape_merges() -> list[tuple[str, str]]:
    """Merges that make one symbol of each escape; an & begins nothing else, because text's own is escaped too."""
    prefixes = [(text[:i], text[i]) for text in ESCAPES.values() for i in range(1, len(text))]
    ends = [(text[:-1], text[-1] + END) for text in ESCAPES.values()]
    return list(dict.fromkeys([*prefixes, *ends]))


class Argos(ctranslate.CTranslate2):
    """The model inside the package, opened by CTranslate2 with Argos' tokens."""

    def __init__(self, folder: Path, codec: Codec, kind: str) -> None:
        name = package_name(codec)
        with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(folder / f"{name}.argosmodel") as package:
            package.extractall(scratch)
            super().__init__(Path(scratch) / name / "model", codec, kind)
        self.source_names, self.target_names = source_names(codec), target_names(codec)
        self.ids = {name: i for i, name in enumerate(self.target_names)}

    def named(self, source: Rows) -> list[list[str]]:
        return [row[:-1] for row in super().named(source)]  # CTranslate2 appends EOS
