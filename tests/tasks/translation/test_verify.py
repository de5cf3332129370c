"""`bathy verify`: what is whole is called whole, what is damaged is named, and repairing loses nothing intact."""

import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import torch
from folders import model_folder, run_folder
from safetensors.torch import load_file, save_file
from tiny import model

from bathy.cli import main
from bathy.errors import DataError
from bathy.files import digest, read_json, write_json
from bathy.tasks.translation.text import Codec
from bathy.tasks.verify import kind_of, repair, verify


@pytest.fixture(scope="module")
def folders(toy_raw: Path, toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of every kind, all intact."""
    home = tmp_path_factory.mktemp("kinds")
    vocab = Codec.load(toy_data).vocab
    models = [model("admin", (1, 1), seed=seed, vocab=vocab) for seed in range(3)]
    run = run_folder(home / "run", toy_data, models)
    config = run / "config.toml"
    config.write_text(config.read_text().replace('path = "data/toy"', f'path = "{toy_data}"'))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n')
    model_folder(home / "model", toy_data, models[0])
    shutil.copytree(toy_data, home / "data")
    shutil.copytree(toy_raw, home / "corpus")
    shutil.copytree(run / "checkpoints" / "step_00000002", home / "checkpoint")
    return home


KINDS = ["run", "model", "data", "corpus", "checkpoint"]


@pytest.fixture
def copy(folders: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folders, tmp_path / "copy")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_whole_is_called_whole(kind: str, folders: Path) -> None:
    report = verify(folders / kind)
    assert (report.kind, report.faults) == (kind, [])


def ways(whole: bytes, random: Random) -> list[bytes]:
    """The file flipped in one bit, cut, emptied, replaced."""
    place = random.randrange(len(whole))
    flipped = whole[:place] + bytes([whole[place] ^ (1 << random.randrange(8))]) + whole[place + 1 :]
    return [flipped, whole[:place], b"", b"null", random.randbytes(64)]


FREE = {"config.toml", ".lock", "README.md", "metrics.jsonl", "inputs.json"}
"""Files that carry no checksum: settings that a person may edit, logs line by line, a memory of what was seen."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_damaged_file_is_named(kind: str, copy: Path) -> None:
    """Also by a single flipped bit; files in .work are checked by prepare, which makes them again."""
    random = Random(kind)
    for path in sorted(path for path in (copy / kind).rglob("*") if path.is_file()):
        if path.name in FREE or ".work" in path.parts:
            continue
        whole = path.read_bytes()
        for damaged in ways(whole, random):
            path.write_bytes(damaged)
            if damaged != whole:
                faults = verify(copy / kind).faults
                assert faults, (path, damaged[:50])
                assert all("\n" not in str(fault) for fault in faults)
        path.unlink()
        if path.name not in ("corpus.json",):  # what a corpus is known by
            assert verify(copy / kind).faults, f"{path} is missing"
        path.write_bytes(whole)
    assert verify(copy / kind).faults == []


def test_weights_that_are_not_finite_or_do_not_fit_are_named_though_checksums_agree(copy: Path) -> None:
    folder = copy / "checkpoint"
    weights = load_file(folder / "model.safetensors")
    for change, message in ((torch.nan, "not finite"), (None, "belongs to another model")):
        name = sorted(weights)[0]
        broken = {key: value for key, value in weights.items() if key != name or change is not None}
        if change is not None:
            broken[name] = torch.full_like(weights[name], change)
        save_file(broken, folder / "model.safetensors")
        meta = read_json(folder / "meta.json")
        meta["sha256"]["model.safetensors"] = digest(folder / "model.safetensors")
        write_json(folder / "meta.json", meta, seal=True)
        assert any(message in str(fault) for fault in verify(folder).faults)


def test_repairing_a_run_puts_damaged_checkpoints_aside_and_keeps_the_others(copy: Path) -> None:
    run = copy / "run"
    intact = (run / "checkpoints/step_00000002/model.safetensors").read_bytes()
    (run / "checkpoints/step_00000003/model.safetensors").write_bytes(b"half")
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes() + b'{"step": 3, "lo')
    (run / "tokenizer.json").write_bytes(b"{}")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, others = run / f".config.toml.host.{ended.pid}.tmp", run / ".x.tmp"
    for path in (left, others):
        path.write_text("left")
    assert len(repair(verify(run))) == 4 and not left.exists() and others.exists()
    assert (run / "tokenizer.json").read_bytes() == (copy / "data/tokenizer.json").read_bytes()
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [
        "damaged_step_00000003",
        "step_00000001",
        "step_00000002",
    ]
    assert (run / "checkpoints/step_00000002/model.safetensors").read_bytes() == intact
    assert (run / "metrics.jsonl").read_text() == '{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n'


def test_a_data_folder_is_repaired_from_its_raw_text_only_if_that_is_what_it_was(copy: Path, toy_data: Path) -> None:
    folder = copy / "data"
    (folder / "train.source.ids.npy").write_bytes(b"half")
    (folder / "tokenizer.json").write_bytes(b"half")
    assert "prepared" in repair(verify(folder))[0]
    for path in toy_data.glob("*.npy"):
        assert (folder / path.name).read_bytes() == path.read_bytes()
    manifest = read_json(folder / "manifest.json")
    manifest["inputs"][0]["sha256"] = "0" * 64
    write_json(folder / "manifest.json", manifest, seal=True)
    (folder / "train.source.ids.npy").write_bytes(b"half")
    assert "no longer the text" in repair(verify(folder))[0]


def test_the_command_says_what_is_wrong_and_exits_with_code_1(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*args: str) -> int:
        with pytest.raises(SystemExit) as left:
            main(["verify", *args])
        return int(left.value.code or 0)

    assert run(str(copy / "run")) == 0 and "no problems found" in capsys.readouterr().out
    (copy / "run/checkpoints/step_00000003/trainer.pt").write_bytes(b"")
    assert run(str(copy / "run")) == 1 and "trainer.pt is not what was written" in capsys.readouterr().out
    assert run(str(copy / "run"), "--repair") == 0 and "put" in capsys.readouterr().out
    assert run(str(copy)) == 2 and run(str(copy / "nowhere")) == 2


def test_a_folder_that_is_none_of_ours_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no folder of bathy's"):
        kind_of(tmp_path)
