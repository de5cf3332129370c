import math
import tomllib
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import PositiveInt, ValidationError, model_validator

from bathy.errors import ConfigError
from bathy.settings import Settings, settings_to_toml


class Part(Settings, section="part"):
    """A section."""

    steps: PositiveInt = 10
    """Updates in all."""
    warmup: int = 0
    """Updates of warm-up."""
    rate: float = 0.5
    """A number with 'quotes', a "second" kind, and # a hash,
    over two lines."""
    rates: tuple[float, ...] = ()
    """Several."""
    path: str | tuple[str, ...] = "x"
    """One or several."""
    quick: bool = False
    """A switch."""

    @model_validator(mode="after")
    def fits(self) -> "Part":
        if self.warmup > self.steps:
            raise ValueError(f"part.warmup is {self.warmup}; it can be at most part.steps ({self.steps})")
        return self


class Whole(Settings):
    """All sections."""

    name: str
    """What the run is called."""
    part: Part = Part()
    """The part."""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "x", "part": {"step": 3}}, "part.step is not a setting. Did you mean part.steps?"),
        ({"name": "x", "zzz": 1}, "zzz is not a setting. There are name, part"),
        ({"name": "x", "part": {"steps": 0}}, "part.steps is 0: Input should be greater than 0"),
        ({"name": "x", "part": {"warmup": 11}}, "part.warmup is 11; it can be at most part.steps (10)"),
        ({}, "name is missing; it gives: What the run is called."),
        ({"name": "x", "prat": {}}, "prat is not a setting. Did you mean part?"),
        ({"name": "x", "part": {"rate": math.inf}}, "part.rate is inf: a setting must be a finite number"),
        ({"name": "x", "part": {"rate": math.nan}}, "part.rate is nan: a setting must be a finite number"),
        ({"name": "x", "part": {"rates": [1.0, math.nan]}}, "part.rates is [1.0, nan]: a setting must be a finite number"),
        ({"name": "x", "part": {"warmup": -(2**63)}}, f"part.warmup is {-(2**63)}: a whole number can be at most {2**63 - 1}"),
        ({"name": "x", "part": {"steps": True}}, "part.steps is True: Input should be a number or text, not true or false"),
        ({"name": "a\0b"}, "name is 'a\\x00b': a text cannot contain a zero character"),
        ({"name": "\ud800"}, "name is '\\ud800': it is not valid Unicode text"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Whole(**values)
    assert str(caught.value) == message


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Part().steps = 3


def test_a_number_of_thousands_of_digits_is_refused_in_one_line() -> None:
    for value in (10**5000, [10**5000], -(10**5000)):
        with pytest.raises(ConfigError, match=r"part\.rates is a number of thousands of digits"):
            Part(rates=cast(Any, value))


@given(
    name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    path=st.lists(st.sampled_from(["a'b", 'a"b', "😀/ω", "c:\\x", "\t\x7f\x1b", "#x", ""]), min_size=1).map(tuple),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    rates=st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
    quick=st.booleans(),
)
def test_what_is_written_as_toml_is_read_back_equal(name: str, **part: Any) -> None:
    whole = Whole(name=name, part=Part(**part))
    assert Whole(**tomllib.loads(settings_to_toml(whole))) == whole


def test_toml_explains_every_setting() -> None:
    lines = settings_to_toml(Whole(name="x")).splitlines()
    assert lines[lines.index("quick = false") - 1] == "# A switch."
    assert "[part] # A section." in lines
    assert "# A number with 'quotes', a \"second\" kind, and # a hash, over two lines." in lines
