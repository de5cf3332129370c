"""One set of folders for all chaos tests, made by undisturbed commands; counts and the seed at the end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import SEED, TALLY, Commands

CONFIG = """
[data]
path = "data"
vocab = 300
[prepare]
raw = "raw"
[model]
encoder_layers = 1
decoder_layers = 1
width = 16
ffn = 16
heads = 2
[optim]
warmup = 4
[train]
run = "run"
tokens = 256
steps = 24
log_every = 3
valid_every = 6
save_every = 4
keep_last = 3
monitor = true
monitor_every = 5
[decode]
beam = 2
average = 2
"""


LANGUAGE = """
[task]
kind = "language"
[data]
path = "lm_data"
vocab = 280
[prepare]
raw = "lm_raw"
[model]
encoder_layers = 0
decoder_layers = 1
width = 16
ffn = 16
heads = 2
context = 16
[optim]
warmup = 4
[train]
run = "lm_run"
tokens = 128
steps = 24
log_every = 3
valid_every = 6
save_every = 4
keep_last = 3
"""


@pytest.fixture(scope="session")
def bathy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    home = tmp_path_factory.mktemp("chaos")
    commands = Commands(home)
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def home(bathy: Commands) -> Path:
    """raw, data, run and model folders, made without any disturbance."""
    (bathy.home / "config.toml").write_text(CONFIG)
    for command in (
        "corpus toy raw --size 900 --held-out 12", "prepare config.toml", "train config.toml",
        "export run --to bathy --out model", "translate run -i raw/test.de -o test.out",
    ):  # fmt: skip
        assert bathy(*command.split()).code == 0, command
    return bathy.home


@pytest.fixture(scope="session")
def language(bathy: Commands, home: Path) -> Path:
    """The same for a language model, in folders that begin with lm_."""
    (home / "language.toml").write_text(LANGUAGE)
    (home / "lm_raw").mkdir()
    for number, line in enumerate((home / "raw/train.en").read_text().splitlines()[:40]):
        (home / f"lm_raw/{number}.txt").write_text(f"{line} " * 5)
    for command in ("prepare language.toml", "train language.toml", "export lm_run --to bathy --out lm_model"):
        assert bathy(*command.split()).code == 0, command
    return home


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if TALLY:
        counts = ", ".join(f"{number:,} {what}" for what, number in sorted(TALLY.items()))
        terminalreporter.write_line(f"chaos: {counts}; BATHY_CHAOS_SEED={SEED}")
