"""Every class of the installed libraries that builds small with random weights: `make zoo` tries them all.

python tests/sites/whole_zoo.py --out docs/results/zoo.json [--library timm] [--only vit,swin] [--shard 0/2]
python tests/sites/whole_zoo.py --out docs/results/zoo.json --selection RULE --collect PART.rows.jsonl…   puts parts together

Rows are appended to OUT.rows.jsonl as they come; a run that was interrupted resumes there, unless the code has changed since.
A part (--shard, --only) leaves its rows there, for --collect.
"""

import argparse
import json
import shlex
import signal
import sys
import time
import warnings
from collections import Counter
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from libraries import LIBRARIES, entries
from trial import Trial, judged, trial

from bathy.lab.bench.optional import torchvision_ready
from bathy.lab.bench.shrink import Excluded
from bathy.lab.bench.zoo import Entry

SECONDS = 90
"""CPU time that one specimen may take."""
ROOT = Path(__file__).parents[2]


class Late(BaseException):
    """A specimen took too long; no library's `except Exception` takes it for an error of its own."""


def attempt(entry: Entry) -> Trial:
    """The trial of one specimen; one that cannot be built, or takes too long, is excluded with the reason."""
    name, library, build, law = entry

    def built(depth: int) -> Any:
        try:
            return build(depth)
        except Excluded:
            raise
        except Exception as error:
            raise Excluded(f"cannot be built: {type(error).__name__}: {str(error)[:120]}") from error

    signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return trial(name, library, built, law)
    except Excluded as error:
        return Trial(name, library, "excluded", str(error))
    except Late:
        return Trial(name, library, "excluded", f"takes more than {SECONDS} s of CPU time")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def revision() -> str:
    """A digest of the code under test."""
    digest = sha256()
    for path in sorted([*ROOT.glob("src/bathy/sites/*.py"), *ROOT.glob("src/bathy/admin/*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str]:
    """Versions of the libraries that were tried."""
    found = {}
    with suppress(ImportError):
        torchvision_ready()
    for name in ("bathy", *LIBRARIES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = str(getattr(sys.modules.get(name), "__version__", "not installed"))
    return found


def main() -> None:
    """Try all, print as it goes, write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", default="")
    parser.add_argument("--library", default=",".join(LIBRARIES))
    parser.add_argument("--only", default="")
    parser.add_argument("--shard", default="0/1", help="which of how many parts of the list")
    parser.add_argument("--collect", nargs="*", default=[], help="write OUT from the rows of several parts")
    parser.add_argument("--selection", default="all", help="by which rule the collected parts were chosen; it is written down")
    options = parser.parse_args()
    if options.collect:
        collect([Path(name) for name in options.collect], Path(options.out), options.selection)
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    quiet()
    rows = Path(f"{options.out or '/dev/null'}.rows.jsonl")
    now, part, parts = revision(), *map(int, options.shard.split("/"))
    done = _done(rows, now) if options.out else {}
    for library in options.library.split(","):
        for entry in list(entries(library))[part::parts]:
            chosen = not options.only or entry[0] in options.only.split(",")
            if chosen and (library, entry[0]) not in done:
                done[library, entry[0]] = _report(entry, now, rows if options.out else None)
    if options.out and parts == 1 and not options.only:
        write(list(done.values()), now, Path(options.out))
        rows.unlink()
    print(Counter(row["verdict"] for row in done.values()))


def collect(parts: list[Path], path: Path, selection: str) -> None:
    """Write the results from the rows of parts, which one revision of the code must have made; later parts count."""
    found = [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]
    codes = {row.pop("revision") for row in found}
    if len(codes) > 1:
        sys.exit(f"the parts were made by different code: {', '.join(sorted(codes))}")
    rows = {(row["library"], row["name"]): row for row in found}
    write(list(rows.values()), codes.pop(), path, selection)


def _done(rows: Path, now: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What this revision of the code has tried already."""
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    found = [json.loads(line) for line in lines]
    return {(row["library"], row["name"]): row for row in found if row.pop("revision") == now}


def _report(entry: Entry, now: str, rows: Path | None) -> dict[str, Any]:
    start = time.process_time()
    row = judged(attempt(entry).row())
    seconds = time.process_time() - start
    verdict = f"{row['library']} {row['name']}: {row['verdict']} {row['sites']} {row['expected']} {row['placement']}"
    found = f"{row['remedy']} {row['before']:.2f}→{row['after']:.2f} {row['response']} fold {row['fold'][:90]}"
    print(f"{verdict} {found} | {row['reason'][:300]} ({seconds:.0f} s)", flush=True)
    if rows is not None:
        with rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | {"revision": now}, ensure_ascii=False) + "\n")
    return row


def write(rows: list[dict[str, Any]], now: str, path: Path, selection: str = "all") -> None:
    """The results of one run as JSON, with what made them."""
    command = shlex.join(["python", "tests/sites/whole_zoo.py", *sys.argv[1:]])
    head = {"command": command, "selection": selection, "code": now, "versions": versions(), "seed": 0}
    rows = [judged(row) for row in rows]
    counts = dict(Counter(row["verdict"] for row in rows))
    ordered = sorted(rows, key=lambda row: (row["library"], row["name"]))
    text = json.dumps({**head, "counts": counts, "rows": ordered}, indent=0, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def quiet() -> None:
    """Libraries keep their advice to themselves."""
    import transformers

    transformers.logging.set_verbosity_error()


def _late(*_: Any) -> None:
    raise Late


if __name__ == "__main__":
    main()
