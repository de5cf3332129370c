"""What stands between a stack's output and the output matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bathy.core.config import TransformerConfig
from bathy.core.initial import find_initialisation
from bathy.core.norms import find_norm


class BertHead(nn.Module):
    """norm(gelu(W · x + b)), and a bias for each token's logit (Devlin et al., 2019)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width, config.biases)
        self.norm = find_norm(config.norm)(config.width, bias=config.biases)
        self.bias = nn.Parameter(torch.zeros(config.vocab))
        find_initialisation(config.init).draw_(self.dense)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(nn.functional.gelu(self.dense(x)))
