"""Install the wheel into an empty environment with one extra at a time, as people do, and try its commands (`make wheel`).

python tests/try_wheel.py [EXTRA…]        all of them by default; "core" is none
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORPUS = "corpus toy raw --size 400 --held-out 4 --workers 1"
PREPARE = "prepare --raw raw --out data --vocab 300 --set prepare.workers=1"
TINY = "--set data.path=data --set train.steps=2 --set train.save_every=2 --set model.encoder_layers=1 --set model.width=32"
TRAIN = f"train demo.toml --run run {TINY} --set optim.warmup=1"
TRANSLATE = ["translate run --input raw/test.de --output hyps.txt", "score hyps.txt --reference raw/test.en"]
EXPORT = "export run --to ctranslate2 --out model"
TRIES: dict[str, tuple[list[str], list[str]]] = {
    "core": (["--version", "doctor", CORPUS], [PREPARE, "watch . --out page.html", "sweep demo.toml --grid optim.lr=1e-3"]),
    "nmt": ([CORPUS, PREPARE, TRAIN, *TRANSLATE], ["watch run --out page.html"]),
    "clinic": ([CORPUS, "watch . --out page.html"], [PREPARE]),
    "sweep": ([CORPUS, "sweep --help"], [PREPARE]),
    "export": ([CORPUS, "export --help"], [PREPARE]),
    "serve": ([CORPUS, "serve --help"], [PREPARE]),
    "wandb": ([CORPUS, "doctor"], [PREPARE]),
    "tensorboard": ([CORPUS, "doctor"], [PREPARE]),
    "language": (["doctor"], ["watch . --out page.html"]),
    "all": ([CORPUS, PREPARE, TRAIN, *TRANSLATE, "watch run --out page.html", EXPORT, "doctor --strict"], []),
}
"""Extra to the commands that must work with it alone, and those that must say which extra they need."""


def build(folder: Path) -> Path:
    """The wheel, built from this checkout."""
    source = folder / "source"  # a copy: building leaves files behind
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(command, check=True)
    return next(folder.glob("bathy-*.whl"))


def attempt(wheel: Path, extra: str, folder: Path) -> list[str]:
    """What is wrong with the wheel and this extra alone."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    wanted = str(wheel) if extra == "core" else f"{wheel}[{extra}]"
    pip = [
        str(folder / "env/bin/pip"),
        "install",
        "-q",
        "--disable-pip-version-check",
        "-c",
        str(ROOT / "constraints.txt"),
        wanted,
    ]
    subprocess.run(pip, check=True)
    (folder / "demo.toml").write_bytes((ROOT / "src/bathy/lab/demo/demo.toml").read_bytes())
    works, refused = TRIES[extra]
    return [fault for line in works + refused if (fault := _try(folder, line, line in refused))]


def _try(folder: Path, line: str, refused: bool) -> str:
    result = subprocess.run(
        [str(folder / "env/bin/bathy"), *line.split()], cwd=folder, capture_output=True, text=True, check=False
    )
    said = (result.stdout + result.stderr)[-600:]
    if refused and (result.returncode != 2 or "pip install 'bathy[" not in said):
        return f"`bathy {line}` should name the extra it needs: code {result.returncode}, {said}"
    return "" if refused or result.returncode == 0 else f"`bathy {line}` failed: {said}"


def main(extras: list[str]) -> int:
    """Try each extra; returns how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        wheel = build(Path(temporary))
        for extra in extras or list(TRIES):
            folder = Path(temporary) / extra
            folder.mkdir()
            faults = attempt(wheel, extra, folder)
            failed += bool(faults)
            print(f"{extra}: {'; '.join(faults) or 'works'}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
