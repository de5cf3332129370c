"""The table of schemes: which parts a residual is made of, and their first values.

A scheme is one function, which takes a branch f with its base values (Xavier) and returns the `Residual` round it, and one row
in SCHEMES. x is the sub-layer's input, n the sub-layers of its stack, N and M the layers of encoder and decoder (N also
those of a single stack), l the layer from 1. Block and constants of the later methods were read in their papers' abstracts and
their authors' public code; where a detail was not verified there, the docstring says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from bathy.core.constants import (
    Rates,
    completep_rates,
    deepnorm_constants,
    layer_scale_value,
    omega_log,
    sub_ln_gain,
    t_fixup_gain,
)
from bathy.core.refusals import (
    Refusal,
    embeddings_follow_the_width,
    needs_plain_feed_forward,
    needs_xavier,
    norms_embeddings_itself,
)
from bathy.core.residual import Branch, Place, Residual, Scale, Shift
from bathy.errors import SchemeError, unknown

Build = Callable[[Branch, Place], Residual]
ROLES = ("q", "k", "v", "out", "gate", "fc1", "fc2")


def post_ln(f: Branch, place: Place) -> Residual:
    """LN(x + f(x))."""
    return Residual(f, place, post=place.norm())


def pre_ln(f: Branch, place: Place) -> Residual:
    """x + f(LN(x)), and one LN after the stack."""
    return Residual(f, place, pre=place.norm())


def admin(f: Branch, place: Place) -> Residual:
    """LN(ω · x + f(x)), ω a learned vector that profiling sets; a stack's first sub-layer keeps ω = 1."""
    free = place.index > 1 or place.learn_first
    return Residual(f, place, post=place.norm(), skip=Scale(1.0, learned=True, width=place.width) if free else None)


def admin_constant(f: Branch, place: Place) -> Residual:
    """LN(ω · x + f(x)), ω = √((n+1)/ln(n+1) − 1) for an output change of O(log n), without profiling.

    That n counts 3 sub-layers a decoder layer is implied by the authors' package, not verified.
    """
    return Residual(f, place, post=place.norm(), skip=Scale(omega_log(place.sites)))


def admin_constant_1(f: Branch, place: Place) -> Residual:
    """LN(ω · x + f(x)), ω = √n for an output change of O(1)."""
    return Residual(f, place, post=place.norm(), skip=Scale(math.sqrt(place.sites)))


def admin_constant_n(f: Branch, place: Place) -> Residual:
    """LN(ω · x + f(x)), ω = 1 for an output change of O(n): Post-LN by another name."""
    return Residual(f, place, post=place.norm(), skip=Scale(1.0))


def _alpha(place: Place) -> nn.Module:
    """ReZero's α: 0 at the start, one number per layer, shared by its sub-layers."""
    return place.shared.setdefault("alpha", Scale(0.0, learned=True))


def rezero(f: Branch, place: Place) -> Residual:
    """x + α · f(x), no norm, α = 0 at the start and shared by the sub-layers of a layer."""
    return Residual(f, place, branch=_alpha(place))


def rezero_post_ln(f: Branch, place: Place) -> Residual:
    """LN(x + α · f(x)), α = 0 at the start and shared by the sub-layers of a layer."""
    return Residual(f, place, post=place.norm(), branch=_alpha(place))


def fixup(f: Branch, place: Place) -> Residual:
    """x + s · f(x + b), no norm: scalar biases before matrices and activation, s = 1 learned, linear layers without bias.

    With L = 2N + 3M: q, k, v × L^(−1/6), fc1 × L^(−1/2), attention output and fc2 zero. The stack ends in one more scalar bias.
    """
    count = place.model_sites
    inward, outward = count ** (-1 / 6), count ** (-1 / 2)
    f.drop_biases_()
    f.scale_(q=inward, k=inward, v=inward, out=0.0, fc1=outward, fc2=0.0)
    if f.kind == "ffn":
        f.inner, f.activation = Shift(), nn.Sequential(Shift(), f.activation)
    return Residual(f, place, pre=Shift(), branch=Scale(1.0, learned=True))


def looklinear(f: Branch, place: Place) -> Residual:
    """LN(x + f(x)) with fc1 rows and fc2 columns in mirrored halves, W = [W', −W']: linear at the start, with ReLU or GELU."""
    for matrix in f.matrices():
        if matrix.role in ("fc1", "fc2"):
            weight = matrix.weight.data if matrix.role == "fc1" else matrix.weight.data.T
            half = weight.shape[0] // 2
            weight[half : 2 * half] = -weight[:half]
    return post_ln(f, place)


def deepnorm(f: Branch, place: Place) -> Residual:
    """LN(α · x + f(x)), α constant, and Xavier gain β on v, out, fc1, fc2 and a gate (q and k keep gain 1).

    Its paper gives β to every matrix of the feed-forward and has none with a gate.
    """
    alpha, beta = deepnorm_constants(place)
    f.scale_(q=f.unfused("q"), k=f.unfused("k"), v=beta * f.unfused("v"), out=beta, gate=beta, fc1=beta, fc2=beta)
    return Residual(f, place, post=place.norm(), skip=Scale(alpha))


def t_fixup(f: Branch, place: Place) -> Residual:
    """x + f(x), no norm: v, out, fc1, fc2 and a gate × 0.67 N^(−1/4) or (9M)^(−1/4), embeddings × (9N)^(−1/4).

    v undoes the fused gain. A single stack has the encoder's constants; its paper has encoder–decoder models only.
    """
    gain = t_fixup_gain(place)
    f.scale_(v=gain * f.unfused("v"), out=gain, gate=gain, fc1=gain, fc2=gain)
    return Residual(f, place)


def sub_ln(f: Branch, place: Place) -> Residual:
    """x + W_out · LN(g(W_in · LN(x))), v, out, fc1, fc2 and a gate × γ; cross-attention has no inner norm, keeps its values."""
    if f.kind != "cross_attention":
        gain = sub_ln_gain(place)
        f.scale_(v=gain, out=gain, gate=gain, fc1=gain, fc2=gain)
        f.inner = place.make_norm(f.inner_width)
    return Residual(f, place, pre=place.norm())


def layer_scale(f: Branch, place: Place) -> Residual:
    """x + λ · f(LN(x)), λ a learned vector, small at the start."""
    scale = Scale(layer_scale_value(place.layers), learned=True, width=place.width)
    return Residual(f, place, pre=place.norm(), branch=scale)


def peri_ln(f: Branch, place: Place) -> Residual:
    """x + LN(f(LN(x))), a norm on the embeddings and one after the stack."""
    return Residual(f, place, pre=place.norm(), branch=place.norm())


def layer_norm_scaling(f: Branch, place: Place) -> Residual:
    """x + f(LN(x)/√l), the same l for attention and feed-forward.

    Its authors advise against scaling initial values by depth as well: with init 'normal', theirs, no matrix is divided by √n.
    """
    return Residual(f, place, pre=nn.Sequential(place.norm(), Scale(place.layer**-0.5)))


def keel(f: Branch, place: Place) -> Residual:
    """LN(α · x + f(LN(x))), α = n, the number of sub-layers.

    Not verified: how its authors treat the first sub-layer and whether the inner norm has γ and ν; here all are alike.
    """
    return Residual(f, place, pre=place.norm(), post=place.norm(), skip=Scale(float(place.sites)))


def reordered_norm(f: Branch, place: Place) -> Residual:
    """x + LN(f(x)), and one LN after the stack; its models have QK-norm as well."""
    return Residual(f, place, branch=place.norm())


def depth_scaled_sandwich(f: Branch, place: Place) -> Residual:
    """x + LN(f(LN(x))), γ of the outer LN 1/√N at the start, and one LN after the stack.

    Not verified: the constant (Pangu's is another) and whether the embeddings have a norm; here they have none.
    """
    outer = place.norm()
    outer.scale_(place.layers**-0.5)  # type: ignore[operator]
    return Residual(f, place, pre=place.norm(), branch=outer)


def mix_ln(f: Branch, place: Place) -> Residual:
    """LN(x + f(x)) in the first ⌊N/4⌋ layers, x + f(LN(x)) in the others, and one LN after the stack."""
    return (post_ln if place.layer <= place.layers // 4 else pre_ln)(f, place)


def completep(f: Branch, place: Place) -> Residual:
    """x + (N₀/N) · f(LN(x)), attention scaled by 1/d: a small model's learning rate, with m = D/D₀, holds for larger ones.

    N₀ and D₀ are the base model's layers and width. Hidden matrices have variance ∝ 1/m, logits are divided by m, and each
    kind of parameter has multipliers of learning rate, ε and weight decay (`completep_rates`). Xavier's embeddings, of
    deviation D^(−½) and multiplied by √D, are the same model with E = E′/√m. Not verified: the default base model.
    """
    if place.init == "normal":
        f.scale_(**dict.fromkeys(ROLES, place.wider**-0.5))
    if f.kind != "ffn":
        f.scale = f.scale**2
    return Residual(f, place, pre=place.norm(), branch=Scale(1 / place.deeper))


def completep_output(place: Place) -> nn.Module:
    """LN, and on the way to logits a division by m; by √m where embeddings shrink with the width themselves."""
    if place.paired and place.stack == "encoder":
        return place.norm()
    return nn.Sequential(place.norm(), Scale(1 / (place.wider if place.init == "normal" else place.wider**0.5)))


def nothing(place: Place) -> nn.Module:
    """No module at this place."""
    return nn.Identity()


def norm(place: Place) -> nn.Module:
    """A norm over the stream."""
    return place.norm()


def shift(place: Place) -> nn.Module:
    """FixUp's last scalar bias; its encoder ends in a learned scale as well."""
    return nn.Sequential(Shift(), Scale(1.0, learned=True)) if place.stack == "encoder" else Shift()


@dataclass(frozen=True)
class Scheme:
    """A row: how residuals are built, what stands before and after a stack, and what can be done with it."""

    build: Build
    reference: str
    final: Callable[[Place], nn.Module] = nothing
    """What follows the last sub-layer of a stack."""
    first: Callable[[Place], nn.Module] = nothing
    """What precedes the first sub-layer of a stack."""
    embedding: Callable[[Place], float] = lambda place: 1.0
    """Factor on the initial embeddings."""
    profiled: bool = False
    """Whether ω (or the weights, for a rescaled scheme) is set from a batch before training."""
    folds: bool = False
    """Whether `bathy.fold` turns it into plain post_ln."""
    refuses: tuple[Refusal, ...] = ()
    """What of a config it does not go with, and why."""
    by_depth: bool = True
    """Whether init 'normal' may divide the last matrix of a branch by √n; false where the scheme has a factor of its own."""

    rates: Callable[[Place, str], Rates] = lambda place, part: Rates()
    """Multipliers of learning rate, ε and weight decay for a part of the model: see `bathy.core.rates`."""

    @property
    def equation(self) -> str:
        """The first line of the scheme's docstring."""
        return (self.build.__doc__ or "").partition("\n")[0]


ADMIN = "Liu et al., 2020, Understanding the Difficulty of Training Transformers"

SCHEMES: dict[str, Scheme] = {
    "post_ln": Scheme(post_ln, "Vaswani et al., 2017, Attention Is All You Need", folds=True),
    "pre_ln": Scheme(pre_ln, "Baevski and Auli, 2018; Xiong et al., 2020, On Layer Normalization", final=norm),
    "admin": Scheme(admin, ADMIN, profiled=True, folds=True),
    "admin_rescaled": Scheme(post_ln, f"{ADMIN}, appendix: ω folded away at the start", profiled=True, folds=True),
    "admin_constant": Scheme(admin_constant, "the authors' package admin-torch, O(log n)", folds=True),
    "admin_constant_1": Scheme(admin_constant_1, "the authors' package admin-torch, O(1)", folds=True),
    "admin_constant_n": Scheme(admin_constant_n, "the authors' package admin-torch, O(n)", folds=True),
    "rezero": Scheme(rezero, "Bachlechner et al., 2020, ReZero is All You Need"),
    "rezero_post_ln": Scheme(rezero_post_ln, f"{ADMIN}, appendix, after Bachlechner et al., 2020"),
    "fixup": Scheme(
        fixup, "Zhang et al., 2019, Fixup Initialization", final=shift, refuses=(needs_xavier, needs_plain_feed_forward)
    ),
    "looklinear": Scheme(
        looklinear, "Balduzzi et al., 2017, The Shattered Gradients Problem", folds=True, refuses=(needs_plain_feed_forward,)
    ),
    "deepnorm": Scheme(
        deepnorm, "Wang et al., 2022, DeepNet: Scaling Transformers to 1,000 Layers", folds=True, refuses=(needs_xavier,)
    ),
    "t_fixup": Scheme(
        t_fixup,
        "Huang et al., 2020, Improving Transformer Optimization Through Better Initialization",
        embedding=lambda place: (9 * (place.encoder_layers or place.layers)) ** -0.25,
        refuses=(needs_xavier,),
    ),
    "sub_ln": Scheme(sub_ln, "Wang et al., 2022, Magneto: Foundation Transformers", final=norm, refuses=(needs_xavier,)),
    "layer_scale": Scheme(layer_scale, "Touvron et al., 2021, Going Deeper with Image Transformers", final=norm),
    "peri_ln": Scheme(peri_ln, "Kim et al., 2025, Peri-LN", first=norm, final=norm, refuses=(norms_embeddings_itself,)),
    "layer_norm_scaling": Scheme(
        layer_norm_scaling, "Sun et al., 2025, The Curse of Depth in LLMs", final=norm, by_depth=False
    ),
    "keel": Scheme(keel, "ByteDance, 2026, Keel"),
    "reordered_norm": Scheme(reordered_norm, "OLMo team, 2024, 2 OLMo 2 Furious", final=norm),
    "depth_scaled_sandwich": Scheme(depth_scaled_sandwich, "Arcee, 2026, Trinity; after Pangu", final=norm),
    "mix_ln": Scheme(mix_ln, "Li et al., 2024, Mix-LN", final=norm),
    "completep": Scheme(
        completep,
        "Dey et al., 2025, Don't be lazy: CompleteP",
        final=completep_output,
        by_depth=False,
        refuses=(embeddings_follow_the_width,),
        rates=completep_rates,
    ),
}


def find_scheme(name: str) -> Scheme:
    """The scheme of that name, or an error that names the nearest."""
    if name not in SCHEMES:
        raise SchemeError(unknown("scheme", name, SCHEMES))
    return SCHEMES[name]
