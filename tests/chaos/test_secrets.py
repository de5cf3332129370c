"""No file of a sweep, and nothing on the screen, holds a secret of the command line or of the environment."""

from pathlib import Path

import pytest
from harness import TALLY, Commands

PASSWORD, OTHER = "geheim-4711", "auch-geheim-0815"


@pytest.mark.parametrize("wrong", [False, True])
def test_a_sweep_keeps_its_secrets(wrong: bool, bathy: Commands, home: Path) -> None:
    """SQLite takes a password in its address without a word, and so shows all that a server's address would."""
    out = f"secret_{wrong}"
    address = f"sqlite:///file:{home / out / 'secret.db'}?uri=true&password={PASSWORD}"
    if wrong:
        address = f"postgresql:/me:{PASSWORD}@nowhere:x/db"
    grid = ["--grid", "optim.lr=1e-3", "--set", "train.steps=4", "--out", out, "--storage", address]
    result = bathy("sweep", "config.toml", *grid, env={"PGPASSWORD": OTHER, "HF_TOKEN": OTHER})
    assert result.code == (2 if wrong else 0), result.err
    shown = {"screen": (result.out + result.err).encode()}
    shown |= {str(path): path.read_bytes() for path in (home / out).rglob("*") if path.is_file()}
    TALLY["files searched for secrets"] += len(shown)
    assert not [name for name, text in shown.items() if PASSWORD.encode() in text or OTHER.encode() in text]
    assert wrong or len(shown) > 8
