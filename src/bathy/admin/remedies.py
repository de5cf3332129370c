"""Admin and its kin applied: `stabilise_` makes a model, ours or anyone's, start stable, and proves it.

A remedy is a row in REMEDIES. Those for Post-LN put ω on the shortcuts; a stack without a norm after its sums gets
`scaled_init` instead, what its branches give × 1/√n. Afterwards the model is measured again: what did not help is undone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from bathy.admin.fold import check_foldable, compare, fold_sites_, outputs
from bathy.admin.profile import PROFILE_TOKENS, Profile, Treatment, profile, profile_sites, profiled_sites
from bathy.admin.undo import Undo
from bathy.core.constants import deepnorm_constants, omega_log
from bathy.core.residual import Place
from bathy.errors import ModelError, SchemeError, unknown
from bathy.sites.batch import Batch, on_device_of, undisturbed
from bathy.sites.graph import is_norm
from bathy.sites.real_tokens import Mask
from bathy.sites.site import Site
from bathy.sites.wrapped import refuse_wrapped

__all__ = ["REMEDIES", "Profile", "profile", "stabilise_"]

SMALL_CHANGE = 1.0
"""Σ β² of a plain stack below which depth is not its problem."""
HELPS = 0.98
"""A remedy helps when Σ β² afterwards is below this part of what it was."""

Chain = Sequence[Site]
Chains = dict[str, list[Site]]


def stabilise_(
    model: nn.Module,
    batch: Batch,
    scheme: str = "admin",
    tokens: int = PROFILE_TOKENS,
    mask: Mask | None = None,
    force: bool = False,
) -> Profile:
    """Profile the model on one batch and stabilise it in place by a scheme of REMEDIES.

    The result's `treatments` say what was done and what Σ β² was before and after; a remedy that did not lower it is undone.
    Our models built with an Admin scheme get their ω set (`admin_rescaled`: folded into the weights). In any other model
    `admin` hooks ω in: no forward is edited and the model's own keys stay. Call it before DDP, FSDP2, `torch.compile` and
    the optimiser are made. A trained model is refused unless `force`: setting ω changes what it computes. After an error the
    model is as it was.
    """
    if scheme not in REMEDIES:
        raise SchemeError(unknown("remedy", scheme, REMEDIES))
    refuse_wrapped(model)
    if not force:
        _refuse_trained(model)
    batch = on_device_of(model, batch)
    sites = profiled_sites(model, batch)
    before = profile_sites(model, sites, batch, tokens, mask)
    chains: Chains = {}
    for site in sites:
        chains.setdefault(site.stack, []).append(site)
    plans, notes = _plan(scheme, chains, before)
    _warn_of_clones(chains)
    with Undo(sites) as undo:
        reference = _outputs_with_omega(model, batch, chains, plans, before)
        for stack, remedy in plans.items():
            alike = {other: chains[other] for other in plans if plans[other] == remedy}
            REMEDIES[remedy](chains[stack], alike, before)
        if reference is not None:
            compare(reference, _evaluated(model, batch), model, "admin_rescaled differs from admin")
        after = profile_sites(model, sites, batch, tokens, mask, set_omega=False) if plans else before
        treatments = [_judge(stack, plans[stack], chains[stack], before, after, undo) for stack in plans]
    return replace(before, notes=[*before.notes, *getattr(sites, "notes", []), *notes], treatments=treatments)


def _plan(asked: str, chains: Chains, before: Profile) -> tuple[dict[str, str], list[str]]:
    """The remedy of each stack, and what a user should know of the others; refuses what cannot be done as it was asked."""
    plans: dict[str, str] = {}
    notes: list[str] = []
    for stack, chain in chains.items():
        remedy, change = _scheme(chain, asked), before.change(stack)
        small = change < SMALL_CHANGE and not chain[0].scheme
        if remedy == "scaled_init" != asked:
            notes.append(f"{stack}: no norm follows most of its sums, so {asked} does not apply; the remedy is scaled_init")
        if small:
            notes.append(f"{stack}: Σβ² is {change:.2g} over {before.sublayers(stack)} sub-layers, so depth is not its problem")
            notes[-1] += "; it is left as it is" if remedy != asked else " and little changes" if asked[:5] == "admin" else ""
        if small and remedy != asked:
            continue
        reason = _unclear(chain) if remedy == "scaled_init" else ""
        if reason and remedy == asked:
            raise ModelError(f"scaled_init does not apply: {reason}")
        if reason:
            notes.append(f"{stack}: no remedy applies: {reason}; the next best step is a smaller learning rate or more warm-up")
            continue
        _check(remedy, chain)
        plans[stack] = remedy
    return plans, notes


def _unclear(chain: Chain) -> str:
    """Why the branches of a stack cannot be scaled; empty when those with weights can."""
    reasons = [f"{site.name}: {site.unclear}" for site in chain if site.unclear and site.matrices]
    return reasons[0] if reasons else ""


def _scheme(chain: Chain, asked: str) -> str:
    """What is done with a stack: as it was built, else as asked, else, where no norm follows most sums, `scaled_init`."""
    first = chain[0]
    if first.scheme:
        if asked not in ("admin", first.scheme):
            raise SchemeError(f"the model is built as {first.scheme}; stabilise_ sets its ω and cannot make it {asked}")
        return first.scheme
    post = sum(site.placement in ("post", "both") for site in chain)
    return asked if 2 * post >= len(chain) else "scaled_init"


def _check(scheme: str, chain: Chain) -> None:
    """Refuse a stack before anything is changed: where ω cannot be put on, or could not be folded away at once."""
    for site in chain:
        wanted = site.free or (scheme in ("admin_constant", "deepnorm") and site.placement in ("post", "both"))
        if scheme != "scaled_init" and wanted and site.obstacle:
            raise ModelError(
                f"{site.name} can have no ω: {site.obstacle}; scheme='scaled_init' makes its branches smaller instead"
            )
    if scheme == "admin_rescaled":
        check_foldable(chain)


def _outputs_with_omega(
    model: nn.Module, batch: Batch, chains: Chains, plans: dict[str, str], before: Profile
) -> list[torch.Tensor] | None:
    """What the model gives with ω on its shortcuts, where `admin_rescaled` is to give the same without; ω is left on."""
    rescaled = [stack for stack, remedy in plans.items() if remedy == "admin_rescaled" and not chains[stack][0].scheme]
    for stack in rescaled:
        _admin_(chains[stack], chains, before)
    return _evaluated(model, batch) if rescaled else None


def _evaluated(model: nn.Module, batch: Batch) -> list[torch.Tensor]:
    with undisturbed(model), torch.no_grad():
        return outputs(model.eval(), batch)


def _judge(stack: str, remedy: str, chain: Chain, before: Profile, after: Profile, undo: Undo) -> Treatment:
    """What the remedy did for a stack; one that did not lower Σ β² is undone."""
    then = sum(row.calls * row.plain_beta2 for row in before.sites if row.stack == stack)
    now = after.remaining_change(stack)
    kept = bool(chain[0].scheme) or now < HELPS * then
    if not kept:
        undo.sites(chain)
    return Treatment(stack, remedy, then, now, kept, "" if kept else _why(stack, before))


def _why(stack: str, before: Profile) -> str:
    """Why a remedy may not have helped: beside branches far larger than what a stack starts from, their size does not count."""
    first = next(row for row in before.sites if row.stack == stack)
    if not first.input_variance:
        return ". It starts from zeros, so that only the sizes of its branches beside each other count"
    if first.input_variance < 0.3 * first.branch_variance:
        return (
            f". It starts from a variance of {first.input_variance:.2g} and its first branch adds {first.branch_variance:.2g}: "
            "draw the embeddings larger (variance 1) and stabilise again"
        )
    return ""


def _admin_(chain: Chain, chains: Chains, result: Profile) -> None:
    """ω_i as profiled, learned."""
    for site in chain:
        if site.free and site.name in result.omega and not isinstance(site.omega, nn.Parameter):
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
            site.attach_(omega_log(result.sublayers(site.stack)))


def _deepnorm_(chain: Chain, chains: Chains, result: Profile) -> None:
    """α on the shortcuts, constant, and v, out, fc1, fc2 × β. The model's own initial values stand for Xavier's."""
    alpha, beta = deepnorm_constants(_place(chain, chains, result))
    for site in chain:
        if site.post:
            site.attach_(alpha)
        if site.matrices:
            _scale(site, beta, "v", "out", "fc1", "fc2")


def _scaled_init_(chain: Chain, chains: Chains, result: Profile) -> None:
    """What the branches give × 1/√n, as GPT-2: their last matrices, or γ of the norms that end them.

    A parameter that serves several stacks is scaled once, for the one with most sub-layers.
    """
    found = {id(output.parameter): output for site in chain for output in site.outputs}
    for key, output in found.items():
        owners = [other for other in chains.values() if any(id(o.parameter) == key for site in other for o in site.outputs)]
        if owners[0] is chain:
            output.scale_(max(result.sublayers(owner[0].stack) for owner in owners) ** -0.5)


REMEDIES: dict[str, Callable[[Chain, Chains, Profile], None]] = {
    "admin": _admin_,
    "admin_rescaled": _admin_rescaled_,
    "admin_constant": _admin_constant_,
    "deepnorm": _deepnorm_,
    "scaled_init": _scaled_init_,
}
"""Scheme to what it does with the sites of one stack, among all stacks that get the same."""


def _scale(site: Site, gain: float, *roles: str) -> None:
    """Multiply the matrices of these roles; a site none of whose matrices has a role of its own is an error."""
    chosen = [matrix for matrix in site.matrices if matrix.role.partition(".")[0] in roles]
    if not chosen or any(len(matrix.role) > 1 and set(matrix.role) <= set("qkv") for matrix in site.matrices if "v" in roles):
        found = ", ".join(matrix.role for matrix in site.matrices)
        raise ModelError(f"{site.name} has matrices {found}; it is not clear which are {', '.join(roles)}: use scheme='admin'")
    with torch.no_grad():
        for matrix in chosen:
            matrix.weight.mul_(gain)


def _place(chain: Chain, chains: Chains, result: Profile) -> Place:
    """Where the stack stands: beside an encoder or a decoder, or alone."""
    depth = {stack: max(site.layer for site in sites) for stack, sites in chains.items()}
    decoders = {stack for stack, sites in chains.items() if any(site.kind == "cross_attention" for site in sites)}
    kind, encoder, decoder = "encoder", depth[chain[0].stack], 0
    if len(chains) == 2 and len(decoders) == 1:
        kind = "decoder" if chain[0].stack in decoders else "encoder"
        encoder, decoder = (sum(layers for stack, layers in depth.items() if (stack in decoders) == of) for of in (False, True))
    return Place("deepnorm", kind, 1, 1, result.sublayers(chain[0].stack), encoder, decoder, chain[0].width)


def _refuse_trained(model: nn.Module) -> None:
    """An error for a model whose norms are no longer as they start: every γ and every ν one number throughout."""
    for path, module in model.named_modules():
        if is_norm(module):
            for name, value in module.named_parameters(recurse=False):
                fresh = not value.numel() or bool((value == value.flatten()[0]).all())
                if not fresh and not name.startswith("bathy_omega"):
                    raise ModelError(
                        f"{path}.{name} is trained, or was drawn at random (its numbers differ); setting ω would change what "
                        "the model computes: stabilise before training, or pass force=True"
                    )


def _warn_of_clones(chains: Chains) -> None:
    """Warn when two layers start with the same weights, as `nn.TransformerEncoder` makes them."""
    for stack, chain in chains.items():
        for site, other in zip(chain, (s for s in chain if s.layer == 2), strict=False):
            if not site.matrices or not other.matrices:
                continue
            a, b = site.matrices[0].weight, other.matrices[0].weight
            if (
                site.kind == other.kind
                and a is not b
                and a.shape == b.shape
                and torch.equal(a, b)
                and bool((a != a.flatten()[0]).any())
            ):
                warnings.warn(
                    f"layers 1 and 2 of {stack} start with identical weights (nn.TransformerEncoder clones its layer); "
                    "initialise each layer by itself",
                    stacklevel=3,
                )
                return
