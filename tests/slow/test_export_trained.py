"""An Admin model trained on the toy corpus, folded and exported: every engine gives the same 500 translations."""

from pathlib import Path

import pytest
from running import train

from bathy.tasks.lines import read_texts
from bathy.tasks.translation.config import Config
from bathy.tasks.translation.corpora.toy import write_toy
from bathy.tasks.translation.export import export
from bathy.tasks.translation.prepare import prepare
from bathy.tasks.translation.score import score
from bathy.tasks.translation.search import Decode
from bathy.tasks.translation.settings import DataConfig, PrepareConfig
from bathy.tasks.translation.text import Codec
from bathy.train.world import World

pytestmark = pytest.mark.slow
DECODE = Decode(beam=5, average=3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with raw text, data and a run."""
    folder = tmp_path_factory.mktemp("trained")
    write_toy(folder / "raw", size=8000, held_out=500)
    config = Config(
        data=DataConfig(path=str(folder / "data"), vocab=1000),
        prepare=PrepareConfig(raw=str(folder / "raw")),
        **{
            "model": {"encoder_layers": 3, "decoder_layers": 2, "width": 96, "ffn": 192, "heads": 4, "max_length": 128},
            "optim": {"lr": 3e-3, "warmup": 60},
            "train": {"tokens": 1024, "steps": 450, "save_every": 50, "valid_every": 0},
        },  # type: ignore[arg-type]
    )
    prepare(config)
    train(config, folder / "run", World())
    return folder


@pytest.mark.parametrize("to", ["marian", "ctranslate2"])
def test_all_engines_give_the_same_translations(to: str, trained: Path, tmp_path: Path) -> None:
    sample = read_texts(trained / "raw/test.de")
    measure, rows = export(trained / "run", to, tmp_path / "out", DECODE, sample=sample)
    assert [row.beam for row in rows] == [1, 5] and all(row.sentences == 500 for row in rows)
    assert all(row.distance < 1e-4 for row in rows), measure
    assert all(row.different == 0 and row.identical >= 495 for row in rows), rows


def test_eight_bits_cost_at_most_half_a_point(trained: Path, tmp_path: Path) -> None:
    sample, reference = (read_texts(trained / f"raw/test.{side}") for side in ("de", "en"))
    _, rows = export(trained / "run", "ctranslate2", tmp_path / "out", DECODE, kind="int8", sample=sample)
    decode = Codec.load(trained / "run").decode
    for row in rows:
        ours, theirs = score({"float32": decode(row.ours), "int8": decode(row.theirs)}, [reference], ["bleu"], samples=0)
        assert ours.score > 5 and abs(ours.score - theirs.score) <= 0.5
