"""Folding: the same function as plain Post-LN, without ω.

For i ≥ 2 the norm that gives x_{i-1} takes γ·ω_i and ν·ω_i, and every matrix of branch i that reads the stream takes W/ω_i
along its input: self-attention's q, k, v; encoder-attention's q alone, because its k and v read the encoder's output; fc1.
A scalar ω_1 divides branch 1's output matrix and bias, because a norm does not see its input's scale; a learned ω_1 goes
into the embeddings and positions, which unties them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import groupby, pairwise

import torch
from torch import Tensor, nn

from bathy.errors import ModelError, SchemeError
from bathy.schemes import SCHEMES
from bathy.sites.site import Site, declared_sites
from bathy.transformer import Transformer, TransformerConfig

SMALLEST = 1e-5
"""An ω nearer to 0 than this is not divided by."""


def fold(model: Transformer) -> Transformer:
    """A plain post_ln model that computes what `model` computes; `model` stays as it is. A pre_ln stack beside it is kept."""
    _check(model.config)
    copy = deepcopy(model)
    first = fold_sites_([site for site in declared_sites(copy) if SCHEMES[site.scheme].folds])
    result = Transformer(_folded_config(model.config, untied=bool(first))).to(copy.output_weight)
    weights = copy.state_dict() | (_embeddings(model, first) if first else {})
    result.load_state_dict({name: weights[name] for name in result.state_dict()})
    return result.train(model.training)


def fold_sites_(sites: Sequence[Site]) -> dict[str, Tensor]:
    """Fold ω into norms and matrices in place and take it off; returns the learned ω_1 that each stack's input still needs."""
    first: dict[str, Tensor] = {}
    for stack, group in groupby(sites, key=lambda site: site.stack):
        chain = list(group)
        omegas = [_divisible(site) for site in chain]
        with torch.no_grad():
            if isinstance(omegas[0], Tensor):
                first[stack] = omegas[0]
                _divide_inputs(chain[0], omegas[0])
            else:
                _divide_output(chain[0], omegas[0])
            for (before, site), omega in zip(pairwise(chain), omegas[1:], strict=True):
                before.post.scale_(omega)  # type: ignore[union-attr, operator]
                _divide_inputs(site, omega)
        for site in chain:
            site.detach_()
    return first


def _check(config: TransformerConfig) -> None:
    """Refuse, by name, schemes that are no Post-LN in disguise."""
    names = [config.scheme_name(stack) for stack in config.stacks]
    for name in names:
        if not SCHEMES[name].folds and not (name == "pre_ln" and len(set(names)) > 1):
            folding = ", ".join(known for known, scheme in SCHEMES.items() if scheme.folds)
            raise SchemeError(f"{name} cannot be folded into plain post_ln; what folds: {folding}")


def _divisible(site: Site) -> Tensor | float:
    """The site's ω, if it can be divided by."""
    omega = site.omega
    smallest = abs(omega) if isinstance(omega, float) else float(omega.detach().abs().min())
    if not smallest >= SMALLEST:
        raise ModelError(f"{site.name} has an ω entry of size {smallest:g}, too close to 0 to divide by; keep ω or train on")
    return omega.detach().clone() if isinstance(omega, nn.Parameter) else omega


def _divide_inputs(site: Site, omega: Tensor | float) -> None:
    for matrix in site.matrices:
        if matrix.reads:
            matrix.weight.div_(omega)


def _divide_output(site: Site, omega: float) -> None:
    for matrix in site.matrices:
        if matrix.role in ("out", "fc2"):
            matrix.weight.div_(omega)
            if matrix.bias is not None:
                matrix.bias.div_(omega)


def _folded_config(config: TransformerConfig, untied: bool) -> TransformerConfig:
    """The config of the plain model."""
    schemes = {f"{stack}_scheme": "post_ln" for stack in config.stacks if config.scheme(stack).folds}
    storage = {"tie_embeddings": False, "stored_positions": True} if untied else {}
    return config.model_copy(update=schemes | storage | {"learn_first_omega": False})


def _embeddings(model: Transformer, first: dict[str, Tensor]) -> dict[str, Tensor]:
    """Untied embeddings and position tables with each stack's ω_1 in them."""
    weights = {"embeddings.output.weight": model.output_weight.detach()}
    for stack in model.config.stacks:
        omega = first.get(stack, torch.ones_like(model.output_weight[0]))
        embedding = model.embeddings["shared" if model.config.tie_embeddings else stack]
        weights[f"embeddings.{stack}.weight"] = embedding.weight.detach() * omega  # type: ignore[operator]
        weights[f"{stack}_positions"] = getattr(model, f"{stack}_positions") * omega
    return weights
