"""Every library of the table: sites found, stabilised, trained, folded, saved and loaded by its own functions, examined."""

import copy
import json
import math
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO, Specimen

import bathy
from bathy.admin.fold import outputs
from bathy.files import write_text
from bathy.sites.batch import Batch, call

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
RESULTS = PAGE.parent / "results" / "zoo.json"
ZOO_COLUMNS = ["model or option", "library", "sites", "norm", "remedy", "Σβ²", "folded", "verdict"]
COLUMNS = ["model", "library", "sites", "norm", "stabilised by", "trained", "folded", "saved, loaded", "examined"]


def loss_of(output: Any) -> Tensor:
    """The output's own loss, else how far its first tensor is from 1."""
    if getattr(output, "loss", None) is not None:
        return output.loss
    first = next(iter(output.values())) if isinstance(output, dict) else output
    return (first - 1).square().mean()


def train(model: nn.Module, batch: Batch, steps: int = 6) -> list[float]:
    optimizer = torch.optim.Adam(model.train().parameters(), 3e-3)
    losses = []
    for _ in range(steps):
        loss = loss_of(call(model, batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def saved_and_loaded(model: Any, build: Any) -> nn.Module:
    """The model after a round through its library's own functions for that."""
    with TemporaryDirectory() as folder:
        if hasattr(model, "save_pretrained"):
            model.save_pretrained(folder)
            return type(model).from_pretrained(folder)
        torch.save(model.state_dict(), Path(folder, "model.pt"))
        fresh = build()
        fresh.load_state_dict(torch.load(Path(folder, "model.pt"), weights_only=True))
        return fresh


def difference(a: nn.Module, b: nn.Module, batch: Batch) -> float:
    """The largest difference of the two models' outputs, dropout off."""
    with torch.no_grad():
        pairs = zip(outputs(a.eval(), batch), outputs(b.eval(), batch), strict=True)
        return max(float((x - y).abs().max()) for x, y in pairs)


@cache
def tried(name: str) -> dict[str, Any]:
    """What happened to one model, by column."""
    specimen: Specimen = ZOO[name]
    model, batch = specimen.build(), specimen.batch()
    keys = list(model.state_dict())
    sites = bathy.find_sites(model, batch)
    scheme = "admin" if specimen.placement == "post" else "scaled_init"
    bathy.stabilise_(model, batch, scheme)
    examination = bathy.examine(model, batch)
    losses = train(model, batch)
    folded = bathy.fold(copy.deepcopy(model))
    loaded = saved_and_loaded(folded, specimen.build)
    return {
        "sites": len(sites),
        "positions": {site.placement for site in sites},
        "scheme": scheme,
        "losses": losses,
        "keys": list(folded.state_dict()) == keys,
        "fold": difference(model, folded, batch),
        "load": difference(folded, loaded, batch),
        "examined": {reading.site for reading in examination.readings if reading.site} >= {site.name for site in sites}
        and all(math.isfinite(reading.value) for reading in examination.readings),
    }


@pytest.mark.parametrize("name", ZOO)
def test_the_model_can_be_stabilised_trained_folded_saved_and_loaded(name: str) -> None:
    specimen, result = ZOO[name], tried(name)
    assert (result["sites"], result["positions"]) == (specimen.sites, {specimen.placement})
    assert math.isfinite(sum(result["losses"]))
    assert trained(result)
    assert result["keys"]
    assert result["fold"] < 1e-4
    assert result["load"] < 1e-6
    assert result["examined"]


def trained(result: dict[str, Any]) -> bool:
    return min(result["losses"][2:]) < result["losses"][0]


def cells(name: str, specimen: Specimen) -> list[str]:
    """One row of the table."""
    result = tried(name)
    library = f"{specimen.library} {version(specimen.library).partition('+')[0]}" if specimen.library else "none"
    folded = "no" if result["fold"] >= 1e-4 else "nothing to fold" if specimen.placement == "pre" else "error < 1e-4"
    yes = ["yes" if good else "no" for good in (trained(result), result["load"] < 1e-6, result["examined"])]
    return [name, library, str(result["sites"]), specimen.placement, result["scheme"], yes[0], folded, *yes[1:]]


def zoo_rows() -> list[list[str]]:
    """One row for each specimen that `make zoo` tried."""
    rows = [row for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if row["verdict"] != "excluded"]
    return [
        [
            row["name"],
            row["library"],
            str(row["sites"] or ""),
            row["placement"],
            row["remedy"] if row["verdict"] == "right" else "",
            f"{row['before']:.2g} → {row['after']:.2g}" if row["before"] and row["verdict"] == "right" else "",
            "error < 1e-4" if row["fold"][:1].isdigit() else quoted(row["fold"].partition(";")[0][:120]) if row["fold"] else "",
            row["verdict"] + (f": {quoted(row['reason'][:200])}" if row["reason"] else ""),
        ]
        for row in rows
    ]


def excluded_rows() -> list[list[str]]:
    rows = [row for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if row["verdict"] == "excluded"]
    return [[row["name"], row["library"], quoted(row["reason"][:140])] for row in rows]


def quoted(text: str) -> str:
    """What a program said, as code: its spelling is its own."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"


def as_table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", "/").replace("\n", " ") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def pages() -> tuple[str, str]:
    """The page as it is, and with the tables that this code and the zoo's results give."""
    tables = {
        "table": as_table(COLUMNS, [cells(name, specimen) for name, specimen in ZOO.items()]),
        "zoo": as_table(ZOO_COLUMNS, zoo_rows()),
        "excluded": as_table(["class", "library", "why it was not tried"], excluded_rows()),
    }
    page = written = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        head, begin, rest = written.partition(f"<!-- {name}: written by tests/sites/test_compatibility.py -->\n")
        written = f"{head}{begin}{table}\n{rest[rest.index(f'<!-- end of {name} -->') :]}"
    return page, written


def test_the_tables_in_the_docs_are_what_this_code_and_the_zoo_give() -> None:
    page, expected = pages()
    assert page == expected, f"{PAGE.name} is out of date; write it with: python tests/sites/test_compatibility.py"


def test_a_monitor_follows_a_model_of_another_library() -> None:
    specimen = ZOO["BERT"]
    model, batch = specimen.build(), specimen.batch()
    bathy.stabilise_(model, batch)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with bathy.Monitor(model, optimizer=optimizer, every=2, batch=batch) as monitor:
        for _ in range(4):
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step(loss)
    assert {reading.site for reading in monitor.readings if reading.site} >= {
        site.name for site in bathy.find_sites(model, batch)
    }
    assert {reading.step for reading in monitor.readings} == {1, 2, 4}


def test_without_a_loss_of_its_own_a_model_is_examined_through_a_projection_and_it_is_said() -> None:
    for name, said in (("BERT", "the output's own"), ("nn.TransformerEncoder", "a seeded random projection")):
        examination = bathy.examine(ZOO[name].build(), ZOO[name].batch(), exams=["gradients"])
        assert examination.origin["loss"].startswith(said)
        assert [reading for reading in examination.readings if reading.quantity != "seconds"]


def test_a_padded_batch_is_examined_in_the_models_own_shape() -> None:
    """In evaluation nn.TransformerEncoder would pack it into a nested tensor."""
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[0, 5:] = True
    batch = {"src": ZOO["nn.TransformerEncoder"].batch(), "src_key_padding_mask": padding}
    examination = bathy.examine(ZOO["nn.TransformerEncoder"].build(), batch)
    assert all(math.isfinite(reading.value) for reading in examination.readings)


def test_gradient_checkpointing_of_hugging_face_gives_the_same_gradients() -> None:
    model: Any = ZOO["BERT"].build()
    batch = ZOO["BERT"].batch()
    bathy.stabilise_(model, batch)
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(1)
        model.train()(**batch).loss.backward()
        gradients.append({name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None})
    assert any("bathy_omega" in name for name in gradients[0])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-7)


def test_hugging_faces_default_range_is_no_problem_of_depth() -> None:
    """At width 128 and 48 layers: branch variances of 0.002 and Σβ² of 0.2, so that ω stays near 1."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 48, "num_attention_heads": 2, "vocab_size": 99}
    model = BertModel(BertConfig(**sizes), add_pooling_layer=False)
    result = bathy.stabilise_(model, {"input_ids": torch.randint(4, 99, (4, 16))})
    assert 0.1 < result.change("encoder") < 0.3
    assert "depth is not its problem and little changes" in result.notes[0]
    assert max(result.omega.values()) < 1.2


def test_a_stabilised_model_generates_what_its_folded_form_generates() -> None:
    """Step by step with a cache, where cross-attention's keys and values are computed once."""
    model, batch = ZOO["BART"].build(), ZOO["BART"].batch()
    bathy.stabilise_(model, batch, "admin_constant")
    both: tuple[Any, Any] = (model, bathy.fold(model))
    tokens = [part.eval().generate(batch["input_ids"], max_new_tokens=6, num_beams=2) for part in both]
    assert torch.equal(*tokens)


class Steps(nn.Module):
    """Drops between layers, and reads the stream before it drops."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: Any = ZOO["nn.TransformerEncoder"].build().layers

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(())
        for layer in self.layers:
            x = layer(x)
            total = total + x.max()
            x = nn.functional.dropout(x, 0.1, self.training)
        return x + total


def test_a_reader_of_the_stream_before_dropout_is_seen() -> None:
    sites = bathy.find_sites(Steps(), ZOO["nn.TransformerEncoder"].batch())
    assert ["also read by max" in site.stuck for site in sites] == [False, False, True, False, True, False]


if __name__ == "__main__":
    write_text(PAGE, pages()[1])
