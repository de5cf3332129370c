import pytest
from pydantic import PositiveInt, ValidationError, model_validator

from bathy.errors import ConfigError
from bathy.settings import Settings


class Part(Settings, section="part"):
    """A section."""

    steps: PositiveInt = 10
    """Updates in all."""
    warmup: int = 0
    """Updates of warm-up."""

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
        ({"name": "x", "part": {"steps": 0}}, "part.steps is 0: Input should be greater than 0"),
        ({"name": "x", "part": {"warmup": 11}}, "part.warmup is 11; it can be at most part.steps (10)"),
        ({}, "name is missing; it gives: What the run is called."),
        ({"name": "x", "prat": {}}, "prat is not a setting. Did you mean part?"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(values: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Whole(**values)
    assert str(caught.value) == message


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Part().steps = 3
