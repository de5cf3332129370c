"""A deep BERT in Hugging Face's Trainer; then ω is folded away and `save_pretrained` writes a plain BERT.

python examples/hf_trainer.py --layers 36 --steps 250 --out my_bert
"""

import argparse

import torch
from torch import Tensor
from transformers import BertForMaskedLM, Trainer, TrainingArguments
from zen import deep_bert, masked_lines

import bathy


class Lines(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Masked lines, drawn ahead."""

    def __init__(self, count: int) -> None:
        drawn = masked_lines(torch.Generator().manual_seed(1), rows=count)
        self.rows = [{key: value[i] for key, value in drawn.items()} for i in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.rows[index]


def main() -> None:
    """Stabilise, train, fold, save, load."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--out", default="my_bert")
    options = parser.parse_args()
    torch.manual_seed(1)
    model = deep_bert(options.layers)
    bathy.stabilise_(model, masked_lines(torch.Generator().manual_seed(1)))  # the one line

    settings = {"learning_rate": 4e-4, "warmup_steps": min(50, options.steps), "per_device_train_batch_size": 16}
    arguments = TrainingArguments(
        options.out,
        max_steps=options.steps,
        logging_steps=options.steps,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        **settings,
    )
    Trainer(model=model, args=arguments, train_dataset=Lines(16 * options.steps)).train()

    batch = masked_lines(torch.Generator().manual_seed(2))
    bathy.fold(model, batch).save_pretrained(options.out)
    plain = BertForMaskedLM.from_pretrained(options.out)
    error = (plain.eval()(**batch).logits - model.eval()(**batch).logits).abs().max().item()
    print(f"{options.out}: a plain BERT, largest difference of its logits {error:.1e}")


if __name__ == "__main__":
    main()
