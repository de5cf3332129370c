"""Settings: frozen, checked where they are made, and explained under each field."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from bathy.errors import ConfigError, nearest


class Settings(BaseModel):
    """A frozen section of settings. A wrong key or value is a ConfigError of one line that names it.

    `section` is the name that messages put before a key; a class gives it as `class Train(Settings, section="train")`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)
    section: ClassVar[str] = ""

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


def _explain(kind: type[Settings], error: ValidationError) -> str:
    """The first complaint as one line: setting, value, way out."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in (kind.section, *first["loc"]) if part)
    if first["type"] == "extra_forbidden":
        prefix = f"{kind.section}." if kind.section else ""
        hint = nearest(str(first["loc"][-1]), kind.model_fields).replace("mean ", f"mean {prefix}")
        return f"{key} is not a setting.{hint}"
    if first["type"] == "missing":
        return f"{key} is missing; {_purpose(kind, str(first['loc'][0]))}"
    message = first["msg"].removeprefix("Value error, ")
    return message if first["type"] == "value_error" else f"{key} is {first['input']!r}: {message}"


def _purpose(kind: type[Settings], field: str) -> str:
    info = kind.model_fields.get(field)
    return f"it gives: {info.description}" if info and info.description else "it has no default"
