"""Does the decoder use the source? The source gap, and how different the encoder's tokens still are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bathy.clinic.measures import real, token_variance
from bathy.clinic.probe import Subject, roll_source, watching
from bathy.clinic.readings import Reading
from bathy.sites.batch import call
from bathy.sites.site import Moment, Site


def source(subject: Subject) -> list[Reading]:
    """source_gap = NLL(source rolled by one within the batch) − NLL(true source); memory_variance, the token variance of
    the encoder's output; uniform_loss, ln of the number of classes, against which a loss has fallen.

    The gap and the memory are read where a model has a stack whose output another stack's encoder-attention reads.
    """
    memory: dict[str, Tensor] = {}
    rows = subject.rows

    def watch(site: Site, moment: Moment, x: Tensor) -> None:
        memory[site.stack] = token_variance(real(x, rows[site.stack]))

    with watching(subject.sites, watch, "output"), torch.no_grad():
        output = subject.forward()
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    result = []
    if isinstance(logits, Tensor):
        result.append(subject.reading("source", "uniform_loss", math.log(logits.shape[-1])))
    readers = {site.stack for site in subject.sites if site.kind == "encoder_attention"}
    rolled = roll_source(subject.batch) if readers else None
    if rolled is None:
        return result
    with torch.no_grad():
        true, other = subject.loss(output, subject.batch), subject.loss(call(subject.model, rolled), rolled)
    result.append(subject.reading("source", "source_gap", other - true))
    result += [
        subject.reading("source", "memory_variance", value, stack=stack)
        for stack, value in memory.items()
        if stack not in readers
    ]
    return result
