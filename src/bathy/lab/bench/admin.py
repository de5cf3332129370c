"""Admin's price: a training step against post_ln, profiling against a forward pass, and a folded model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bathy import console
from bathy.admin.fold import fold
from bathy.admin.remedies import profile, stabilise_
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.kernels.memory import hold_memory
from bathy.lab.bench import interleaved, ratio
from bathy.train.config import OptimConfig
from bathy.train.optim import make_optimizer

SIZES = {
    "6L-6L width 512": {"encoder_layers": 6, "decoder_layers": 6, "width": 512, "ffn": 2048, "heads": 8},
    "18L-18L width 128": {"encoder_layers": 18, "decoder_layers": 18, "width": 128, "ffn": 512, "heads": 4},
}
VOCAB = 8000
TOKENS = 1024


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Print and return the ratios with their 95 % intervals, from random tokens: the cost does not depend on the text."""
    torch.set_num_threads(1)
    hold_memory()
    rounds = 5 if quick else 25
    result = {name: _measure(settings, rounds) for name, settings in SIZES.items()}
    rows = [
        (name, what, *numbers) for name, ratios in result.items() for what, numbers in ratios.items() if what != "few tokens"
    ]
    columns = ["model", "what", "median", "95 % from", "to"]
    console.out.print(console.table(f"Admin's price, {rounds} interleaved pairs, CPU time, 1 thread", columns, rows))
    for name, ratios in result.items():
        console.out.print(f"{name}: ω from 512 tokens differs from ω from 8192 by at most {ratios['few tokens'][0]:.2%}")
    return result


def _measure(settings: dict[str, int], rounds: int) -> dict[str, tuple[float, ...]]:
    admin, plain = _model("admin", settings), _model("post_ln", settings)
    batch = _batch(TOKENS)
    stabilise_(admin, batch)
    step = interleaved({"admin": _step(admin, batch), "post_ln": _step(plain, batch)}, rounds)
    passes = interleaved({"profile": lambda: profile(admin, batch), "forward": _forward(admin.train(), batch)}, rounds)
    folded = fold(admin).eval()
    serve = interleaved({"folded": _forward(folded, batch), "post_ln": _forward(plain.eval(), batch)}, rounds)
    many = _batch(8192)
    return {
        "training step, admin / post_ln": ratio(step["admin"], step["post_ln"]),
        "profiling / forward pass": ratio(passes["profile"], passes["forward"]),
        "forward, folded / post_ln": ratio(serve["folded"], serve["post_ln"]),
        "few tokens": (profile(admin, many, 512).difference(profile(admin, many, 8192)),),
    }


def _model(scheme: str, settings: dict[str, int]) -> Transformer:
    torch.manual_seed(0)
    schemes = {"encoder_scheme": scheme, "decoder_scheme": scheme}
    return Transformer(TransformerConfig(vocab=VOCAB, dropout=0.1, **settings, **schemes))  # type: ignore[arg-type]


def _batch(tokens: int) -> tuple[Tensor, Tensor]:
    source = torch.randint(4, VOCAB, (tokens // 32, 32), generator=torch.Generator().manual_seed(1))
    return source, source.flip(0)


def _step(model: Transformer, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    """Forward, loss, backward and an update by the engine's optimiser."""
    optimiser = make_optimizer(model, OptimConfig(name="radam", lr=1e-4))

    def step() -> None:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(*batch).flatten(0, 1), batch[1].flatten()).backward()
        optimiser.step()

    return step


def _forward(model: Transformer, batch: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    def forward() -> Tensor:
        with torch.no_grad():
            return model(*batch)

    return forward
