"""Admin and its kin applied: `stabilise_` makes a model, ours or anyone's, start stable.

A remedy is a row in REMEDIES. Those for Post-LN put ω on the shortcuts; a stack without a norm after its sums gets
`scaled_init` instead, its branch output matrices × 1/√n.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from bathy.errors import ModelError, SchemeError, nearest
from bathy.folding import check_foldable, fold_sites_
from bathy.profiling import MOST_TOKENS, Profile, profile, profile_sites, profiled_sites
from bathy.residual import Place
from bathy.schemes import deepnorm_constants, omega_log
from bathy.sites.batch import Batch, on_device_of
from bathy.sites.graph import is_norm
from bathy.sites.positions import Mask
from bathy.sites.site import DeclaredSite, Site

__all__ = ["REMEDIES", "Profile", "profile", "stabilise_"]

SMALL_CHANGE = 1.0
"""Σ β² of a plain stack below which depth is not its problem."""

Chain = Sequence[Site]
Chains = dict[str, list[Site]]


def stabilise_(
    model: nn.Module,
    batch: Batch,
    scheme: str = "admin",
    tokens: int = MOST_TOKENS,
    mask: Mask | None = None,
    force: bool = False,
) -> Profile:
    """Profile the model on one batch and stabilise it in place by a scheme of REMEDIES; the result's notes say what was done.

    Our models built with an Admin scheme get their ω set (`admin_rescaled`: folded into the weights). In any other model
    `admin` hooks ω in: no forward is edited and the model's own keys stay. Call it before DDP, FSDP2, `torch.compile` and
    the optimiser are made. A trained model is refused unless `force`: setting ω changes what it computes.
    """
    if scheme not in REMEDIES:
        raise SchemeError(f"stabilise_ has no scheme {scheme!r}.{nearest(scheme, REMEDIES)} Known: {', '.join(REMEDIES)}.")
    if not force:
        _refuse_trained(model)
    batch = on_device_of(model, batch)
    sites = profiled_sites(model, batch)
    result = profile_sites(model, sites, batch, tokens, mask)
    chains: Chains = {}
    for site in sites:
        chains.setdefault(site.stack, []).append(site)
    for chain in chains.values():
        _check(_scheme(chain, scheme), chain)
    _warn_of_clones(chains)
    notes = [note for stack, chain in chains.items() for note in _treat(scheme, stack, chain, chains, result)]
    return replace(result, notes=notes)


def _scheme(chain: Chain, asked: str) -> str:
    """What is done with a stack: as it was built, else as asked, else, where no norm follows the sums, `scaled_init`."""
    first = chain[0]
    if isinstance(first, DeclaredSite):
        if asked not in ("admin", first.scheme):
            raise SchemeError(f"the model is built as {first.scheme}; stabilise_ sets its ω and cannot make it {asked}")
        return first.scheme
    return asked if any(site.position in ("post", "both") for site in chain) else "scaled_init"


def _check(scheme: str, chain: Chain) -> None:
    """Refuse a stack before anything is changed: where ω cannot be put on, or could not be folded away at once."""
    for site in chain:
        wanted = site.free or (scheme in ("admin_constant", "deepnorm") and site.position in ("post", "both"))
        if scheme != "scaled_init" and wanted and site.obstacle:
            raise ModelError(f"{site.name} can have no ω: {site.obstacle}")
    if scheme == "admin_rescaled":
        check_foldable(chain)


def _treat(asked: str, stack: str, chain: Chain, chains: Chains, result: Profile) -> list[str]:
    """Apply a remedy to one stack; returns what a user should know."""
    scheme, change, notes = _scheme(chain, asked), result.change(stack), []
    if scheme == "scaled_init" != asked:
        notes.append(f"{stack}: no norm follows its sums, so {asked} does not apply; the remedy is scaled_init")
    if change < SMALL_CHANGE and not isinstance(chain[0], DeclaredSite):
        notes.append(f"{stack}: Σβ² is {change:.2g} over {_count(chain)} sub-layers, so depth is not its problem")
        notes[-1] += "; it is left as it is" if scheme != asked else " and little changes" if asked.startswith("admin") else ""
        if scheme != asked:
            return notes
    REMEDIES[scheme](chain, chains, result)
    return notes


def _admin_(chain: Chain, chains: Chains, result: Profile) -> None:
    """ω_i as profiled, learned."""
    for site in chain:
        if site.free and not isinstance(site.omega, nn.Parameter):
            site.attach_()
    with torch.no_grad():
        for site in chain:
            if isinstance(site.omega, nn.Parameter):
                site.omega.fill_(result.omega[site.name])


def _admin_rescaled_(chain: Chain, chains: Chains, result: Profile) -> None:
    """ω_i as profiled, folded into norms and matrices at once."""
    _admin_(chain, chains, result)
    fold_sites_(chain)


def _admin_constant_(chain: Chain, chains: Chains, result: Profile) -> None:
    """ω = √((n+1)/ln(n+1) − 1) on all n sub-layers, constant."""
    for site in chain:
        if site.post:
            site.attach_(omega_log(_count(chain)))


def _deepnorm_(chain: Chain, chains: Chains, result: Profile) -> None:
    """α on the shortcuts, constant, and v, out, fc1, fc2 × β. The model's own initial values stand for Xavier's."""
    alpha, beta = deepnorm_constants(_place(chain, chains))
    for site in chain:
        if site.post:
            site.attach_(alpha)
        _scale(site, beta, "v", "out", "fc1", "fc2")


def _scaled_init_(chain: Chain, chains: Chains, result: Profile) -> None:
    """Branch output matrices × 1/√n, as GPT-2."""
    for site in chain:
        _scale(site, _count(chain) ** -0.5, "out", "fc2")


REMEDIES: dict[str, Callable[[Chain, Chains, Profile], None]] = {
    "admin": _admin_,
    "admin_rescaled": _admin_rescaled_,
    "admin_constant": _admin_constant_,
    "deepnorm": _deepnorm_,
    "scaled_init": _scaled_init_,
}
"""Scheme to what it does with the sites of one stack."""


def _count(chain: Chain) -> int:
    """n: residual sub-layers of a stack, as often as they run."""
    return sum(site.calls for site in chain)


def _scale(site: Site, gain: float, *roles: str) -> None:
    """Multiply the matrices of these roles; a site none of whose matrices has a role of its own is an error."""
    chosen = [matrix for matrix in site.matrices if matrix.role.partition(".")[0] in roles]
    if not chosen or any(len(matrix.role) > 1 and set(matrix.role) <= set("qkv") for matrix in site.matrices if "v" in roles):
        found = ", ".join(matrix.role for matrix in site.matrices)
        raise ModelError(f"{site.name} has matrices {found}; it is not clear which are {', '.join(roles)}")
    with torch.no_grad():
        for matrix in chosen:
            matrix.weight.mul_(gain)


def _place(chain: Chain, chains: Chains) -> Place:
    """Where the stack stands: beside an encoder or a decoder, or alone."""
    depth = {stack: max(site.layer for site in sites) for stack, sites in chains.items()}
    decoders = {stack for stack, sites in chains.items() if any(site.kind == "encoder_attention" for site in sites)}
    kind, encoder, decoder = "encoder", depth[chain[0].stack], 0
    if len(chains) == 2 and len(decoders) == 1:
        kind = "decoder" if chain[0].stack in decoders else "encoder"
        encoder, decoder = (sum(layers for stack, layers in depth.items() if (stack in decoders) == of) for of in (False, True))
    return Place("deepnorm", kind, 1, 1, _count(chain), encoder, decoder, chain[0].width)


def _refuse_trained(model: nn.Module) -> None:
    """An error for a model whose norms are no longer as they start: all γ 1 and all ν 0."""
    for path, module in model.named_modules():
        if is_norm(module):
            for name, value in module.named_parameters(recurse=False):
                fresh = bool((value == 1).all() or (value == 0).all())
                if not fresh and not name.startswith("bathy_omega"):
                    raise ModelError(
                        f"{path}.{name} is trained (not all 0 or 1); setting ω would change what the model computes: "
                        "stabilise before training, or pass force=True"
                    )


def _warn_of_clones(chains: Chains) -> None:
    """Warn when two layers start with the same weights, as `nn.TransformerEncoder` makes them."""
    for stack, chain in chains.items():
        for site, other in zip(chain, (s for s in chain if s.layer == 2), strict=False):
            a, b = site.matrices[0].weight, other.matrices[0].weight
            if site.kind == other.kind and a is not b and a.shape == b.shape and torch.equal(a, b):
                warnings.warn(
                    f"layers 1 and 2 of {stack} start with identical weights (nn.TransformerEncoder clones its layer); "
                    "initialise each layer by itself",
                    stacklevel=3,
                )
                return
