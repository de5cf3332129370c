"""Whatever a config holds: accepted and written back equal, or refused in one line that names the setting."""

import math
import tomllib
from typing import Any

import pytest
from harness import SEED, TALLY, Commands, amount
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from bathy.errors import BathyError
from bathy.settings import change, settings_to_toml
from bathy.tasks import read_config
from bathy.tasks.translation.config import Config

FIELDS = [
    (section, name)
    for section, info in Config.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
    for name in info.annotation.model_fields
]
"""Every setting of every section."""
numbers = st.one_of(
    st.integers(-3, 3), st.integers(), st.sampled_from([2**31, 2**63, -(2**63), 10**30, 10**4000]), st.floats(),
    st.sampled_from([math.inf, -math.inf, math.nan, 1e308, 5e-324, -0.0]),
)  # fmt: skip
texts = st.one_of(st.text(), st.sampled_from(["", "admin", "none", "../..", "😀'\"", "\\", "a\0b", "\ud800", "inf", "1e9"]))
values = st.recursive(
    st.one_of(numbers, texts, st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)), max_leaves=4,
)  # fmt: skip
quietly = settings(max_examples=amount(60, 700), deadline=None, suppress_health_check=list(HealthCheck), database=None)


def accepted(values: dict[str, Any]) -> Config | None:
    """The config, or nothing if it is refused in one line."""
    TALLY["bad inputs"] += 1
    try:
        return Config(**values)
    except BathyError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return None


@seed(SEED)
@quietly
@given(field=st.sampled_from(FIELDS), value=values)
def test_a_setting_of_any_value_is_refused_or_kept(field: tuple[str, str], value: Any) -> None:
    config = accepted({field[0]: {field[1]: value}})
    if config is not None:
        assert Config(**tomllib.loads(settings_to_toml(config))) == config


@seed(SEED)
@quietly
@given(values=st.dictionaries(st.sampled_from([*Config.model_fields, "nothing"]), values, max_size=3))
def test_sections_of_any_shape_are_refused_or_kept(values: dict[str, Any]) -> None:
    accepted(values)


@seed(SEED)
@quietly
@given(text=st.one_of(st.text(), st.tuples(st.sampled_from(FIELDS), texts).map(lambda one: f"{'.'.join(one[0])}={one[1]}")))
def test_changes_of_any_text_are_refused_or_kept(text: str) -> None:
    TALLY["bad inputs"] += 1
    try:
        read_config(None, [text])
    except BathyError as error:
        assert len(str(error).splitlines()) <= 1 + len(text.splitlines())


@seed(SEED)
@quietly
@given(text=st.text().filter(lambda text: "\0" not in text and text.isprintable()))
def test_a_path_of_any_characters_arrives_as_it_is(text: str) -> None:
    assert read_config(None, [change("train.run", text)]).train.run == text


EXTREMES = [
    "model.width=1000000000000",
    "model.ffn=100000000",
    "model.heads=7",
    "model.dropout=1.0",
    "model.dropout=-1",
    "model.encoder_scheme=nothing",
    "train.tokens=1",
    "train.tokens=9000000000000000000",
    "train.seed=-1",
    "train.seed=9223372036854775807",
    "train.run=/proc/x",
    "train.run=config.toml",
    "train.accumulate=0",
    "train.init_from=nowhere",
    "train.init_from=raw",
    "train.precision=float8",
    "optim.lr=1e300",
    "optim.warmup=0",
    "optim.clip=1e-300",
    "optim.beta2=0.9999999999999999",
    "data.path=nowhere",
    "data.path=[]",
    "data.weights=[0.0]",
    "data.bpe_dropout=0.999",
    "task.kind=nothing",
    "task.bleu_sentences=5",
]


@pytest.mark.parametrize("extreme", EXTREMES[:: amount(9, 1)])
def test_extreme_settings_are_no_traceback(extreme: str, bathy: Commands, home: object) -> None:
    """Whether refused at once, for want of memory or for divergence."""
    TALLY["bad inputs"] += 1
    short = ["--set", "train.steps=2", "--set", "train.run=extreme", "--set", extreme, "--allow-changes"]
    bathy("train", "config.toml", *short, limits={"RLIMIT_AS": 4 << 30}, kill_after=60)
