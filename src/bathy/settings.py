"""Settings: frozen, checked where they are made, explained under each field, and written as TOML with the explanations."""

from __future__ import annotations

import math
import textwrap
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from bathy.errors import ConfigError, nearest

LARGEST = 2**63 - 1
"""The largest whole number that NumPy and torch can hold."""
SHOWN = 80
"""Characters of a wrong value that a message repeats."""

Seed = Annotated[int, Field(ge=0, le=LARGEST)]
"""A seed that NumPy and torch both take."""


class Settings(BaseModel):
    """A frozen section of settings. A wrong key or value is a ConfigError of one line that names it.

    `section` is the name that messages put before a key; a class gives it as `class Train(Settings, section="train")`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )
    section: ClassVar[str] = ""
    changeable: ClassVar[bool] = False
    """Whether a resumed run may have other values than it was started with."""

    def __init_subclass__(cls, section: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.section = section or cls.section

    @classmethod
    def __pydantic_init_subclass__(cls, section: str = "", **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_explain(type(self), error)) from None

    @model_validator(mode="before")
    @classmethod
    def _storable(cls, values: Any) -> Any:
        """Refuse what neither TOML nor a tensor can hold, whatever the field's type."""
        for key, value in values.items() if isinstance(values, dict) else ():
            if fault := unusable(value) or _misused(cls.model_fields.get(key), value):
                raise ValueError(f"{cls.section}.{key} is {shorten(value)}: {fault}".removeprefix("."))
        return values


def unusable(value: Any) -> str:
    """Why a plain value cannot be a setting, or nothing."""
    match value:
        case float() if not math.isfinite(value):
            return "a setting must be a finite number"
        case int() if abs(value) > LARGEST:
            return f"a whole number can be at most {LARGEST}"
        case str() if "\0" in value:
            return "a text cannot contain a zero character"
        case str() if any(0xD800 <= ord(char) < 0xE000 for char in value):
            return "it is not valid Unicode text"
        case list() | tuple():
            return next(filter(None, map(unusable, value)), "")
    return ""


def _misused(field: FieldInfo | None, value: Any) -> str:
    """Why true or false does not fit a field; pydantic would take it for 1 or 0."""
    takes_bool = field is None or "bool" in str(field.annotation)
    return "Input should be a number or text, not true or false" if isinstance(value, bool) and not takes_bool else ""


def shorten(value: Any) -> str:
    """A value as a message shows it: on one line, and not for ever."""
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _explain(kind: type[Settings], error: ValidationError) -> str:
    """The first complaint as one line: setting, value, way out."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in (kind.section, *first["loc"]) if part)
    key = key if key.isprintable() else ascii(key)
    if first["type"] == "extra_forbidden":
        prefix = f"{kind.section}." if kind.section else ""
        near = nearest(str(first["loc"][-1]), kind.model_fields).replace("mean ", f"mean {prefix}")
        return f"{key} is not a setting.{near or ' There are ' + ', '.join(kind.model_fields)}"
    if first["type"] == "missing":
        return f"{key} is missing; {_purpose(kind, str(first['loc'][0]))}"
    message = first["msg"].removeprefix("Value error, ")
    return message if first["type"] == "value_error" else f"{key} is {shorten(first['input'])}: {message}"


def _purpose(kind: type[Settings], field: str) -> str:
    info = kind.model_fields.get(field)
    return f"it gives: {info.description}" if info and info.description else "it has no default"


def change(key: str, value: Any) -> str:
    """The text that `--set` takes for a value that is no text yet, a path with any characters among them."""
    import tomlkit

    plain = value if isinstance(value, bool | int | float | list) else str(value)
    return f"{key}={tomlkit.item(plain).as_string()}"


def settings_to_toml(settings: Settings) -> str:
    """The settings as TOML, each explained by its docstring above it; sections become tables."""
    import tomlkit

    document = tomlkit.document()
    _add(document, settings)
    return tomlkit.dumps(document)


def _add(table: Any, settings: Settings) -> None:
    """Fill a TOML table: plain values first, as TOML wants them, then one table per section."""
    import tomlkit

    fields = {name: getattr(settings, name) for name in type(settings).model_fields}
    for name, value in fields.items():
        if not isinstance(value, Settings) and value is not None:
            for line in _comment(type(settings).model_fields[name].description):
                table.add(tomlkit.comment(line))
            table.add(name, list(value) if isinstance(value, tuple) else value)
    for name, value in fields.items():
        if isinstance(value, Settings):
            inner = tomlkit.table()
            inner.comment(" ".join(_comment(type(value).__doc__)))
            _add(inner, value)
            table.add(name, inner)


def _comment(text: str | None) -> list[str]:
    first = (text or "").strip().split("\n\n")[0]
    return textwrap.wrap(" ".join(first.split()), 110)
