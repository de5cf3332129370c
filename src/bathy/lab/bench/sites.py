"""ω in other people's models: a training step with hooks, and with rescaled weights, against the plain model."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bathy import console
from bathy.admin.remedies import stabilise_
from bathy.clinic.examination import examine
from bathy.errors import require
from bathy.lab.bench import interleaved, ratio
from bathy.sites.trace import find_sites

BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 6, "vocab_size": 1000}
"""BERT-base with six layers and a small vocabulary."""


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Print and return the ratios with their 95 % intervals, from random tokens: the cost does not depend on the text."""
    torch.set_num_threads(1)
    rounds, tokens = (3, 128) if quick else (15, 256)
    models, batch = _models(), {"input_ids": torch.randint(1000, (tokens // 64, 64))}
    for scheme in ("admin", "admin_rescaled"):
        stabilise_(models[scheme], batch, scheme)
    trained = {name: model for name, model in models.items() if name != "fresh"}
    seconds = interleaved({name: _step(model, batch) for name, model in trained.items()}, rounds)
    plain = models["plain"]
    passes = interleaved({"find_sites": lambda: find_sites(plain, batch), "forward": _forward(plain, batch)}, rounds)
    result = {f"training step, {name} / plain": ratio(seconds[name], seconds["plain"]) for name in ("admin", "admin_rescaled")}
    result["find_sites / forward pass"] = ratio(passes["find_sites"], passes["forward"])
    steps: dict[str, Callable[[], object]] = {"step": _step(plain, batch), "find_sites": lambda: find_sites(plain, batch)}
    fresh = models["fresh"]
    steps |= {"stabilise_": lambda: _undone(fresh, batch), "examine": lambda: examine(fresh, batch)}
    costs = interleaved(steps, max(2, rounds // 5))
    result |= {f"{what} / training step": ratio(costs[what], costs["step"]) for what in ("find_sites", "stabilise_", "examine")}
    title = f"BERT, 6 layers, width 768, {tokens} tokens: {rounds} interleaved rounds, CPU time, 1 thread"
    rows = [(what, *numbers) for what, numbers in result.items()]
    console.out.print(console.table(title, ["what", "median", "95 % from", "to"], rows))
    return result


def _models() -> dict[str, nn.Module]:
    transformers = require("transformers", "export")
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**BASE), add_pooling_layer=False)
    return {"plain": model, "admin": deepcopy(model), "admin_rescaled": deepcopy(model), "fresh": deepcopy(model)}


def _undone(model: nn.Module, batch: dict[str, Tensor]) -> None:
    """Stabilise, and take ω off again."""
    stabilise_(model, batch)
    for site in find_sites(model, batch):
        site.detach_()


def _step(model: nn.Module, batch: dict[str, Tensor]) -> Callable[[], None]:
    """Forward, backward and an update."""
    optimiser = torch.optim.Adam(model.train().parameters(), lr=1e-4, foreach=False)

    def step() -> None:
        optimiser.zero_grad()
        model(**batch).last_hidden_state[..., 0].square().mean().backward()
        optimiser.step()

    return step


def _forward(model: nn.Module, batch: dict[str, Tensor]) -> Callable[[], object]:
    def forward() -> object:
        with torch.no_grad():
            return model(**batch)

    return forward
