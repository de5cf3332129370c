"""One deviation, and why each kind of it matters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Deviation:
    """One thing that differs, where, why it matters and what to do."""

    name: str
    where: str
    found: str
    expected: str
    why: str
    advice: str

    def __str__(self) -> str:
        return f"{self.where}: {self.found}, expected {self.expected}. {self.why} {self.advice}"


WHY: dict[str, tuple[str, str]] = {
    "norm_placement": ("This layer's stream has another scale than its neighbours'.", "Give it the norm of the other layers."),
    "shortcut_factor": ("One layer passes on its input at another scale.", "Use the scheme's factor."),
    "shortcut_constant": ("The constant belongs to another depth or scheme.", "Compute it from this model's number of layers."),
    "branch_factor": ("The branch starts at another size than the scheme says.", "Use the scheme's factor."),
    "input_factor": ("The branch reads the stream at another scale than the scheme says.", "Use the scheme's factor."),
    "branch_norm": ("The branch's size is no longer controlled.", "End it in the norm of the other layers."),
    "inner_norm": ("A norm inside the branch is missing, or one too many.", "Build the branch as in the other layers."),
    "gain": ("The matrix starts at another size than the scheme says.", "Check the role and the sign of the exponent."),
    "gain_inverted": ("The scheme shrinks this matrix; here it is enlarged.", "Use the gain itself, not its inverse."),
    "gain_on_wrong_matrix": ("The factor meant for the branch's output matrix is on another one.", "Scale the output matrix."),
    "layer_gain": ("One layer starts at another size than its neighbours.", "Initialise all layers alike."),
    "zero_matrix": ("The branch adds nothing and its first matrices get no gradient.", "Initialise it as in the other layers."),
    "bias": ("A constant is added to every token.", "Start biases at zero, as in the other layers."),
    "norm_gamma_zero": ("What follows the norm sees the same for every token.", "Start γ at 1."),
    "norm_eps": ("The norm divides by this constant and not by the stream's size.", "Use an eps of 1e-5 or less."),
    "tied_layers": ("Layers that should be independent are one and the same.", "Build each layer by itself."),
    "norm_gamma": ("The norm scales the stream unlike the others.", "Start γ at 1."),
    "shared_norm": ("Layers that should be independent share γ and ν.", "Make one norm for each site."),
    "cloned_layers": ("The layers start as copies and get the same first updates.", "Initialise each layer by itself."),
    "final_norm": ("The scheme's stream grows with depth, and a norm must end it; after Post-LN it is one too many.",
                   "Put one norm after the stack's last layer, if the scheme has it."),
    "mirror": ("The feed-forward is not linear at the start.", "Mirror both matrices."),
}  # fmt: skip
"""Name of a deviation to why it matters and what to do."""


def deviation(name: str, where: str, found: str, expected: str) -> Deviation:
    """A deviation with its explanation."""
    return Deviation(name, where, found, expected, *WHY[name])
