"""A task for short runs: a Markov chain as source, each word replaced as target. A decoder alone can learn half of it.

Without the source the next word is one of three; with it, it is certain. So the loss of a model falls even when its encoder
is dead, and falls further when it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import bathy

VOCAB, FIRST, NEXT = 64, 4, 3


@dataclass(frozen=True)
class Trial:
    """One short run: schemes, layers and how it is optimised."""

    encoder: str
    decoder: str
    layers: tuple[int, int]
    lr: float = 1e-3
    warmup: int = 40
    seed: int = 0
    width: int = 64

    @property
    def name(self) -> str:
        """Schemes, depth and peak learning rate."""
        used = [scheme for scheme, n in zip((self.encoder, self.decoder), self.layers, strict=True) if n]
        return f"{'/'.join(dict.fromkeys(used))} {self.layers[0]}-{self.layers[1]}, lr {self.lr:g}"

    def model(self) -> bathy.Transformer:
        """The model, stabilised where its scheme asks for a batch."""
        torch.manual_seed(self.seed)
        config = bathy.TransformerConfig(
            vocab=VOCAB, width=self.width, ffn=4 * self.width, heads=4, dropout=0.1,
            encoder_layers=self.layers[0], decoder_layers=self.layers[1],
            encoder_scheme=self.encoder, decoder_scheme=self.decoder,
        )  # fmt: skip
        model = bathy.Transformer(config)
        if any(config.scheme(stack).profiled for stack in config.stacks):
            bathy.stabilise_(model, inputs(model, next(sentences(self.seed))))
        return model


def sentences(seed: int, rows: int = 32, length: int = 10) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Endless batches: source, what the decoder reads, and what it should say; 0 is padding."""
    generator = torch.Generator().manual_seed(seed + 1)
    world = torch.Generator().manual_seed(7)
    follow = torch.randint(FIRST, VOCAB, (VOCAB, NEXT), generator=world)
    words = torch.randperm(VOCAB - FIRST, generator=world) + FIRST
    while True:
        chain = [torch.randint(FIRST, VOCAB, (rows,), generator=generator)]
        for _ in range(length - 1):
            chain.append(follow[chain[-1], torch.randint(NEXT, (rows,), generator=generator)])
        ends = torch.randint(length // 2, length + 1, (rows, 1), generator=generator)
        source = torch.stack(chain, 1).masked_fill(torch.arange(length) >= ends, 0)
        target = torch.where(source > 0, words[(source - FIRST).clamp_min(0)], 0)
        yield source, torch.cat([torch.full((rows, 1), 2), target[:, :-1]], 1), target


def inputs(model: bathy.Transformer, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """What the model's forward takes of a batch."""
    source, target_in, target = batch
    return {("encoder", "decoder"): (source, target_in), ("encoder",): (target,), ("decoder",): (target_in,)}[
        tuple(model.config.stacks)
    ]


def objective(target: Tensor) -> Callable[[Any, Any], Tensor]:
    """Cross-entropy against the target, as an exam's loss."""
    return lambda output, batch: F.cross_entropy(output.float().flatten(0, 1), target[: len(output)].flatten(), ignore_index=0)


def train(
    trial: Trial, steps: int, monitor: bool = True, every: int = 20
) -> tuple[list[float], bathy.Transformer, bathy.Monitor]:
    """Train with Adam, linear warm-up and inverse square root decay; the loss of every update."""
    model = trial.model()
    optimizer = torch.optim.Adam(model.parameters(), trial.lr, betas=(0.9, 0.98))
    watch = bathy.Monitor(model, optimizer=optimizer, every=every, name=trial.name)
    losses = []
    with watch if monitor else torch.enable_grad():
        for step, batch in zip(range(1, steps + 1), sentences(trial.seed), strict=False):
            for group in optimizer.param_groups:
                group["lr"] = trial.lr * min(step / trial.warmup, (trial.warmup / step) ** 0.5)
            loss = objective(batch[2])(model(*inputs(model, batch)), None)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if monitor:
                watch.step(losses[-1])
    return losses, model, watch
