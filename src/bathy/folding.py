"""Folding: the same function as plain Post-LN, without ω.

For i ≥ 2 the norm that gives x_{i-1} takes γ·ω_i and ν·ω_i, and every matrix of branch i that reads the stream takes W/ω_i
along its input: self-attention's q, k, v; encoder-attention's q alone, because its k and v read the encoder's output; fc1.
A scalar ω_1 divides branch 1's output matrix and bias, because a norm does not see its input's scale; a learned ω_1 goes
into the embeddings and positions, which unties them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from bathy.errors import ModelError, SchemeError
from bathy.schemes import SCHEMES
from bathy.sites.batch import Batch, call, map_tensors, undisturbed
from bathy.sites.hooks import hooked_sites
from bathy.sites.site import Site, declared_sites
from bathy.transformer import Transformer, TransformerConfig

Model = TypeVar("Model", bound=nn.Module)

SMALLEST = 1e-5
"""An ω nearer to 0 than this is not divided by."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Largest change of the output, relative to its largest value, that rounding may cause; 0.1 in half precision."""


def fold(model: Model, batch: Batch | None = None) -> Model:
    """A model of the plain architecture that computes what `model` computes; `model` stays as it is.

    Ours becomes post_ln, with a pre_ln stack beside it kept. Another model loses the ω that `stabilise_` hooked in and has
    its own keys again; its outputs for `batch`, or the batch it was stabilised with, are compared before and after.
    """
    if isinstance(model, Transformer) and not hooked_sites(model):
        return _fold_own(model)  # type: ignore[return-value]
    copy = deepcopy(model)
    sites = hooked_sites(copy)
    if sites:
        fold_sites_(sites)
        verify(model, copy, sites.batch if batch is None else batch)
    return copy


def _fold_own(model: Transformer) -> Transformer:
    _check(model.config)
    copy = deepcopy(model)
    first = fold_sites_([site for site in declared_sites(copy) if SCHEMES[site.scheme].folds])
    result = Transformer(_folded_config(model.config, untied=bool(first))).to(copy.output_weight)
    weights = copy.state_dict() | (_embeddings(model, first) if first else {})
    result.load_state_dict({name: weights[name] for name in result.state_dict()})
    return result.train(model.training)


def fold_sites_(sites: Sequence[Site]) -> dict[str, Tensor]:
    """Fold ω into norms and matrices in place and take it off; returns the learned ω_1 that each stack's input still needs.

    What cannot be folded is an error before anything is changed.
    """
    first: dict[str, Tensor] = {}
    chains: dict[str, list[Site]] = {}
    for site in sites:
        chains.setdefault(site.stack, []).append(site)
    omegas = {site.name: _divisible(site) for site in sites}
    pairs = [(before, site) for chain in chains.values() for before, site in pairwise(chain) if not _is_one(omegas[site.name])]
    norms = [_scaler(before) for before, _ in pairs]
    with torch.no_grad():
        for stack, chain in chains.items():
            start = omegas[chain[0].name]
            if isinstance(start, Tensor):
                first[stack] = start
                _divide_inputs(chain[0], start)
            elif start != 1:
                _divide_output(chain[0], start)
        for (_, site), scale_ in zip(pairs, norms, strict=True):
            scale_(omegas[site.name])
            _divide_inputs(site, omegas[site.name])
    for site in sites:
        site.detach_()
    return first


def check_foldable(chain: Sequence[Site]) -> None:
    """Refuse, before there is an ω, a stack from which it could not be folded away."""
    for before, site in pairwise(chain):
        if site.free:
            if site.stuck:
                raise ModelError(f"an ω of {site.name} could not be folded away: {site.stuck}; use scheme='admin'")
            _scaler(before)


def verify(model: nn.Module, folded: nn.Module, batch: Batch) -> None:
    """Refuse, by ModelError, a folded model whose outputs for the batch are not those of the model, dropout off."""
    with undisturbed(model), undisturbed(folded), torch.no_grad():
        pairs = zip(*(outputs(part.eval(), batch) for part in (model, folded)), strict=True)
        error = max(float((a - b).abs().max() / a.abs().max().clamp(min=1)) for a, b in pairs)
    dtype = next(model.parameters()).dtype
    if not error <= TOLERANCE.get(dtype, 0.1):
        raise ModelError(
            f"folding changes the output by {error:.2g}: something else than matrices reads a norm's output, or a norm is not "
            "linear in its γ; keep ω, or fold before training with scheme='admin_rescaled'"
        )


def outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    """The floating-point tensors that the model gives for the batch, in float32 at least."""
    like = next(model.parameters())
    batch = map_tensors(batch, lambda t: t.to(like.device, like.dtype if t.is_floating_point() else None))
    result = call(model, batch)
    parts = result.values() if isinstance(result, Mapping) else [result] if isinstance(result, Tensor) else result
    return [
        part.float() if part.itemsize < 4 else part for part in parts if isinstance(part, Tensor) and part.is_floating_point()
    ]


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
    if site.stuck and not _is_one(omega):
        raise ModelError(f"the ω of {site.name} cannot be folded away: {site.stuck}")
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


def _is_one(omega: Tensor | float) -> bool:
    return isinstance(omega, float) and omega == 1


def _scaler(site: Site) -> Callable[[Tensor | float], None]:
    """What multiplies the output of the site's norm: ν·ω, and γ·ω or, where the norm multiplies by 1 + γ, (1 + γ)·ω − 1."""
    norm = site.post
    if norm is None:
        raise ModelError(f"no norm after {site.name} could take up the ω of the next site; keep ω")
    if hasattr(norm, "scale_"):
        return norm.scale_  # type: ignore[return-value]
    own = {name: value for name, value in norm.named_parameters() if not name.startswith("bathy_omega")}
    kept = {name: value.detach().clone() for name, value in own.items()}

    def multiply(factor: Tensor | float, offset: int) -> None:
        for name, value in own.items():
            shift = 0 if "bias" in name or "beta" in name else offset
            value.copy_((kept[name] + shift) * factor - shift)

    x = torch.randn(8, site.width, generator=torch.Generator().manual_seed(0)).to(site.matrices[0].weight)
    with torch.no_grad():
        plain = norm.forward(x).float()  # without the hook that adds ω
        for offset in (0, 1):
            multiply(2.0, offset)
            doubled = torch.allclose(norm.forward(x).float(), 2 * plain, rtol=0.05, atol=0.05)
            multiply(1.0, 0)
            if doubled:
                return partial(multiply, offset=offset)
    raise ModelError(f"the norm after {site.name} has no γ that could take up the ω of the next site; keep ω")


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
