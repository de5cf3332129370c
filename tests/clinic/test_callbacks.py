"""The callbacks leave training as it was and give the monitor's readings."""

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from bathy.clinic import callbacks
from bathy.clinic.readings import read, select

SOURCE = torch.randint(4, 50, (24, 7), generator=torch.Generator().manual_seed(1))


def lightning_losses(*extra: Any) -> list[float]:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny.model("post_ln", dropout=0.1)
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = F.cross_entropy(self.model(batch[0], batch[0]).flatten(0, 1), batch[0].flatten())
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-2)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        module = Module()
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, accumulate_grad_batches=2, callbacks=list(extra),
        )  # fmt: skip
        trainer.fit(module, DataLoader(TensorDataset(SOURCE), batch_size=4))
    return module.losses


def test_lightning_trains_the_same_with_the_callback(tmp_path: Path) -> None:
    callback = callbacks.lightning(tmp_path / "readings.jsonl", every=2)
    assert lightning_losses() == lightning_losses(callback)
    rows, _ = read(tmp_path / "readings.jsonl")
    assert [row.step for row in select(rows, "loss")] == [1, 2] and select(rows, "weight_update")


def trainer_weights(folder: Path, *extra: Any) -> list[torch.Tensor]:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny.model("post_ln", dropout=0.1)

        def forward(self, source: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.model(source, labels)
            return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model = Wrapped()
        arguments = transformers.TrainingArguments(
            output_dir=str(folder), max_steps=5, per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=3,
        )  # fmt: skip
        data = [{"source": row, "labels": row} for row in SOURCE]
        transformers.Trainer(model, arguments, train_dataset=data, callbacks=list(extra)).train()
    return list(model.parameters())


def test_the_hugging_face_trainer_trains_the_same_with_the_callback(tmp_path: Path) -> None:
    callback = callbacks.trainer(tmp_path / "readings.jsonl", every=2)
    plain, watched = trainer_weights(tmp_path), trainer_weights(tmp_path, callback)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    rows, _ = read(tmp_path / "readings.jsonl")
    assert sorted({row.step for row in rows}) == [1, 2, 4] and select(rows, "weight_gradient")


def accelerated_weights(out: Path | None, wrap: bool) -> tuple[list[torch.Tensor], Any]:
    """Six batches in three updates of a small BERT, with peft's LoRA or whole."""
    accelerate, transformers = pytest.importorskip("accelerate"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 60}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    if wrap:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["query", "value"], lora_dropout=0.1))
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    made = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    model, optimizer, batches = accelerator.prepare(model, made, DataLoader(TensorDataset(SOURCE), batch_size=4))
    first = {"input_ids": SOURCE[:4]}
    monitor = callbacks.accelerate(accelerator, model, optimizer, out, every=1, batch=first) if out else None
    with monitor or nullcontext():
        for (batch,) in batches:
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if monitor:
                monitor.step(loss)
    return [p.detach().clone() for p in model.parameters()], monitor


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrap", [False, True], ids=["whole", "peft"])
def test_a_loop_of_accelerate_trains_the_same_with_the_monitor(tmp_path: Path, wrap: bool) -> None:
    plain, _ = accelerated_weights(None, wrap)
    watched, monitor = accelerated_weights(tmp_path / "readings.jsonl", wrap)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    rows, _ = read(tmp_path / "readings.jsonl")
    assert monitor.done == 3 and [row.step for row in select(rows, "loss")] == [1, 2, 3]
    assert len({row.site for row in select(rows, "branch_share")}) == 4
