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
from bathy.tasks.language.config import Config as LanguageConfig
from bathy.tasks.language.sampling import Sampling
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.serve.settings import ServeConfig

CONFIGS: list[Any] = [Config, LanguageConfig]


def settings_of(config: Any) -> list[tuple[Any, str, str]]:
    """Every setting of every section."""
    sections = {name: info.annotation for name, info in config.model_fields.items()}
    return [(config, section, name) for section, kind in sections.items() if _is_section(kind) for name in kind.model_fields]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


FIELDS = [field for config in CONFIGS for field in settings_of(config)]
ALONE = [(kind, name) for kind in (ServeConfig, Sampling) for name in kind.model_fields]
"""Settings of commands that read no config."""
numbers = st.one_of(
    st.integers(-3, 3), st.integers(), st.sampled_from([2**31, 2**63, -(2**63), 10**30, 10**4000]), st.floats(),
    st.sampled_from([math.inf, -math.inf, math.nan, 1e308, 5e-324, -0.0]),
)  # fmt: skip
texts = st.one_of(st.text(), st.sampled_from(["", "admin", "none", "../..", "😀'\"", "\\", "a\0b", "\ud800", "inf", "1e9"]))
values = st.recursive(
    st.one_of(numbers, texts, st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)), max_leaves=4,
)  # fmt: skip
quietly = settings(max_examples=amount(60, 300), deadline=None, suppress_health_check=list(HealthCheck), database=None)


def accepted(values: dict[str, Any], kind: Any = Config) -> Any:
    """The settings, or nothing if they are refused in one line."""
    TALLY["bad inputs"] += 1
    try:
        return kind(**values)
    except BathyError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return None


@seed(SEED)
@quietly
@given(field=st.sampled_from(FIELDS), value=values)
def test_a_setting_of_any_value_is_refused_or_kept(field: tuple[Any, str, str], value: Any) -> None:
    kind, section, name = field
    config = accepted({section: {name: value}}, kind)
    if config is not None:
        assert kind(**tomllib.loads(settings_to_toml(config))) == config


@seed(SEED)
@quietly
@given(field=st.sampled_from(ALONE), value=values)
def test_a_setting_of_a_command_is_refused_or_kept(field: tuple[Any, str], value: Any) -> None:
    accepted({field[1]: value}, field[0])


@seed(SEED)
@quietly
@given(values=st.dictionaries(st.sampled_from([*Config.model_fields, "nothing"]), values, max_size=3))
def test_sections_of_any_shape_are_refused_or_kept(values: dict[str, Any]) -> None:
    accepted(values)


@seed(SEED)
@quietly
@given(
    text=st.one_of(st.text(), st.tuples(st.sampled_from(FIELDS), texts).map(lambda one: f"{one[0][1]}.{one[0][2]}={one[1]}"))
)
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


OPTIONS = [
    "sample lm_run --length 0",
    "sample lm_run --temperature -1",
    "sample lm_run --temperature 1e300 --length 3",
    "sample lm_run --temperature 1e-300 --length 3",
    "sample lm_run --top-p 1e-300 --length 3",
    "sample lm_run --top-k 9223372036854775807 --length 3",
    "sample lm_run --seed 9223372036854775807 --length 3",
    "sample lm_run --seed 9223372036854775808 --length 3",
    "sample lm_run --checkpoint ema",
    "sample lm_run --checkpoint ../..",
    "sample run --length 3",
    "sample raw --length 3",
    "sample lm_data --length 3",
    "sample nowhere",
    "score run --text raw/train.en",
    "score lm_run --text nowhere",
    "score lm_run --text lm_run",
    "export lm_run --to nothing --out nothing",
    "export lm_run --to bathy --out nothing --average nan",
    "export lm_run --to bathy --out nothing --average -1",
    "translate lm_run -i raw/test.de",
    "translate lm_model -i raw/test.de",
    "translate lm_run/checkpoints/step_00000024 -i raw/test.de",
    "sample model --length 3",
    "sample run/checkpoints/step_00000024 --length 3",
    "score model --text raw/train.en",
    "serve lm_model --port 0",
    "distil config.toml --teacher lm_model --raw raw",
    "train config.toml --set train.init_from=lm_model --run other_task",
    "train config.toml --set data.path=lm_data --run other_task",
    "train language.toml --set data.path=data --run other_task",
    "prepare config.toml --out lm_data",
    "prepare language.toml --out data",
    "translate run -i raw/test.de --length-penalty 1e300",
    "translate run -i raw/test.de --beam 9223372036854775807",
    "serve lm_run --port 0",
    "serve raw --port 0",
    "serve model model --port 0",
    "serve model --port 65536",
    "serve model --port 0 --host nowhere.invalid",
    "serve model --port 0 --host 0.0.0.0",
    "serve model --port 0 --beam 0",
    "serve model --port 0 --precision float8",
    "serve model --port 0 --timeout nan",
    "serve model --port 0 --api-keys raw",
    "distil config.toml",
    "distil config.toml --teacher nowhere --raw raw",
    "distil config.toml --teacher lm_run --raw raw",
    "distil config.toml --teacher run --raw lm_raw",
    "distil config.toml --teacher run --raw raw --run config.toml",
    "distil language.toml --teacher run --raw raw",
    "ladder config.toml --depths 0",
    "ladder config.toml --depths 1 --schemes nothing",
    "ladder config.toml --depths 1 --rates inf",
    "ladder config.toml --depths 1 --seeds -1",
    "predict config.toml --lr nan",
    "predict config.toml --look nothing",
    "predict lm_raw",
    "postmortem raw",
    "postmortem nowhere",
    "postmortem run --minutes nan",
    "clinic run --tokens 0",
    "clinic run --checkpoints 0",
    "clinic lm_data",
    "clinic run --lr nan",
    "clinic --model nothing:nothing",
    "verify nowhere",
    "verify config.toml",
    "data nowhere",
    "data run",
    "corpus nothing x",
    "corpus folder x --pair train",
    "prepare --task nothing --raw raw --out x",
    "sweep config.toml --grid optim.lr=",
    "train --stpes 3",
    "nothing",
]
"""Options and folders that do not fit; each must be refused, whatever else the command would take hours for."""
FINE = ("1e300 --length", "1e-300 --length", "--top-k", "--seed 9223372036854775807 ")


@pytest.mark.parametrize("line", OPTIONS[:: amount(9, 1)])
def test_options_that_do_not_fit_are_refused_in_one_line(line: str, bathy: Commands, language: object) -> None:
    TALLY["bad inputs"] += 1
    result = bathy(*line.split(), kill_after=120)
    assert result.code == (0 if any(part in line for part in FINE) else 2), (result.out[-500:], result.err[-500:])
