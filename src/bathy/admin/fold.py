"""Folding: the same function as plain Post-LN, without ω.

For i ≥ 2 the norm that gives x_{i-1} takes γ·ω_i and ν·ω_i, and every matrix of branch i that reads the stream takes W/ω_i
along its input: self-attention's q, k, v; cross-attention's q alone, because its k and v read the encoder's output; fc1, gate.
A scalar ω_1 divides branch 1's output matrix and bias, because a norm does not see its input's scale; a learned ω_1 goes
into the embeddings and positions, which unties them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from bathy.core.residual import Matrix
from bathy.core.schemes import SCHEMES
from bathy.errors import ModelError, SchemeError
from bathy.sites.batch import Batch, call, map_tensors, tensors_in, undisturbed
from bathy.sites.hooks import hooked_sites
from bathy.sites.site import Site, declared_sites

Model = TypeVar("Model", bound=nn.Module)


@runtime_checkable
class HasPlainForm(Protocol):
    """A model that declares its sites and can be made anew without their ω. `bathy.Transformer` is one."""

    def plain_form(self, first: Mapping[str, Tensor]) -> nn.Module:
        """A Post-LN model of these weights, with ω_1, where it is learned, multiplied into what each stack starts from."""


SMALLEST = 1e-5
"""An ω nearer to 0 than this is not divided by."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Largest change of the output, relative to its largest value, that rounding may cause; 0.1 in half precision."""


def fold(model: Model, batch: Batch | None = None) -> Model:
    """A model of the plain architecture that computes what `model` computes; `model` stays as it is.

    Ours becomes post_ln, with a pre_ln stack beside it kept. Another model loses the ω that `stabilise_` hooked in and has
    its own keys again; its outputs for `batch`, or the batch it was stabilised with, are compared before and after.
    """
    declared = declared_sites(model)
    if declared and not hooked_sites(model):
        return _fold_declared(model, declared)
    copy = deepcopy(model)
    sites = hooked_sites(copy)
    if sites:
        fold_sites_(sites)
        verify(model, copy, sites.batch if batch is None else batch)
    return copy


def _fold_declared(model: Model, sites: Sequence[Site]) -> Model:
    _check(sites)
    copy = deepcopy(model)
    assert isinstance(copy, HasPlainForm)
    first = fold_sites_([site for site in declared_sites(copy) if SCHEMES[site.scheme].folds])
    return copy.plain_form(first).train(model.training)


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
        pair = [outputs(part.eval(), batch) for part in (model, folded)]
    if not pair[0]:
        raise ModelError(
            "the model gives no floating-point tensor by which folding could be verified; let it return its logits"
        )
    compare(pair[0], pair[1], model, "folding changes the output")


def compare(expected: list[Tensor], found: list[Tensor], model: nn.Module, what: str) -> None:
    """Refuse, by ModelError, outputs that differ by more than rounding."""
    error = max((_difference(a, b) for a, b in zip(expected, found, strict=True)), default=0.0)
    if not error <= TOLERANCE.get(next(model.parameters()).dtype, 0.1):
        raise ModelError(
            f"{what} by {error:.2g}: something else than matrices reads a norm's output (positions, a second reader), or a "
            "norm is not linear in its γ; keep ω (scheme='admin'), the model is as it was"
        )


def _difference(a: Tensor, b: Tensor) -> float:
    """The largest difference relative to the largest number; what is infinite or no number in both is no difference."""
    same = (a == b) | (a.isnan() & b.isnan())
    return float(((a - b).abs() / a[a.isfinite()].abs().max().clamp(min=1))[~same].max()) if not bool(same.all()) else 0.0


def outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    """The floating-point tensors that the model gives for the batch, in float32 at least."""
    like = next(model.parameters())
    batch = map_tensors(batch, lambda t: t.to(like.device, like.dtype if t.is_floating_point() else None))
    found = [tensor for _, tensor in tensors_in(call(model, batch)) if tensor.is_floating_point()]
    return [tensor.float() if tensor.itemsize < 4 else tensor for tensor in found]


def _check(sites: Sequence[Site]) -> None:
    """Refuse, by name, schemes that are no Post-LN in disguise."""
    names = {site.stack: site.scheme for site in sites}.values()
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
    sizes = [_along_inputs(matrix).shape[-1] for matrix in site.matrices if matrix.reads and isinstance(omega, nn.Parameter)]
    narrow = [size for size in sizes if size != site.width]
    if narrow:
        raise ModelError(
            f"the ω of {site.name} cannot be folded away: a matrix reads the stream in pieces of {narrow[0]}, not {site.width}"
        )
    return omega.detach().clone() if isinstance(omega, nn.Parameter) else omega


def _divide_inputs(site: Site, omega: Tensor | float) -> None:
    for matrix in site.matrices:
        if matrix.reads:
            _along_inputs(matrix).div_(omega)


def _along_inputs(matrix: Matrix) -> Tensor:
    """The weight with its inputs as last dimension: a convolution has them second, or first where it keeps channels apart."""
    weight = matrix.weight
    if isinstance(matrix.module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return weight.movedim(0 if matrix.module.groups > 1 else 1, -1)
    return weight


def _divide_output(site: Site, omega: float) -> None:
    if any(output.norm for output in site.outputs):
        raise ModelError(f"the constant ω of {site.name} cannot be folded away: its branch ends in a norm; keep ω")
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
            value.copy_((kept[name] + shift) * _fitting(factor, value, site) - shift)

    like = next(iter(own.values()), torch.zeros(1))
    with torch.no_grad(), undisturbed(norm):
        x, plain = _asked(norm.eval(), site, like)
        for offset in (0, 1):
            multiply(2.0, offset)
            doubled = torch.allclose(norm.forward(x).float(), 2 * plain, rtol=0.05, atol=0.05)
            multiply(1.0, 0)
            if doubled:
                return partial(multiply, offset=offset)
    raise ModelError(f"the norm after {site.name} has no γ that could take up the ω of the next site; keep ω")


def _asked(norm: nn.Module, site: Site, like: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens in a shape that the norm takes, and what it gives for them without the hook that adds ω."""
    x = torch.randn(32, site.width, generator=torch.Generator().manual_seed(0)).to(like)
    for shape in ((4, 8, site.width), (32, site.width)):  # the second for a BatchNorm
        try:
            return x.view(shape), norm.forward(x.view(shape)).float()
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError):
            continue
    raise ModelError(f"the norm after {site.name} does not give a tensor for one; its ω cannot be folded away: keep ω")


def _fitting(factor: Tensor | float, value: Tensor, site: Site) -> Tensor | float:
    """The factor in the shape of a norm's parameter: one number for a norm that has only one, if ω is one number throughout."""
    if isinstance(factor, float) or value.numel() == factor.numel():
        return factor
    if value.numel() > 1 or bool((factor != factor[0]).any()):
        raise ModelError(
            f"the norm after {site.name} has {value.numel()} γ for the {factor.numel()} ω of the next site; keep ω"
        )
    return factor[0]
