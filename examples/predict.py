"""Will it train? A deep model of torch's own, before any training: the odds, the largest rate, and what Admin changes."""

import torch
from torch import nn

import bathy

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(d_model=32, nhead=2, dim_feedforward=128, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.Embedding(50, 32), nn.TransformerEncoder(layer, num_layers=12), nn.Linear(32, 50))
batches = [torch.randint(1, 50, (8, 16)) for _ in range(8)]

forecast = bathy.predict(model, batches[0], lr=3e-3, warmup=100, optimizer="Adam", batches=batches)
print(forecast)
print("what moved first:", forecast.moved_first or "nothing left its usual range")
