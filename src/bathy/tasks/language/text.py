"""Documents of plain text: from files, folders and JSON lines, in a fixed order; what is not text is an error."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import Literal

from bathy.errors import DataError
from bathy.tasks.lines import BYTE_ORDER_MARK, OPENERS, opened

ALIASES = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}
"""Names that files and folders of a split have."""
DESCRIPTION = "corpus.json"


@dataclass(frozen=True)
class Reading:
    """How files are read."""

    field: str = "text"
    endings: tuple[str, ...] = ()
    invalid: Literal["stop", "skip"] = "stop"


def find_splits(raw: Path) -> dict[str, Path]:
    """Split to its file or folder: all of `raw` is the training text unless it holds nothing but splits."""
    if not raw.exists():
        raise DataError(f"{raw} does not exist; give a file or folder of text, or make one: `bathy corpus stdlib {raw}`")
    if raw.is_file():
        return {"train": raw}
    entries = [path for path in sorted(raw.iterdir()) if not path.name.startswith(".") and path.name != DESCRIPTION]
    named = {path: ALIASES[path.name.split(".")[0]] for path in entries if path.name.split(".")[0] in ALIASES}
    if not {"train", "valid"} <= set(named.values()):
        return {"train": raw}
    if others := [path.name for path in entries if path not in named]:
        raise DataError(f"{raw} has a train and a valid split and also {others[0]}; move it, or into one of the splits")
    if len(set(named.values())) < len(named):
        raise DataError(f"{raw} has several files for one split ({', '.join(path.name for path in named)}); keep one each")
    return {split: path for path, split in named.items()}


def files(path: Path, endings: tuple[str, ...] = ()) -> list[Path]:
    """The file, or all files of a folder in order of their names; hidden ones are left out."""
    if not path.exists():
        raise DataError(f"{path} does not exist; give a file or folder of text")
    if path.is_file():
        return [path]
    found = [file for file in sorted(path.rglob("*")) if file.is_file() and not _hidden(file.relative_to(path))]
    chosen = [file for file in found if not endings or _ending(file) in endings]
    if not chosen:
        among = f"; none of its {len(found)} files ends in {', '.join(endings)}" if found else ""
        raise DataError(f"{path} has no text files{among}; put some there, or name another file or folder")
    return chosen


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts) or path.name == DESCRIPTION


def _ending(path: Path) -> str:
    """The ending of a file's name, that of its compression left out."""
    return Path(path.stem).suffix if path.suffix and path.suffix in OPENERS else path.suffix


def documents(path: Path, reading: Reading = Reading()) -> Iterator[str]:  # noqa: B008, frozen
    """The texts of a file or folder that are not empty."""
    for file in files(path, reading.endings):
        yield from (text for text in _read(file, reading) if text)


def _read(file: Path, reading: Reading) -> Iterator[str]:
    try:
        if _ending(file) == ".jsonl":
            yield from _json_lines(file, reading)
        else:
            with opened(file) as stream:
                yield _decoded(stream.read(), str(file))
    except (OSError, EOFError, zlib.error, LZMAError) as error:
        raise DataError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except NotTextError:
        if reading.invalid == "stop":
            raise


class NotTextError(DataError):
    """A file or line that is not UTF-8 text."""


def _decoded(content: bytes, name: str) -> str:
    try:
        text = content.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        problem = f"byte {error.start + 1} is not UTF-8"
    else:
        if "\0" not in text:
            return text
        problem = "it holds zero bytes"
    raise NotTextError(
        f"{name} is not text ({problem}); convert it or leave it out (where text is prepared: prepare.endings names the "
        "endings to read, prepare.invalid = 'skip' leaves such files out)"
    )


def _json_lines(file: Path, reading: Reading) -> Iterator[str]:
    with opened(file) as stream:
        for number, line in enumerate(stream, 1):
            try:
                if line.strip():
                    yield _field(_decoded(line, f"{file}, line {number},"), reading.field)
            except NotTextError:
                if reading.invalid == "stop":
                    raise
            except (ValueError, RecursionError) as error:
                raise DataError(f"{file}, line {number} is not JSON ({error}); correct or remove it") from None
            except LookupError as error:
                raise DataError(f"{file}, line {number} {error.args[0]}; name the key with prepare.field") from None


def _field(line: str, name: str) -> str:
    """The text of a line: itself, or under a key of its object."""
    row = json.loads(line)
    text = row.get(name) if isinstance(row, dict) else row
    if not isinstance(text, str):
        keys = f"its keys are {', '.join(row)}" if isinstance(row, dict) and name not in row else f"it is {text!r:.40}"
        raise LookupError(f"has no text under {name!r} ({keys})")
    text.encode()  # half of a surrogate pair is no text
    return text
