"""Mistakes that are made on purpose, in a model of any scheme."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import bathy
from bathy.clinic.audit import audit
from bathy.core.residual import Matrix, Residual, Scale, residuals
from bathy.core.schemes import SCHEMES
from bathy.sites.graph import is_norm

Mutation = Callable[[list[Residual], nn.Module], bool]
"""Changes a model; whether it has the part that is changed."""
DEPTHS = {"encoder-decoder": (6, 5), "encoder-only": (8, 0), "decoder-only": (0, 8)}


def build(scheme: str, depths: tuple[int, int], seed: int = 0) -> tuple[bathy.Transformer, tuple[torch.Tensor, ...]]:
    """A model of the scheme and a batch, stabilised where the scheme asks for it."""
    torch.manual_seed(seed)
    config = bathy.TransformerConfig(
        vocab=40, width=64, ffn=256, heads=4, encoder_layers=depths[0], decoder_layers=depths[1],
        encoder_scheme=scheme, decoder_scheme=scheme,
    )  # fmt: skip
    model = bathy.Transformer(config)
    batch = tuple(torch.randint(4, 40, (3, 9 - i)) for i in range(len(config.stacks)))
    if SCHEMES[scheme].profiled:
        bathy.stabilise_(model, batch)
    return model, batch


def mistaken(scheme: str, name: str, depths: tuple[int, int]) -> set[str] | None:
    """Names of the deviations of a model with one mistake; nothing where the model has no such part."""
    model, batch = build(scheme, depths)
    stack = model.get_submodule(model.config.stacks[0])
    own = [residual for _, residual in residuals(stack)]
    with torch.no_grad():
        if not MUTATIONS[name][0](own, stack):
            return None
    return {each.name for each in audit(model, batch).deviations}


def _later(own: list[Residual], kind: str = "ffn") -> Residual:
    """A residual of that kind in a later layer."""
    return [residual for residual in own if residual.f.kind == kind][3]


def norm_missing(own: list[Residual], stack: nn.Module) -> bool:
    """One layer's norm left out."""
    residual = _later(own)
    for place in ("post", "pre"):
        if is_norm(getattr(residual, place)):
            setattr(residual, place, nn.Identity())
            return True
    return False


def norm_moved(own: list[Residual], stack: nn.Module) -> bool:
    """One layer's norm on the other side."""
    residual = _later(own)
    if is_norm(residual.pre) == is_norm(residual.post):
        return False
    residual.pre, residual.post = residual.post, residual.pre
    return True


def norm_shared(own: list[Residual], stack: nn.Module) -> bool:
    """One norm in two layers."""
    for place in ("post", "pre", "branch"):
        chosen = [residual for residual in own if is_norm(getattr(residual, place))]
        if len(chosen) > 4:
            setattr(chosen[-1], place, getattr(chosen[1], place))
            return True
    return False


def gamma_zero(own: list[Residual], stack: nn.Module) -> bool:
    """One norm whose γ starts at 0."""
    norms = [module for module in stack.modules() if is_norm(module)]
    if norms:
        norms[-1].weight.zero_()  # type: ignore[operator]
    return bool(norms)


def final_gone(own: list[Residual], stack: nn.Module) -> bool:
    """The norm after the stack left out."""
    if not is_norm(stack.final):  # type: ignore[arg-type]
        return False
    stack.final = nn.Identity()
    return True


def shortcut_halved(own: list[Residual], stack: nn.Module) -> bool:
    """One layer's shortcut times a half."""
    residual = _later(own)
    residual.skip = Scale(0.5 * _shortcut(residual))
    return True


def other_depth(own: list[Residual], stack: nn.Module) -> bool:
    """The shortcut's constant of a model four times as deep."""
    scales = [residual.skip for residual in own if isinstance(residual.skip, Scale)]
    constant = [scale for scale in scales if not isinstance(scale.omega, nn.Parameter) and float(scale.omega) != 1.0]
    for scale in constant:
        scale.omega = scale.omega * 4**0.25  # type: ignore[assignment]
    return bool(constant)


def shortcuts_doubled(own: list[Residual], stack: nn.Module) -> bool:
    """Every shortcut times two."""
    for residual in own:
        residual.skip = Scale(2.0 * _shortcut(residual))
    return True


def _shortcut(residual: Residual) -> float:
    """The mean factor on a shortcut."""
    old = residual.skip
    return float(torch.as_tensor(old.omega).mean()) if isinstance(old, Scale) else 1.0


def drawn_alike(own: list[Residual], stack: nn.Module) -> bool:
    """All matrices from N(0, 0.5), where the scheme has factors on some."""
    scaled = _scaled(own)
    for residual in own:
        for matrix in residual.f.matrices():
            matrix.weight.normal_(0, 0.5)
    return bool(scaled)


def gain_inverted(own: list[Residual], stack: nn.Module) -> bool:
    """The gain's exponent with the wrong sign, where the scheme has one."""
    scaled = _scaled(own)
    for matrix, factor in scaled:
        matrix.weight.mul_(factor**-2)
    return bool(scaled)


def _scaled(own: list[Residual]) -> list[tuple[Matrix, float]]:
    """The matrices on which the scheme has a factor, and the factor."""
    model, _ = build("post_ln", (8, 0))
    plain = [residual for _, residual in residuals(model)]
    sizes = {matrix.role: float(matrix.weight.std()) for residual in plain for matrix in residual.f.matrices()}
    return [
        (matrix, factor)
        for residual in own
        for matrix in residual.f.matrices()
        if matrix.role in ("out", "fc1", "fc2")
        for factor in [float(matrix.weight.std()) / sizes[matrix.role]]
        if factor and not 0.85 < factor < 1.18
    ]


def layer_loud(own: list[Residual], stack: nn.Module) -> bool:
    """One layer's output matrix three times as large."""
    for matrix in _later(own).f.matrices():
        if matrix.role == "fc2" and bool(matrix.weight.any()):
            matrix.weight.mul_(3)
            return True
    return False


def queries_loud(own: list[Residual], stack: nn.Module) -> bool:
    """All query matrices four times as large."""
    for residual in own:
        for matrix in residual.f.matrices():
            if matrix.role == "q":
                matrix.weight.mul_(4)
    return True


def first_instead_of_last(own: list[Residual], stack: nn.Module) -> bool:
    """The factor 1/√n, meant for output matrices, on the feed-forward's first matrix."""
    for residual in own:
        for matrix in residual.f.matrices():
            if matrix.role == "fc1":
                matrix.weight.mul_(len(own) ** -0.5)
    return True


def output_zero(own: list[Residual], stack: nn.Module) -> bool:
    """One layer's output matrix at zero."""
    for matrix in _later(own).f.matrices():
        if matrix.role == "fc2" and bool(matrix.weight.any()):
            matrix.weight.zero_()
            return True
    return False


def bias_set(own: list[Residual], stack: nn.Module) -> bool:
    """One layer's bias at a half."""
    for matrix in _later(own).f.matrices():
        if matrix.role == "fc1" and matrix.bias is not None:
            matrix.bias.fill_(0.5)
            return True
    return False


def layers_cloned(own: list[Residual], stack: nn.Module) -> bool:
    """All layers with the first one's values."""
    first = own[: len(own) // len(stack.layers)]  # type: ignore[arg-type]
    for i, residual in enumerate(own):
        residual.f.load_state_dict(first[i % len(first)].f.state_dict())
    return True


GAINS = {"gain", "layer_gain", "gain_inverted", "gain_on_wrong_matrix", "zero_matrix"}
MUTATIONS: dict[str, tuple[Mutation, set[str]]] = {
    "norm missing in one layer": (norm_missing, {"norm_placement"}),
    "norm on the other side in one layer": (norm_moved, {"norm_placement"}),
    "norm shared by two layers": (norm_shared, {"shared_norm"}),
    "γ = 0": (gamma_zero, {"norm_gamma_zero"}),
    "final norm missing": (final_gone, {"final_norm"}),
    "shortcut halved in one layer": (shortcut_halved, {"shortcut_factor"}),
    "constant of another depth": (other_depth, {"shortcut_constant"}),
    "all shortcuts × 2": (shortcuts_doubled, {"shortcut_constant"}),
    "all matrices N(0, 0.5)": (drawn_alike, {"gain", "zero_matrix"}),
    "gain inverted": (gain_inverted, {"gain_inverted"}),
    "one layer's fc2 × 3": (layer_loud, {"gain", "layer_gain"}),
    "queries × 4": (queries_loud, {"gain"}),
    "1/√n on fc1 instead of fc2": (first_instead_of_last, {"gain_on_wrong_matrix"}),
    "one layer's fc2 zero": (output_zero, {"zero_matrix"}),
    "one layer's bias set": (bias_set, {"bias"}),
    "layers cloned": (layers_cloned, {"cloned_layers"}),
}
"""Mistake to what makes it, and the names under which it counts as found."""
