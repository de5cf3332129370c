"""Scales: how large an item is measured: tiny in minutes, small and medium in hours; paper is the published recipe."""

from __future__ import annotations

from dataclasses import dataclass

from bathy.errors import ConfigError, unknown

DEPTHS = (1, 2, 4, 6, 9, 12, 18, 24)


@dataclass(frozen=True)
class Scale:
    """Sizes of what is built without training; what is trained is in the scale's configs."""

    name: str
    purpose: str
    configs: dict[str, str]
    """Dataset of the paper (iwslt, ende, enfr), or multi30k, to the config in `recipes/` that stands for it."""
    shape: dict[str, int]
    """Width, FFN and heads of models that are examined at the start only."""
    draws: int = 24
    """Models drawn for averages over seeds."""
    tokens: int = 1024
    """Tokens of the batch on which models are examined."""
    deepest: int = 36
    """Layers of the deepest encoder in Figure 4."""
    depths: tuple[int, ...] = DEPTHS
    """Depths of fresh models for Figure 4's step of Adam."""
    step: float = 1e-6
    """That step's learning rate; small enough that the deepest change does not saturate."""
    short: tuple[int, int] = (0, 0)
    """Updates and warm-up of runs that need to show only whether they train; 0: those of the recipe."""
    rates: tuple[str, ...] = ()
    """Learning rates of Figure 10's grid."""
    grid_steps: int = 0
    """Updates of its runs."""
    demonstration: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Layers, updates, warm-up and tokens of the deepest models."""
    test: str = "test"
    """The split that is translated."""
    low_rates: tuple[str, ...] = ()
    """The paper's own rates for that grid, where the scale's are higher."""
    data: str = ""
    """What --data must give; empty: nothing, the toy corpus is built in."""

    @property
    def apart(self) -> bool:
        """Whether the paper's datasets are different ones here."""
        return self.configs["iwslt"] != self.configs["ende"]


SMALL_SHAPE = {"width": 128, "ffn": 512, "heads": 4}

SCALES: dict[str, Scale] = {
    "tiny": Scale(
        "tiny",
        "minutes on two cores, toy corpus",
        dict.fromkeys(("iwslt", "ende", "enfr"), "tiny"),
        SMALL_SHAPE,
        tokens=512,
        short=(240, 50),
        rates=("2e-4", "4e-4", "6e-4", "8e-4", "1e-3"),
        grid_steps=200,
        demonstration=(100, 100, 33, 256),
    ),
    "small": Scale(
        "small",
        "hours on two cores, Multi30k",
        {"iwslt": "small", "ende": "small", "enfr": "small", "multi30k": "multi30k_ende"},
        SMALL_SHAPE,
        short=(600, 150),
        rates=("1e-3", "2e-3", "3e-3", "4e-3", "5e-3"),
        grid_steps=600,
        demonstration=(1000, 450, 75, 1024),
        low_rates=("1e-4", "2e-4", "3e-4", "4e-4", "5e-4"),
        test="test_2016_flickr",
        data="Multi30k: a folder of raw text (train.de, train.en, val.de …) or a prepared one",
    ),
    "medium": Scale(
        "medium",
        "an hour on two cores for each seed, Europarl",
        dict.fromkeys(("iwslt", "ende", "enfr"), "medium"),
        SMALL_SHAPE,
        data="Europarl: a folder of raw text (train.de, train.en, valid.de, test.de …) or a prepared one",
    ),
    "paper": Scale(
        "paper",
        "the published recipe, for GPUs",
        {"iwslt": "paper_iwslt14_deen", "ende": "paper_wmt14_ende", "enfr": "paper_wmt14_enfr"},
        {"width": 512, "ffn": 2048, "heads": 8},
        tokens=4096,
        deepest=100,
        depths=(*DEPTHS, 36, 60, 100),
        rates=("1e-4", "2e-4", "3e-4", "4e-4", "5e-4"),
        grid_steps=100_000,
        demonstration=(1000, 20_000, 4000, 4096),
        data="a folder that holds iwslt14.de-en, wmt14.en-de or wmt14.en-fr, as `bathy corpus` lays them out",
    ),
}


def find_scale(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise ConfigError(unknown("scale", name, SCALES))
    return SCALES[name]
