"""A deep Hugging Face BERT that stays stuck, and the one line that trains it.

    python examples/bert.py --figure docs/figures/bert.svg

trains masked-letter models of 36 layers on the text of `import this`, three seeds each: as they are and after
`bathy.stabilise_`, with initializer_range √(2/(5·width)) and with Hugging Face's default of 0.02, where nothing needs doing.
"""

import argparse

import torch
from zen import deep_bert, masked_lines

import bathy

RANGES = {"initializer_range = √(2/(5·width))": None, "initializer_range = 0.02, the default": 0.02}


def train(layers: int, steps: int, lr: float, seed: int, stabilise: bool, initializer_range: float | None) -> list[float]:
    """Losses of a model trained with Adam, 50 updates of warm-up and then a constant learning rate."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = deep_bert(layers, initializer_range=initializer_range)
    if stabilise:
        profile = bathy.stabilise_(model, masked_lines(generator))  # the one line
        print(f"seed {seed}: ω up to {max(profile.omega.values()):.2f}", *profile.notes, sep="\n  ")
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    losses = []
    for _ in range(steps):
        loss = model(**masked_lines(generator)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        losses.append(loss.item())
    return losses


def draw(rows: list[dict[str, object]], path: str) -> None:
    """The loss curves, one line per seed."""
    import altair

    lines = altair.Chart(altair.InlineData(values=rows), width=330, height=240).mark_line(strokeWidth=1.5)
    colour = altair.Color(
        "model:N", title=None, scale=altair.Scale(domain=["plain", "stabilised"], range=["#d1495b", "#00798c"])
    )
    loss = altair.Y("loss:Q", title="masked-letter loss (mean of 20 updates)", scale=altair.Scale(zero=False))
    column = altair.Column("range:N", title=None, sort=list(RANGES))
    lines.encode(x=altair.X("step:Q", title="update"), y=loss, color=colour, detail="seed:N", column=column).save(path)


def main() -> None:
    """Train all, print the last losses, draw the curves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--figure", default="")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for name, initializer_range in RANGES.items():
        for model in ("plain", "stabilised"):
            for seed in range(1, options.seeds + 1):
                losses = train(options.layers, options.steps, options.lr, seed, model == "stabilised", initializer_range)
                print(f"{name}, {model}, seed {seed}: loss {losses[0]:.2f} -> {sum(losses[-20:]) / 20:.2f}", flush=True)
                rows += [
                    {"range": name, "model": model, "seed": seed, "step": end, "loss": sum(losses[end - 20 : end]) / 20}
                    for end in range(20, options.steps + 1, 10)
                ]
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
