"""Export of language models: average, fold ω away, write what Hugging Face loads, and see that it says the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bathy import console
from bathy.core.transformer import Transformer, TransformerConfig
from bathy.errors import BathyError, ConfigError, ModelError, require, unknown
from bathy.files import replacing_folder, write_text
from bathy.tasks import read_config
from bathy.tasks.language.codec import Codec
from bathy.tasks.language.data import open_stream
from bathy.tasks.language.export.classes import CLASSES
from bathy.tasks.language.export.compare import Comparison, compare
from bathy.tasks.language.models import load_with_codec
from bathy.tasks.models import fold_if_possible, home, load, save_model
from bathy.tasks.sums import write_sums

SEQUENCES = 16
"""Sequences that both engines read after writing."""
GUIDE = """\
# A language model, for {title}

Written by `bathy export`; learned shortcuts are folded away.

```{kind}
{code}```
"""
CAUSAL = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")
begin = tokenizer("{end}" + "…", add_special_tokens=False, return_tensors="pt", return_token_type_ids=False)
print(tokenizer.decode(model.generate(**begin, max_new_tokens=40)[0], skip_special_tokens=True))
"""
MASKED = """\
from transformers import AutoModelForMaskedLM, AutoTokenizer

model, tokenizer = AutoModelForMaskedLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")
text = tokenizer("… {mask} …", return_tensors="pt", return_token_type_ids=False)
print(tokenizer.decode(model(**text).logits.argmax(-1)[0]))
"""


NAMES = ["bathy", "huggingface", *CLASSES]
"""What --to takes: huggingface is whichever of the classes fits."""


def export(source: Path, to: str, out: Path, average: float = 1, which: str = "last") -> tuple[str, Comparison]:
    """Write the model of a run, checkpoint or model folder; returns the class it became, and how the two compare."""
    if to not in NAMES:
        raise ConfigError(unknown("export target of a language model", to, NAMES))
    if out.exists():
        raise ConfigError(f"{out} exists; choose a different folder with --out, or remove it")
    model, codec = load_with_codec(source, average, which)
    model = fold_if_possible(model)
    to = fitting(model.config) if to == "huggingface" else to
    if to != "bathy":
        CLASSES[to].check(model.config)
    rows = sample(source, model.config)
    with replacing_folder(out) as folder:
        theirs = _write(model, codec, to, folder)
        codec.save(folder)  # after Hugging Face's own tokenizer.json, which says the same in other bytes
        write_sums(folder)
        return to, compare(model, theirs, rows, codec.end)


def fitting(config: TransformerConfig) -> str:
    """The first class that holds the model; if none does, why each does not."""
    misfits = {name: peer.misfits(config) for name, peer in CLASSES.items()}
    if found := next((name for name, reasons in misfits.items() if not reasons), None):
        return found
    reasons = [f"{name} cannot hold {', '.join(reasons)}" for name, reasons in misfits.items()]
    raise ModelError(f"no Hugging Face class holds this model: {'; '.join(reasons)}; export --to bathy holds every model")


def _write(model: Transformer, codec: Codec, to: str, folder: Path) -> Any:
    """Write weights, config, tokenizer and a guide; the model as it is read back from there."""
    if to == "bathy":
        save_model(model, folder)
        write_text(folder / "README.md", GUIDE.format(title="bathy", kind="sh", code='bathy sample . --prompt "…"\n'))
        return _Native(load(folder))
    from bathy.tasks.huggingface import quiet

    transformers: Any = require("transformers", "export")
    end, mask = (codec.tokenizer.id_to_token(i) for i in (codec.end, codec.mask))
    with quiet(transformers):
        CLASSES[to].build(model, codec.end).save_pretrained(folder)
        specials = {"bos_token": end, "eos_token": end, "mask_token": mask}
        longest = model.config.longest
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=codec.tokenizer, model_max_length=longest, **specials)
        fast.save_pretrained(folder)
        code = (MASKED if to == "bert" else CAUSAL).format(end=end, mask=mask)
        write_text(folder / "README.md", GUIDE.format(title="Hugging Face Transformers", kind="python", code=code))
        return getattr(transformers, CLASSES[to].auto).from_pretrained(folder, local_files_only=True).eval()


def sample(source: Path, config: TransformerConfig) -> Tensor:
    """Windows of the run's validation text, if it is still there, else of random tokens."""
    length = min(config.context or config.max_length, config.longest)
    try:
        ids = open_stream(read_config(home(source) / "config.toml", needs="language").data, "valid").ids[: SEQUENCES * length]
        rows = torch.tensor(ids.astype("int64"))
        if len(rows) >= 2 * length:
            return rows[: len(rows) // length * length].view(-1, length)
    except BathyError as error:
        console.warn(f"the run's validation text cannot be used ({error}); random tokens are compared instead")
    return torch.randint(config.vocab, (SEQUENCES, length), generator=torch.Generator().manual_seed(0))


class _Native:
    """Our own model, asked as Hugging Face's are."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def __call__(self, input_ids: Tensor) -> Any:
        return _Output(self.model(input_ids))

    def generate(self, input_ids: Tensor, max_new_tokens: int, pad_token_id: int, **_: Any) -> Tensor:
        rows = input_ids
        for _step in range(max_new_tokens):
            rows = torch.cat([rows, self.model(rows)[:, -1].argmax(-1, keepdim=True)], 1)
        return rows


@dataclass(frozen=True)
class _Output:
    logits: Tensor
