"""What training minimises: label-smoothed cross-entropy summed over real target tokens, as one module that DDP can wrap."""

from __future__ import annotations

from torch import Tensor, nn

from bathy.nmt.loss import cross_entropy
from bathy.transformer import Transformer


class Objective(nn.Module):
    """(smoothed loss, NLL) of a batch, each summed over its real target tokens; no logits are computed at padding."""

    def __init__(self, model: Transformer, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, source: Tensor, target_in: Tensor, target_out: Tensor) -> tuple[Tensor, Tensor]:
        real = target_out.ne(self.model.config.pad)
        features = self.model.features(source, target_in)[real]
        return cross_entropy(features, self.model.output_weight, target_out[real], self.smoothing if self.training else 0.0)
