"""Deep Post-LN models of other libraries: plain they stay at chance, stabilised they train, and examine says so before.

Task: give back a sequence of letters in reverse; some sequences are padded. A model stays at chance when its last loss is
above AT_CHANCE of ln(letters), and trains when it is below TRAINS of it. Both were written down before the runs they judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bathy import console
from bathy.admin.remedies import stabilise_
from bathy.clinic.examination import examine
from bathy.errors import require

LETTERS, LENGTH, ROWS = 30, 16, 32
PAD = 0
LAYERS, WIDTH, HEADS, FFN = 24, 64, 4, 128
STEPS, QUICK_STEPS, WARMUP, SEED = 400, 5, 50, 1
RATES = {"XLM": 5e-4, "ELECTRA": 1e-3, "nn.TransformerEncoder": 1e-3}
"""Adam's rate for each family, the same for plain and stabilised; the first two were chosen with another seed, 7."""
LAST = 20
"""Updates whose mean is the last loss."""
AT_CHANCE, TRAINS = 0.85, 0.5
"""Parts of ln(LETTERS): a last loss above the first is chance, below the second has learned."""
UNSTABLE = {"amplification", "step", "learning_rate"}
"""Findings of `examine` that say beforehand that training will be unstable."""


class Reverser(nn.Module):
    """An encoder of someone else's with letters before it and a guess of each letter behind it."""

    def __init__(self, body: nn.Module, run: Callable[[nn.Module, Tensor, Tensor], Tensor], embed: bool) -> None:
        super().__init__()
        self.body, self.run, self.guess = body, run, nn.Linear(WIDTH, LETTERS + 1)
        self.embed = nn.Embedding(LETTERS + 1, WIDTH) if embed else None
        self.positions = nn.Embedding(LENGTH, WIDTH) if embed else None

    def forward(self, letters: Tensor) -> Tensor:
        """Logits of every position (b t v)."""
        x = letters
        if self.embed is not None and self.positions is not None:
            x = self.embed(letters) + self.positions.weight[: letters.shape[1]]
        return self.guess(self.run(self.body, x, letters != PAD))


def xlm() -> Reverser:
    """XLM, which multiplies its stream by the padding mask after every norm."""
    transformers = require("transformers", "export")
    own = {"emb_dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "n_words": LETTERS + 1, "max_position_embeddings": LENGTH}
    body = transformers.XLMModel(transformers.XLMConfig(**own, n_langs=1, pad_index=PAD, dropout=0.0, attention_dropout=0.0))
    return Reverser(body, _states, embed=False)


def electra() -> Reverser:
    """ELECTRA, a BERT with embeddings of its own width."""
    transformers = require("transformers", "export")
    own: dict[str, Any] = {
        "hidden_size": WIDTH,
        "embedding_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "vocab_size": LETTERS + 1,
    }
    own |= {"num_attention_heads": HEADS, "intermediate_size": FFN, "max_position_embeddings": LENGTH, "pad_token_id": PAD}
    own |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return Reverser(transformers.ElectraModel(transformers.ElectraConfig(**own)), _states, embed=False)


def torch_encoder() -> Reverser:
    """torch's own nn.TransformerEncoder."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FFN, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return Reverser(body, lambda body, x, real: body(x, src_key_padding_mask=~real), embed=True)


FAMILIES: dict[str, Callable[[], Reverser]] = {"XLM": xlm, "ELECTRA": electra, "nn.TransformerEncoder": torch_encoder}


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Train each family plain and stabilised, from the same weights on the same batches; print and return what happened."""
    torch.set_num_threads(1)
    result = {name: _family(build, RATES[name], QUICK_STEPS if quick else STEPS) for name, build in FAMILIES.items()}
    chance = math.log(LETTERS)
    title = f"{LAYERS} layers of width {WIDTH}, Adam, {QUICK_STEPS if quick else STEPS} updates; chance is {chance:.2f}"
    columns = ["model", "rate", "plain", "stabilised", "examine, plain", "examine, stabilised", "Σβ²"]
    rows = [
        (name, f"{RATES[name]:g}", *(f"{row[kind]['loss']:.2f} ({row[kind]['outcome']})" for kind in ("plain", "stabilised")),
         *(", ".join(row[kind]["warned"]) or "no warning" for kind in ("plain", "stabilised")),
         f"{row['before']:.2f} → {row['after']:.2f}")
        for name, row in result.items()
    ]  # fmt: skip
    console.out.print(console.table(title, columns, rows))
    settings = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "ffn": FFN, "lr": RATES, "warmup": WARMUP, "seed": SEED}
    settings |= {"steps": QUICK_STEPS if quick else STEPS, "letters": LETTERS, "length": LENGTH, "rows": ROWS}
    return {"settings": settings, "chance": chance, "at_chance": AT_CHANCE, "trains": TRAINS, "families": result}


def _family(build: Callable[[], Reverser], lr: float, steps: int) -> dict[str, Any]:
    """What happens to one family: what examine says before, and the loss that training ends with."""
    row: dict[str, Any] = {}
    for kind in ("plain", "stabilised"):
        torch.manual_seed(SEED)
        model, batches = xavier_(build()), _batches()
        first = next(batches)
        if kind == "stabilised":
            treatments = stabilise_(model, first).treatments
            row |= {"before": sum(t.before for t in treatments), "after": sum(t.after for t in treatments)}
        findings = examine(model, first, _loss, lr=lr).findings
        warned = sorted({finding.name for finding in findings if finding.severity == "serious"} & UNSTABLE)
        losses = _train(model, batches, lr, steps)
        last = sum(losses[-LAST:]) / len(losses[-LAST:])
        row[kind] = {"warned": warned, "loss": last, "outcome": _outcome(last), "curve": losses[:: max(1, steps // 25)]}
    return row


def _outcome(loss: float) -> str:
    part = loss / math.log(LETTERS)
    return "trains" if part < TRAINS else "at chance" if not part < AT_CHANCE else "between"


def xavier_(model: nn.Module) -> nn.Module:
    """The model with matrices as Xavier draws them, biases zero and embeddings of variance 1, as the Transformer's were."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight.normal_()
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() == 2 and not isinstance(module, nn.Embedding):
                    nn.init.xavier_uniform_(parameter)
                elif "bias" in name:
                    parameter.zero_()
    return model


def _batches() -> Iterator[dict[str, Tensor]]:
    """Letters, from 1; a quarter of the sequences is padded to the right."""
    generator = torch.Generator().manual_seed(SEED)
    while True:
        letters = torch.randint(1, LETTERS + 1, (ROWS, LENGTH), generator=generator)
        letters[: ROWS // 4, 3 * LENGTH // 4 :] = PAD
        yield {"letters": letters}


def _loss(output: Tensor, batch: Any) -> Tensor:
    """Cross-entropy of every letter in reverse, padding left out."""
    letters: Tensor = batch["letters"]
    lengths = (letters != PAD).sum(1, keepdim=True)
    places = (lengths - 1 - torch.arange(letters.shape[1])).clamp(min=0)
    wanted = letters.gather(1, places).masked_fill(letters == PAD, PAD)
    return F.cross_entropy(output.flatten(0, 1), wanted.flatten(), ignore_index=PAD)


def _train(model: nn.Module, batches: Iterator[dict[str, Tensor]], lr: float, steps: int) -> list[float]:
    optimiser = torch.optim.Adam(model.train().parameters(), lr=lr)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / WARMUP))
    losses: list[float] = []
    for batch in console.track([next(batches) for _ in range(steps)], "training"):
        loss = _loss(model(**batch), batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        warmup.step()
        losses.append(loss.item())
    return losses


def _states(body: nn.Module, letters: Tensor, real: Tensor) -> Tensor:
    """The last states of a model of transformers."""
    output: Mapping[str, Tensor] = body(letters, attention_mask=real.long())
    return output["last_hidden_state"]
