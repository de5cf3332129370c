"""A deep BERT in Lightning: stabilised in the module's constructor, before the optimiser is made.

python examples/lightning_bert.py --layers 36 --steps 250
"""

import argparse

import lightning as L
import torch
from torch import Tensor
from zen import deep_bert, masked_lines

import bathy


class Lines(torch.utils.data.IterableDataset[dict[str, Tensor]]):
    """Batches of masked lines without end."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        generator = torch.Generator().manual_seed(1)
        while True:
            yield masked_lines(generator)


class MaskedLetters(L.LightningModule):
    """Hugging Face's BERT with its own loss."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.bert = deep_bert(layers)
        print(bathy.stabilise_(self.bert, next(iter(Lines()))))  # the one line
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """The loss of one batch."""
        loss = self.bert(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam over everything, ω included."""
        return torch.optim.Adam(self.parameters(), lr=4e-4)


def main() -> None:
    """Train, and fold ω away."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--steps", type=int, default=250)
    options = parser.parse_args()
    L.seed_everything(1, verbose=False)
    module = MaskedLetters(options.layers)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(max_steps=options.steps, accelerator="cpu", **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(Lines(), batch_size=None))
    print(f"loss {module.losses[0]:.2f} -> {sum(module.losses[-20:]) / len(module.losses[-20:]):.2f}")
    bathy.fold(module.bert)


if __name__ == "__main__":
    main()
