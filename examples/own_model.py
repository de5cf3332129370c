"""Your own model: find its residual sites, stabilise it, train it, fold ω away. Nothing of its code is edited.

python examples/own_model.py
"""

import torch
from torch import Tensor, nn

import bathy


class Tagger(nn.Module):
    """A Post-LN encoder as one writes it by hand; it has never heard of bathy."""

    def __init__(self, layers: int = 18, width: int = 64, vocab: int = 100) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(vocab, width), nn.Linear(width, vocab)
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(layers))
        self.ffn = nn.ModuleList(nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, width)) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for i, (attention, ffn) in enumerate(zip(self.attention, self.ffn, strict=True)):
            x = self.norms[2 * i](x + attention(x, x, x, need_weights=False)[0])
            x = self.norms[2 * i + 1](x + ffn(x))
        return self.out(x)


torch.manual_seed(0)
model, tokens = Tagger(), torch.randint(100, (16, 20))
sites = bathy.find_sites(model, tokens)
print(f"{len(sites)} sites, the first: {sites[0].name}, the last: {sites[-1].name}")

profile = bathy.stabilise_(model, tokens)  # before the optimiser: ω is a parameter like any other
print(f"ω from {min(profile.omega.values()):.2f} to {max(profile.omega.values()):.2f}")

optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
for step in range(1, 31):
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"update {step}: loss {loss.item():.2f}")

folded = bathy.fold(model)
error = (folded.eval()(tokens) - model.eval()(tokens)).abs().max().item()
print(f"folded: a Tagger with its own keys only, largest difference {error:.1e}")
assert folded.state_dict().keys() == Tagger().state_dict().keys()
