"""Small models of the libraries people use, random weights, each with a batch; nothing is downloaded."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, FFN, LAYERS, VOCAB = 16, 2, 32, 3, 64
RANGE = math.sqrt(2 / (5 * WIDTH))
"""Deviation that gives Hugging Face's matrices the variance of Xavier's, so that branches weigh something at this width."""


@dataclass(frozen=True)
class Specimen:
    """A model to be tried: how to build it, what it is fed, and how many sites of which arrangement it has."""

    library: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    sites: int
    placement: str


def ids(rows: int = 3, length: int = 7) -> Tensor:
    return torch.randint(4, VOCAB, (rows, length), generator=torch.Generator().manual_seed(1))


def text() -> dict[str, Tensor]:
    """Token ids with padding and labels."""
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[0, 5:] = 0
    return {"input_ids": ids(), "attention_mask": mask, "labels": ids()}


def pictures() -> dict[str, Tensor]:
    return {
        "pixel_values": torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1)),
        "labels": torch.arange(3) % 2,
    }


def sequence() -> tuple[Tensor]:
    return (ids(),)


def vectors() -> Tensor:
    return torch.randn(3, 7, WIDTH, generator=torch.Generator().manual_seed(1))


def hugging(model: str, config: str, **changes: Any) -> Callable[[], nn.Module]:
    """A builder of a Hugging Face model from a small config."""
    settings = {"vocab_size": VOCAB, "pad_token_id": 0, "initializer_range": RANGE} | changes

    def build() -> nn.Module:
        import transformers

        torch.manual_seed(0)
        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return build


def pair(model: str, config: str) -> Callable[[], nn.Module]:
    """A builder of a Hugging Face encoder–decoder of BART's family."""
    sizes = {f"{stack}_{what}": n for stack in ("encoder", "decoder") for what, n in _BART.items()}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None}
    return hugging(model, config, d_model=WIDTH, init_std=RANGE, max_position_embeddings=32, **sizes, **ends)


_BART = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": FFN}


def stock_pair() -> nn.Module:
    torch.manual_seed(0)
    return nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, FFN, batch_first=True)


def stock_encoder() -> nn.Module:
    """As its documentation has it, but with layers that do not start alike."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, FFN, batch_first=True), LAYERS)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    return model


def x_transformers(pre_norm: bool) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with warnings.catch_warnings(action="ignore"):  # its dependencies use what torch deprecates
            from x_transformers import Decoder, Encoder, TransformerWrapper
        torch.manual_seed(0)
        layers = (Decoder if pre_norm else Encoder)(dim=WIDTH, depth=LAYERS, heads=HEADS, pre_norm=pre_norm)
        return TransformerWrapper(num_tokens=VOCAB, max_seq_len=16, attn_layers=layers)

    return build


class RMS(nn.Module):
    """A norm under a name that does not say so, in plain Python."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (WIDTH,), self.g)


class OddStyle(nn.Module):
    """Hand-written: raw matrices, a fused q·k·v, tuples, in-place sums, one dropout for all, and everything in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(VOCAB, WIDTH), nn.Dropout(0.1)
        self.qkv = nn.ParameterList(torch.randn(WIDTH, 3 * WIDTH) / 4 for _ in range(LAYERS))
        self.out = nn.ModuleDict({str(i): nn.Linear(WIDTH, WIDTH) for i in range(LAYERS)})
        self.ffn = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, FFN), nn.GELU(), nn.Linear(FFN, WIDTH)) for _ in range(LAYERS))
        self.norms: Any = nn.ModuleList(nn.ModuleList([nn.LayerNorm(WIDTH), RMS()]) for _ in range(LAYERS))

    def attend(self, x: Tensor, i: int) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = torch.matmul(x, self.qkv[i]).split(WIDTH, dim=-1)
        weights = torch.softmax(q @ k.transpose(1, 2) / WIDTH**0.5, dim=-1)
        return self.out[str(i)](torch.bmm(weights, v)), {"weights": weights}

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        x = self.embed(tokens)
        for i in range(LAYERS):
            a, _ = self.attend(x, i)
            a = self.drop(a)
            a += x
            x = self.norms[i][0](a)
            x = self.norms[i][1](torch.add(self.drop(self.ffn[i](x)), x))
        return {"features": x}


def odd_style() -> nn.Module:
    torch.manual_seed(0)
    return OddStyle()


T5 = {"d_model": WIDTH, "d_kv": 8, "d_ff": FFN, "num_layers": LAYERS, "num_heads": HEADS, "decoder_start_token_id": 0}
GPT2 = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 32}
SIZE = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": FFN}
SMALL = SIZE | {"max_position_embeddings": 40}
VIT = SIZE | {"image_size": 16, "patch_size": 4}
HF = "transformers"

ZOO: dict[str, Specimen] = {
    "nn.Transformer": Specimen("torch", stock_pair, lambda: (vectors(), vectors().flip(0)), 5 * LAYERS, "post"),
    "nn.TransformerEncoder": Specimen("torch", stock_encoder, vectors, 2 * LAYERS, "post"),
    "BERT": Specimen(HF, hugging("BertForMaskedLM", "BertConfig", **SMALL), text, 2 * LAYERS, "post"),
    "RoBERTa": Specimen(HF, hugging("RobertaForMaskedLM", "RobertaConfig", **SMALL), text, 2 * LAYERS, "post"),
    "BART": Specimen(HF, pair("BartForConditionalGeneration", "BartConfig"), text, 5 * LAYERS, "post"),
    "Marian": Specimen(HF, pair("MarianMTModel", "MarianConfig"), text, 5 * LAYERS, "post"),
    "GPT-2": Specimen(HF, hugging("GPT2LMHeadModel", "GPT2Config", **GPT2), text, 2 * LAYERS, "pre"),
    "T5": Specimen(HF, hugging("T5ForConditionalGeneration", "T5Config", **T5), text, 5 * LAYERS, "pre"),
    "ViT": Specimen(HF, hugging("ViTForImageClassification", "ViTConfig", **VIT), pictures, 2 * LAYERS, "pre"),
    "Llama": Specimen(HF, hugging("LlamaForCausalLM", "LlamaConfig", **SMALL), text, 2 * LAYERS, "pre"),
    "x-transformers, post-norm": Specimen("x-transformers", x_transformers(False), sequence, 2 * LAYERS, "post"),
    "x-transformers": Specimen("x-transformers", x_transformers(True), sequence, 2 * LAYERS, "pre"),
    "hand-written, odd style": Specimen("", odd_style, sequence, 2 * LAYERS, "post"),
}
