"""Whether the clinic's findings are right: known conditions and healthy models against what is diagnosed.

Healthy models go over widths 32 to 256, depths 2 to 48, three architectures and three seeds; each condition is made in several
models. A row of the confusion matrix is a condition, a column the worst finding of its diagnosis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import bathy
from bathy import console
from bathy.clinic.diagnosis import diagnose
from bathy.clinic.examination import examine
from bathy.clinic.readings import Reading
from bathy.core.residual import residuals
from bathy.lab.bench.copying import Trial, inputs, objective, sentences, train

Case = tuple[str, Trial, Callable[[Trial], list[Reading]]]
"""(condition, model, how it is examined)."""
EXAMS = ("activations", "gradients", "random_change", "source")
SEEDS = (0, 1, 2)


def run(data: Path | None, quick: bool) -> dict[str, Any]:
    """Diagnose every case and print the confusion matrix."""
    cases = list(healthy(quick)) + list(conditions(quick))
    found: Counter[tuple[str, str]] = Counter()
    wrong = []
    for condition, trial, look in console.track(cases, "diagnosing"):
        findings = diagnose(look(trial))
        worst = findings[0].name
        found[condition, worst] += 1
        if worst != condition:
            wrong.append((condition, trial.name, trial.width, trial.seed, str(findings[0])))
    names = list(dict.fromkeys([condition for condition, _, _ in cases] + [worst for _, worst in found]))
    rows = [(name, *(found[name, other] for other in names)) for name in names if any(key[0] == name for key in found)]
    console.out.print(console.table("condition (row) and worst finding (column)", ["", *names], rows))
    for line in wrong:
        console.out.print("not as made:", *line)
    return {"matrix": {f"{a} -> {b}": n for (a, b), n in found.items()}, "wrong": wrong, "cases": len(cases)}


def healthy(quick: bool) -> Iterator[Case]:
    """Models that train: shallow Post-LN, and Pre-LN and Admin at every depth, at the start and, some, trained."""
    table = [("pre_ln", 32, 2), ("pre_ln", 64, 12), ("pre_ln", 32, 48), ("pre_ln", 256, 4), ("admin", 64, 6), ("admin", 32, 24)]
    table += [("admin", 32, 48), ("admin", 256, 4), ("post_ln", 32, 2), ("post_ln", 128, 4)]
    for scheme, width, depth in table[:2] if quick else table:
        for seed, layers in zip(SEEDS, ((depth // 2, depth // 2), (depth, 0), (0, depth)), strict=True):
            yield "healthy", Trial(scheme, scheme, layers, width=width, seed=seed), at_start
    for scheme, layers in (("pre_ln", (4, 4)), ("admin", (6, 6)), ("post_ln", (2, 2)), ("admin", (0, 8)))[: 1 if quick else 4]:
        yield "healthy", Trial(scheme, scheme, layers), after_training


def conditions(quick: bool) -> Iterator[Case]:
    """Every condition, made in several models."""
    deep = [Trial("post_ln", "post_ln", layers, width=width) for layers in ((12, 12), (24, 0), (0, 24)) for width in (32, 64)]
    post = [Trial("post_ln", "post_ln", (4, 4), width=width) for width in (32, 64)]
    pre = [Trial("pre_ln", "pre_ln", layers, width=32) for layers in ((3, 3), (6, 0))]
    hot = [
        Trial("admin", "admin", (8, 8), lr=1e-2),
        Trial("pre_ln", "pre_ln", (6, 6), lr=3e-2),
        Trial("admin", "admin", (0, 12), lr=2e-2),
    ]
    dead = [Trial("post_ln", "pre_ln", (12, 2), lr=lr, warmup=5) for lr in (3e-3, 1e-2)]
    makers: list[tuple[str, list[Trial], Callable[[Trial], list[Reading]]]] = [
        ("amplification", deep, at_start),
        ("vanishing", post, with_loud_cross_attention),
        ("dead_encoder", dead, after_collapse),
        ("overflow", pre, with_overflow),
        ("underflow", pre, with_underflow),
        ("learning_rate", hot, after_hot_updates),
        ("silent", pre, with_silent_layers),
    ]
    for name, trials, look in makers:
        for trial in trials[:1] if quick else trials:
            for seed in SEEDS[:1] if quick or name in ("dead_encoder", "learning_rate") else SEEDS:
                yield name, replace(trial, seed=seed), look


def look(model: bathy.Transformer, trial: Trial, **settings: Any) -> list[Reading]:
    """The exams that the rules read."""
    batch = next(sentences(trial.seed + 100))
    return examine(model, inputs(model, batch), objective(batch[2]), exams=EXAMS, name=trial.name, **settings).readings


def at_start(trial: Trial) -> list[Reading]:
    """The model as it is made."""
    return look(trial.model(), trial)


def with_loud_cross_attention(trial: Trial) -> list[Reading]:
    """Output matrices of cross-attention three times as large."""
    model = trial.model()
    for _, residual in residuals(model):
        if residual.f.kind == "cross_attention":
            residual.f.scale_(out=3.0)
    return look(model, trial)


def with_silent_layers(trial: Trial) -> list[Reading]:
    """Branches of the later half scaled to almost nothing."""
    model = trial.model()
    for _, residual in residuals(model):
        if residual.place.layer > residual.place.layers / 2:
            residual.f.scale_(out=1e-3, fc2=1e-3)
    return look(model, trial)


def with_overflow(trial: Trial) -> list[Reading]:
    """float16, and one feed-forward whose output outgrows it."""
    model = trial.model()
    [residual for _, residual in residuals(model) if residual.f.kind == "ffn"][2].f.scale_(fc1=300.0, fc2=300.0)
    with torch.autocast("cpu", torch.float16):
        return look(model, trial)


def with_underflow(trial: Trial) -> list[Reading]:
    """float16, and a loss scale so small that gradients vanish in it."""
    with torch.autocast("cpu", torch.float16):
        return look(trial.model(), trial, loss_scale=2.0**-14)


def after_training(trial: Trial) -> list[Reading]:
    """A run as it should be, as the monitor saw it and as it is after it."""
    _, model, monitor = train(trial, 100)
    return monitor.readings + look(model, trial, step=100)


def after_hot_updates(trial: Trial) -> list[Reading]:
    """Sixty updates at a learning rate that is too high, as the monitor saw them."""
    return train(trial, 60)[2].readings


def after_collapse(trial: Trial) -> list[Reading]:
    """A run whose encoder collapses while its decoder learns the target."""
    return look(train(trial, 150, monitor=False)[1], trial, step=150)
