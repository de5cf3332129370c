"""Does the decoder use the source? The source gap, and how different the encoder's tokens still are."""

from __future__ import annotations

import math

import torch

from bathy.clinic.exams.activations import Scales
from bathy.clinic.losses import logits_of, roll_source
from bathy.clinic.probe import Subject
from bathy.clinic.readings import Reading
from bathy.sites.batch import call


def source(subject: Subject) -> list[Reading]:
    """source_gap = NLL(source rolled by one within the batch) − NLL(true source); memory_variance, the token variance of
    the encoder's output; uniform_loss, ln of the number of classes, against which a loss has fallen.

    The gap and the memory are read where a model has a stack whose output another stack's cross-attention reads.
    """
    scales = subject.recorded(Scales)
    logits = logits_of(subject.output)
    result = (
        [] if logits is None or not logits.dim() else [subject.reading("source", "uniform_loss", math.log(logits.shape[-1]))]
    )
    readers = {site.stack for site in subject.sites if site.kind == "cross_attention"}
    rolled = roll_source(subject.batch) if readers else None
    if rolled is None:
        return result
    with torch.no_grad():
        other = subject.loss(call(subject.model, rolled), rolled)
    result.append(subject.reading("source", "source_gap", other - subject.true_loss()))
    for stack, sites in subject.stacks.items():
        if stack not in readers and (sites[-1], "output") in scales.seen:
            result.append(subject.reading("source", "memory_variance", scales.seen[sites[-1], "output"][1], stack=stack))
    return result
