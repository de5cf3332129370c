"""Every file of every folder, spoiled: refused in one line, repaired, or of no effect on the result; never silently wrong."""

import shutil
from pathlib import Path

import pytest
from harness import TALLY, Commands, amount, contents, damage, damaged, dice
from test_kills import DISTIL

LINES = 4
"""Sentences translated to see whether a model still says the same."""


def files(folder: Path, but: tuple[str, ...] = ()) -> list[Path]:
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return [path for path in found if not any(part in str(path.relative_to(folder)) for part in but)]


@pytest.fixture(scope="module")
def lines(home: Path) -> Path:
    (home / "some.de").write_text("".join((home / "raw/test.de").read_text().splitlines(keepends=True)[:LINES]))
    return home / "some.de"


@pytest.mark.parametrize("part", range(amount(1, 6)))
@pytest.mark.parametrize("folder", ["data", "raw", "run", "model", "lm_data", "lm_run", "lm_model"])
def test_verify_names_what_is_damaged(folder: str, part: int, bathy: Commands, home: Path, language: Path) -> None:
    """But for settings, logs and memories, which carry no checksum: those must only not be a traceback."""
    random = dice("verify", folder, part)
    free = {"config.toml", "metrics.jsonl", "readings.jsonl", "README.md", "profile.json", "inputs.json"}
    found = files(home / folder, (".work",))
    for path in random.sample(found, min(len(found), amount(2, 12))):
        with damaged(path, random) as way:
            result = bathy("verify", folder)
        assert result.code != 0 or path.name in free, (path, way, result.out)


@pytest.mark.parametrize("part", range(amount(1, 10)))
def test_preparing_again_repairs_data(part: int, bathy: Commands, home: Path) -> None:
    random = dice("prepare", part)
    expected = contents(home / "data", (".work", "manifest.json"))
    shutil.rmtree(home / "spoiled", ignore_errors=True)
    shutil.copytree(home / "data", home / "spoiled")
    for _ in range(amount(1, 4)):
        for path in random.sample(files(home / "spoiled"), 5):
            damage(path, random)
        assert bathy("prepare", "config.toml", "--out", "spoiled").code == 0
        assert contents(home / "spoiled", (".work", "manifest.json")) == expected


@pytest.mark.parametrize("part", range(amount(1, 9)))
@pytest.mark.parametrize("folder", ["run", "model", "run/checkpoints/step_00000024"])
def test_a_damaged_model_is_refused_or_said_or_translates_as_before(
    folder: str, part: int, bathy: Commands, home: Path, lines: Path
) -> None:
    random = dice("translate", folder, part)
    args = ["translate", folder, "-i", "some.de", "-o", "now.out", "--beam", "1", "--average", "1"]
    assert bathy(*args).code == 0
    expected = (home / "now.out").read_bytes()
    found = files(home / folder, ("config.toml",))
    for path in random.sample(found, min(len(found), amount(2, 12))):
        with damaged(path, random) as way:
            result = bathy(*args)
        if result.code == 0:
            said = "damaged" in result.err and "warning" in result.err
            assert said or (home / "now.out").read_bytes() == expected, (path, way, result.err)


SPEAK = ["--prompt", "the", "--length", "6", "--seed", "1"]


@pytest.mark.parametrize("part", range(amount(1, 8)))
@pytest.mark.parametrize("folder", ["lm_run", "lm_model", "lm_run/checkpoints/step_00000024"])
def test_a_damaged_language_model_is_refused_or_said_or_writes_as_before(
    folder: str, part: int, bathy: Commands, language: Path
) -> None:
    """By `sample` and by `score --text`."""
    random = dice("sample", folder, part)
    args = [["sample", folder, *SPEAK], ["score", folder, "--text", "lm_raw/0.txt", "--json"]][part % 2]
    expected = bathy(*args)
    assert expected.code == 0
    found = files(language / folder, ("config.toml",))
    for path in random.sample(found, min(len(found), amount(1, 8))):
        with damaged(path, random) as way:
            result = bathy(*args)
        said = "damaged" in result.err and "warning" in result.err
        assert result.code != 0 or said or result.out == expected.out, (path, way, result.err)


@pytest.mark.parametrize("part", range(amount(0, 5)))
def test_a_damaged_lesson_is_taught_again(part: int, bathy: Commands, home: Path) -> None:
    """The teacher's translations so far, spoiled: the corpus ends as it would have; a spoiled teacher is refused or said."""
    random, args = dice("lesson", part), [*DISTIL.split(), "--text-only", "--corpus"]
    if not (home / "lesson").exists():
        assert bathy(*args, "lesson").code == 0
    expected = contents(home / "lesson", (".work",))
    shutil.rmtree(home / "spoiled_lesson", ignore_errors=True)
    shutil.copytree(home / "lesson", home / "spoiled_lesson")
    for path in random.sample(files(home / "spoiled_lesson"), 3):
        damage(path, random)
    result = bathy(*args, "spoiled_lesson")
    assert result.code == 2 or contents(home / "spoiled_lesson", (".work",)) == expected, result.err
    shutil.rmtree(home / "spoiled_lesson")
    with damaged(random.choice(files(home / "run", ("config.toml",))), random):
        result = bathy(*args, "spoiled_lesson")
    said = result.code == 2 or "damaged" in result.err
    assert said or contents(home / "spoiled_lesson", (".work",)) == expected, result.err


@pytest.mark.parametrize("part", range(amount(1, 10)))
def test_a_damaged_run_resumes_bit_for_bit_or_is_refused(part: int, bathy: Commands, home: Path) -> None:
    """With one checkpoint damaged training falls back, says so, and ends the same; with all it stops and asks."""
    random = dice("resume", part)
    shutil.rmtree(home / "hurt", ignore_errors=True)
    shutil.copytree(home / "run", home / "hurt")
    shutil.rmtree(home / "hurt/checkpoints/step_00000024")
    last = "checkpoints/step_00000024/model.safetensors"
    found = files(home / "hurt", ("config.toml", "readings", "metrics"))
    for path in random.sample(found, min(len(found), random.randint(1, 4))):
        damage(path, random)
    result = bathy("train", "config.toml", "--run", "hurt")
    if result.code == 0:
        assert (home / "hurt" / last).read_bytes() == (home / "run" / last).read_bytes(), result.err
    else:
        assert not (home / "hurt" / last).exists()


@pytest.mark.parametrize("part", range(amount(0, 6)))
def test_damaged_data_trains_as_before_or_is_refused(part: int, bathy: Commands, home: Path) -> None:
    random = dice("train", part)
    short = ["--set", "train.steps=4", "--set", "train.monitor=false", "--set", "data.path=hurt_data"]
    shutil.rmtree(home / "hurt_data", ignore_errors=True)
    shutil.copytree(home / "data", home / "hurt_data")
    shutil.rmtree(home / "short", ignore_errors=True)
    assert bathy("train", "config.toml", "--run", "short", *short).code == 0
    weights = "checkpoints/step_00000004/model.safetensors"
    found = files(home / "hurt_data", (".work", "test"))
    for path in random.sample(found, min(len(found), amount(2, 8))):
        shutil.rmtree(home / "other", ignore_errors=True)
        with damaged(path, random) as way:
            result = bathy("train", "config.toml", "--run", "other", *short)
        if result.code == 0:
            assert (home / "other" / weights).read_bytes() == (home / "short" / weights).read_bytes(), (path, way)


@pytest.mark.parametrize("part", range(amount(1, 8)))
def test_damaged_inputs_are_no_traceback(part: int, bathy: Commands, home: Path) -> None:
    """Raw text, a config, logs, a sweep's database: whatever is read."""
    random = dice("inputs", part)
    (home / "wild").mkdir(exist_ok=True)
    for name in ("config.toml", "raw/train.de", "raw/test.de", "test.out"):
        for _ in range(amount(1, 4)):
            path = home / "wild" / Path(name).name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            shutil.copy(home / name, path)
            damage(path, random)
            if path.name == "config.toml":
                bathy("train", "wild/config.toml", "--plan", "--gpus", "1", limits={"RLIMIT_AS": 4 << 30})
            elif path.name == "train.de":
                bathy("corpus", "folder", "wild_raw", "--pair", "train=wild/train.de,raw/train.en")
            else:
                bathy("score", f"wild/{path.name}", "-r", "raw/test.en", "--samples", "0", "-m", "bleu")


@pytest.mark.parametrize("part", range(amount(0, 5)))
def test_damaged_logs_do_not_stop_a_clinic_or_a_sweep(part: int, bathy: Commands, home: Path) -> None:
    random = dice("logs", part)
    shutil.rmtree(home / "logs", ignore_errors=True)
    shutil.copytree(home / "run", home / "logs")
    for name in ("metrics.jsonl", "readings.jsonl", "config.toml", "profile.json"):
        path = home / "logs" / name
        if path.exists():
            with damaged(path, random):
                bathy("clinic", "logs", "--tokens", "64", "--exams", "activations")
    (home / "logs/sweep.db").write_bytes(random.randbytes(3000))
    TALLY["damaged files"] += 1
    bathy("sweep", "config.toml", "--grid", "optim.lr=1e-3", "--out", "logs")
