"""The sections of a config file as plain values: TOML, with `section.key=value` changes on top, nothing checked but names."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bathy.errors import ConfigError, explain, nearest

LARGEST = 1_000_000
"""Bytes of the largest config that is read: a device or a data file given by mistake is not."""


def read_sections(path: Path | None, changes: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Section name to its settings, from a file (none: empty) and from changes."""
    values = _load(path) if path else {}
    for change in changes:
        _apply(values, change)
    for name, table in values.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{name} stands outside any section; settings are written under [section]")
    return values


def check_sections(values: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse a section that is none."""
    known = list(known)
    for name in values:
        if name not in known:
            raise ConfigError(f"[{name}] is not a section.{nearest(name, known)}")


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ConfigError(f"{path} has more than {LARGEST} bytes; that is no config")
        return tomllib.loads(data.decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config {path}") from None
    except OSError as error:
        raise ConfigError(explain(error, path)) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, nested too deep
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None


def _apply(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot or not name:
        raise ConfigError(f"--set {change}: write it as section.key=value, for example --set data.vocab=4000")
    table = values.setdefault(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{section} is not a section; write [{section}] in the config")
    table[name] = _value(text.strip())


def _value(text: str) -> Any:
    """The text as a TOML value, or as a plain string where it is none: `--set prepare.source=de` needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return text
