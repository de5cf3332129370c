"""`bathy translate`: text in one language to text in another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from bathy.cli.options import output_file

if TYPE_CHECKING:
    from bathy.tasks.translation.translate import Translation, Translator


def translate(
    model: Annotated[list[Path], typer.Argument(help="Run, checkpoint or model folder; several translate as an ensemble.")],
    input_: Annotated[
        list[Path] | None,
        typer.Option("--input", "-i", help="Text with one sentence per line, plain or compressed; default: standard input."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output", "-o", callback=output_file, help="Where to write, one for each input; default standard output."
        ),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept; 1: greedy.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="λ in Σ log p / |y|^λ.")] = None,
    min_length: Annotated[int | None, typer.Option(help="Fewest tokens of a translation, EOS included.")] = None,
    patience: Annotated[float | None, typer.Option(help="p > 0 stops a sentence once p·beam hypotheses are finished.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Most tokens; 0: twice the source's and 10 more.")] = None,
    n_best: Annotated[int | None, typer.Option(help="Translations of each line, as `line ||| translation ||| score`.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object per line: source, translation, score, n_best.")
    ] = False,
    prefix: Annotated[
        Path | None, typer.Option(help="What each translation must begin with: whole words, one line per sentence.")
    ] = None,
    score: Annotated[Path | None, typer.Option(help="Translate nothing: write the score of these translations.")] = None,
    average: Annotated[float | None, typer.Option(help="Last checkpoints to average: a number, or a share of the run.")] = None,
    checkpoint: Annotated[str, typer.Option(help="last (with those before it, averaged), best, or an update.")] = "last",
    fold: Annotated[bool, typer.Option(help="Fold ω away before translating.")] = True,
    batch: Annotated[int, typer.Option(min=1, help="Sentences translated at a time.")] = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …; auto takes a GPU if there is one.")] = "auto",
    precision: Annotated[str | None, typer.Option(help="float32, float16 or bfloat16.")] = None,
) -> None:
    """Translate text, detokenised, in the order of its lines. Search settings not given come from the run or model.

    An empty line stays empty. A line with more tokens than the model's max_length is cut there, and a warning names it.
    Ctrl-C keeps the lines finished so far, complete and in order.

    Example: bathy translate runs/toy --input test.de --output test.hyp --beam 5
    """
    from bathy.files import check_output
    from bathy.kernels.memory import hold_memory
    from bathy.tasks.translation.translate import Translator, decode_settings

    inputs, outputs = input_ or [], output or []
    _check_files(inputs, outputs, prefix, score)
    check_output(*outputs)
    changes = {"beam": beam, "length_penalty": length_penalty, "min_length": min_length, "max_length": max_length}
    more = {"patience": patience, "n_best": n_best, "average": average, "precision": precision}
    decode = decode_settings(model[0], **changes, **more)
    hold_memory()
    translator = Translator.load(model, decode, which=checkpoint, folded=fold, device=_usable(device), batch=batch)
    for i, source in enumerate(inputs or [None]):
        with _opened(outputs[i] if outputs else None) as file:
            for text in _results(translator, source, prefix, score, json):
                file.write(text)
                file.flush()


CHUNK = 16
"""Batches whose lines are sorted by length together and written together."""


def _check_files(inputs: list[Path], outputs: list[Path], prefix: Path | None, given: Path | None) -> None:
    """Refuse, before anything is loaded, files that do not fit together or are not there."""
    from bathy.errors import ConfigError, DataError

    if outputs and len(outputs) != max(1, len(inputs)):
        raise ConfigError(f"there are {len(inputs)} inputs and {len(outputs)} outputs; give one output for each input")
    if len({path.resolve() for path in outputs}) < len(outputs) and not any(path.is_char_device() for path in outputs):
        raise ConfigError("two outputs are the same file; give each input a file of its own")
    if (prefix or given) and len(inputs) > 1:
        raise ConfigError("--prefix and --score need exactly one input")
    for path in [*inputs, *filter(None, (prefix, given))]:
        if not path.exists() or path.is_dir():
            raise DataError(f"{path} cannot be read: {'it is a folder' if path.is_dir() else 'there is no such file'}")


def _usable(device: str) -> str:
    """The device, or an error where torch cannot use it; auto takes a GPU if there is one."""
    import torch

    from bathy.errors import ConfigError

    place = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {device} cannot be used here: {str(error).partition(chr(10))[0]}") from None
    return place


def _opened(path: Path | None) -> Any:
    """A file that takes its name at the end, or when the user stops; or standard output."""
    import sys
    from contextlib import contextmanager, nullcontext

    from bathy.files import explained, replacing

    @contextmanager
    def written(path: Path) -> Iterator[TextIO]:
        stopped = None
        with explained(path), replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            try:
                yield file
            except KeyboardInterrupt as interrupt:
                stopped = interrupt
        if stopped:
            raise stopped

    return nullcontext(sys.stdout) if path is None else written(path)


def _results(translator: Translator, source: Path | None, prefix: Path | None, given: Path | None, json: bool) -> Iterator[str]:
    """What to write, chunk by chunk."""
    import sys

    from bathy.console import progress
    from bathy.tasks.lines import read_lines, read_texts
    from bathy.tasks.translation.translate import chunked

    size = 1 if source is None and sys.stdin.isatty() else CHUNK * translator.batch
    beside = read_texts(given) if given else list(read_lines(prefix)) if prefix else None
    total = sum(1 for _ in read_lines(source)) if source and source.is_file() else None  # a pipe can be read only once
    if beside is not None and total is not None:
        _check_count(total, len(beside), source, given or prefix)
    done = 0
    with progress("translating" if not given else "scoring", total) as advance:
        for lines in chunked(read_lines(source), size):
            part = beside[done : done + len(lines)] if beside is not None else None
            if part is not None and len(part) < len(lines):
                _check_count(done + len(lines), len(beside or []), source, given or prefix)
            if given:
                yield "".join(f"{value:.6f}\n" for value in translator.rate(lines, part or []))
            else:
                yield "".join(
                    _formatted(one, done + i, translator.decode.n_best, json)
                    for i, one in enumerate(translator.translate(lines, part))
                )
            done += len(lines)
            advance(len(lines))
    if beside is not None:
        _check_count(done, len(beside), source, given or prefix)


def _check_count(lines: int, beside: int, source: Path | None, other: Path | None) -> None:
    from bathy.errors import DataError

    if lines != beside:
        shown = source or "standard input"
        raise DataError(f"{shown} has {lines} lines and {other} has {beside}; each line needs its counterpart")


def _formatted(one: Translation, index: int, n_best: int, json: bool) -> str:
    from json import dumps

    from bathy.console import warn

    if one.cut:
        warn(f"line {index + 1} is too long for the model; its last {one.cut} tokens were dropped")
    if json:
        rows = [{"translation": text, "score": score} for text, score in zip(one.texts, one.scores, strict=True)]
        best = {"line": index + 1, "source": one.source, **rows[0]}
        return dumps(best | ({"n_best": rows} if n_best > 1 else {}), ensure_ascii=False) + "\n"
    if n_best > 1:
        return "".join(f"{index} ||| {text} ||| {score:.6f}\n" for text, score in zip(one.texts, one.scores, strict=True))
    return one.texts[0] + "\n"
