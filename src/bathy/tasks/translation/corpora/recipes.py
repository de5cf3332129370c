"""Where the corpora of the published recipes come from, and which of their files make which split.

Sources: fairseq's examples/translation/prepare-{iwslt14,wmt14en2de,wmt14en2fr}.sh, which the Admin paper follows.
Sizes and checksums are those that tensorflow/datasets publishes in url_checksums/wmt{14,17}_translate.txt; where nobody
publishes any, none is given here, and the first download is recorded instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bathy.errors import ConfigError, unknown
from bathy.tasks.download import Remote

TFDS = "tensorflow/datasets, url_checksums"
STATMT = "http://www.statmt.org"
EUROPARL = Remote(
    f"{STATMT}/wmt13/training-parallel-europarl-v7.tgz", 657_632_379,
    "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7", TFDS,
)  # fmt: skip
COMMON_CRAWL = Remote(
    f"{STATMT}/wmt13/training-parallel-commoncrawl.tgz", 918_311_367,
    "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5", TFDS,
)  # fmt: skip
NEWS_9 = Remote(
    f"{STATMT}/wmt14/training-parallel-nc-v9.tgz", 80_418_416,
    "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485", TFDS,
)  # fmt: skip
NEWS_12 = Remote(
    "http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz", 168_591_139,
    "2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2", TFDS,
)  # fmt: skip
UN = Remote(f"{STATMT}/wmt13/training-parallel-un.tgz")
GIGA = Remote(f"{STATMT}/wmt10/training-giga-fren.tar")
DEV_17 = Remote("http://data.statmt.org/wmt17/translation-task/dev.tgz")
TEST_14 = Remote(f"{STATMT}/wmt14/test-full.tgz")
TED = Remote("http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")
"""The archive of wit3.fbk.eu, texts/de/en of 2014-01, which no longer serves it, in the copy that fairseq's recipe uses."""
MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"


@dataclass(frozen=True)
class Part:
    """Two files of one split, line by line in parallel; `form` says how to read them: text, segments or ted."""

    remotes: tuple[Remote, ...]
    source: str
    target: str
    form: str = "text"


@dataclass(frozen=True)
class Recipe:
    """A corpus: its languages, its splits in parts, and what to cite."""

    source: str
    target: str
    splits: Mapping[str, tuple[Part, ...]]
    cite: str
    size: str
    """About how much is downloaded."""


def archived(remote: Remote, stem: str, source: str, target: str) -> Part:
    """Plain text in an archive: stem.source and stem.target."""
    return Part((remote,), f"{stem}.{source}", f"{stem}.{target}")


def newstest2014(source: str, target: str, pair: str) -> Part:
    """WMT 2014's test set, in SGML."""
    stem = f"test-full/newstest2014-{pair}"
    return Part((TEST_14,), f"{stem}-src.{source}.sgm", f"{stem}-ref.{target}.sgm", "segments")


def ted_test() -> tuple[Part, ...]:
    """The five sets that make IWSLT'14's test set."""
    names = ["TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"]
    return tuple(Part((TED,), f"de-en/IWSLT14.{n}.de-en.de.xml", f"de-en/IWSLT14.{n}.de-en.en.xml", "segments") for n in names)


def multi30k(source: str, target: str) -> Recipe:
    """Image captions in four languages (Elliott et al., 2016, 2017; Barrault et al., 2018)."""
    files = {"train": "train", "valid": "val", "test_2016_flickr": "test_2016_flickr", "test_2018_flickr": "test_2018_flickr"}
    if "cs" not in (source, target):
        files |= {name: name for name in ("test_2017_flickr", "test_2017_mscoco")}

    def part(name: str) -> Part:
        both = [f"{name}.{language}.gz" for language in (source, target)]
        return Part(tuple(Remote(f"{MULTI30K}/{file}") for file in both), *both)

    splits = {split: (part(name),) for split, name in files.items()}
    return Recipe(source, target, splits, "Elliott et al., W16-3210 and W17-4718; non-commercial research", "2 MB")


RECIPES: dict[str, Recipe] = {
    "iwslt14.de-en": Recipe(
        "de", "en",
        {"train": (Part((TED,), "de-en/train.tags.de-en.de", "de-en/train.tags.de-en.en", "ted"),), "test": ted_test()},
        "Cettolo et al., 2014: IWSLT'14, TED talks", "20 MB",
    ),
    "wmt14.en-de": Recipe(
        "en", "de",
        {
            "train": (
                archived(EUROPARL, "training/europarl-v7.de-en", "en", "de"),
                archived(COMMON_CRAWL, "commoncrawl.de-en", "en", "de"),
                archived(NEWS_12, "training/news-commentary-v12.de-en", "en", "de"),
            ),
            "valid": (archived(DEV_17, "dev/newstest2013", "en", "de"),),
            "test": (newstest2014("en", "de", "deen"),),
        },
        "Bojar et al., 2014: WMT'14", "1.8 GB",
    ),
    "wmt14.en-fr": Recipe(
        "en", "fr",
        {
            "train": (
                archived(EUROPARL, "training/europarl-v7.fr-en", "en", "fr"),
                archived(COMMON_CRAWL, "commoncrawl.fr-en", "en", "fr"),
                archived(UN, "un/undoc.2000.fr-en", "en", "fr"),
                archived(NEWS_9, "training/news-commentary-v9.fr-en", "en", "fr"),
                Part((GIGA,), "giga-fren.release2.fixed.en.gz", "giga-fren.release2.fixed.fr.gz"),
            ),
            "test": (newstest2014("en", "fr", "fren"),),
        },
        "Bojar et al., 2014: WMT'14", "6 GB",
    ),
}  # fmt: skip
MULTI30K_LANGUAGES = ("cs", "de", "en", "fr")
NAMES = ("toy", "folder", *RECIPES, "multi30k.LANG-LANG")
"""What `bathy corpus` knows."""


def recipe(name: str) -> Recipe:
    """The recipe of a corpus, or an error that names the known ones."""
    if name in RECIPES:
        return RECIPES[name]
    kind, _, pair = name.partition(".")
    source, _, target = pair.partition("-")
    if kind == "multi30k":
        if {source, target} <= set(MULTI30K_LANGUAGES) and source != target:
            return multi30k(source, target)
        raise ConfigError(f"{name}: Multi30k has {', '.join(MULTI30K_LANGUAGES)}; write for example multi30k.de-en")
    raise ConfigError(unknown("corpus", name, NAMES))
