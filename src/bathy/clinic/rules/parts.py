"""Rules on single parts: silent branches, norms that pass on nothing or signs, matrices outside the branches."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bathy.clinic.findings import Evidence, Finding
from bathy.clinic.readings import Reading, groups
from bathy.clinic.rules.rows import amplified, at_last, relative_updates, update_ratios
from bathy.clinic.rules.stability import AMPLIFICATION, VANISHING

SILENT = 1e-4
"""Branch share below which a branch contributes nothing."""
BELOW_OTHERS = 1e-3
"""Share of the largest branch share of the same kind: further below it, a branch is not small by design."""
TRAINED = 100
"""Updates after which even a scheme that starts at zero has branches."""
SIGNS = 2
"""Numbers over which a LayerNorm returns ±1 whatever it is given."""
FEW = 4
"""Numbers over which a norm keeps little of what it is given."""
OUTSIDE = 10.0
"""‖ΔW‖/‖W‖ of an embedding or output matrix over that of the branches' matrices."""
MOVES = 0.1
"""‖ΔW‖/‖W‖ of one update below which such a matrix moves slowly enough in any case."""


def silent(rows: Sequence[Reading]) -> Finding | None:
    """Branches that add nothing while others of their kind do; or none that adds anything after many updates."""
    shares = at_last(rows, "branch_share")
    largest: dict[tuple[str, str], float] = {}
    for row in shares:
        largest[row.stack, row.kind] = max(row.value, largest.get((row.stack, row.kind), 0.0))
    every = bool(shares) and all(row.value < SILENT for row in shares) and shares[0].step >= TRAINED
    quiet = [row for row in shares if row.value < SILENT]
    quiet = quiet if every else [row for row in quiet if row.value < BELOW_OTHERS * largest[row.stack, row.kind]]
    if not quiet or len(quiet) < 0.05 * len(shares):
        return None
    names = ", ".join(dict.fromkeys(row.site for row in quiet[:3])) + (", …" if len(quiet) > 3 else "")
    least = min(quiet, key=lambda row: row.value)
    return Finding(
        "silent", "warning", f"{len(quiet)} of {len(shares)} branches contribute nothing",
        (
            Evidence("smallest branch share", least.value, f"below {SILENT:g} nothing is added", least.site),
            Evidence("number of silent branches", float(len(quiet)), f"of {len(shares)}", names),
        ),
        "These branches add next to nothing to the stream, so their layers pass their input through unchanged.",
        "Look at their scale factors and output matrices. Use a scheme whose branches keep their share, such "
        "as Admin, or fewer "
        "layers.",
        site=least.site,
    )  # fmt: skip


def norm_signs(rows: Sequence[Reading]) -> Finding | None:
    """A norm over so few numbers that it returns little but their signs."""
    few = sorted((row for row in at_last(rows, "norm_width") if row.value <= FEW), key=lambda row: row.value)
    if not few:
        return None
    signs = [row for row in few if row.value <= SIGNS]
    return Finding(
        "norm_signs", "serious" if signs else "warning",
        f"{few[0].site} normalises over {few[0].value:.0f} number{'s' if few[0].value > 1 else ''}",
        (
            Evidence("numbers that the norm is over", few[0].value, f"over {SIGNS} a LayerNorm returns ±1", few[0].site),
            Evidence("number of such norms", float(len(few)), f"up to {FEW} numbers"),
        ),
        "A norm removes mean and size; of so few numbers it leaves their signs, and no gradient passes.",
        "Normalise over the model's width: check the shape given to the norm and the order of dimensions.",
        site=few[0].site,
    )  # fmt: skip


def norm_zero(rows: Sequence[Reading]) -> Finding | None:
    """A norm whose γ is 0: what follows it sees ν only. In a branch this may be meant, in the stream it is not."""
    zero = [row for row in at_last(rows, "norm_gamma") if row.value == 0.0]
    if not zero:
        return None
    output = at_last(rows, "output_token_variance")
    cut = bool(output) and output[0].value == 0.0
    evidence = [Evidence("mean |γ|", 0.0, "a norm starts with γ = 1", zero[0].site)]
    evidence += [Evidence("variance of the output over inputs", 0.0, "the model returns the same for all")] if cut else []
    return Finding(
        "norm_zero", "serious" if cut else "note", f"γ is 0 in {zero[0].site}" + f" and {len(zero) - 1} more" * (len(zero) > 1),
        tuple(evidence),
        "Its output is the same for every token" + (", and so is the model's." if cut else "; a branch starts silent."),
        "Set γ to 1." if cut else "Nothing, if the branch is meant to start at zero; otherwise set γ to 1.",
        site=zero[0].site,
    )  # fmt: skip


def outside_update(rows: Sequence[Reading]) -> Finding | None:
    """An embedding or output matrix that each update moves much further than the matrices of the branches."""
    inside = relative_updates(rows)
    last = max(inside, default=0)
    outside = [(row, ratio) for row, ratio in update_ratios(rows) if not row.stack and row.step == last]
    if not outside or not inside[last]:
        return None
    row, ratio = max(outside, key=lambda pair: pair[1])
    if ratio < MOVES or ratio < OUTSIDE * inside[last]:
        return None
    return Finding(
        "outside_update", "warning", f"each update replaces {ratio:.0%} of {row.site}",
        (
            Evidence("‖ΔW‖/‖W‖ of an update", ratio, f"the limit is {MOVES}", row.site),
            Evidence("mean ‖ΔW‖/‖W‖ in the branches", inside[last], f"the limit is {OUTSIDE:g} times that"),
        ),
        "This matrix starts so small, or gets so large a rate, that its values last only a few updates.",
        "Give it a learning rate of its own, or start it larger (and scale what it returns down).",
        site=row.site,
    )  # fmt: skip


def unwatched(rows: Sequence[Reading]) -> Finding | None:
    """Sites that show less than all of their tensors, and the findings that this weakens."""
    missing = at_last(rows, "unwatched")
    if not missing:
        return None
    sites = dict.fromkeys(row.site for row in missing)
    moments = ", ".join(sorted({row.role for row in missing}))
    return Finding(
        "unwatched", "note", f"{len(sites)} sites cannot be watched completely",
        (Evidence("number of tensors that no module shows", float(len(missing)), moments, next(iter(sites))),),
        "The model computes them inside a function, where no hook reaches them.",
        "Nothing, if other sites stand for these. Otherwise wrap the addition or the norm in a module.",
        site=next(iter(sites)),
    )  # fmt: skip


def healthy(rows: Sequence[Reading]) -> Finding | None:
    """What was compared and found in order; nothing where there was nothing to compare."""
    shares = at_last(rows, "branch_share")
    if not shares:
        return None
    evidence = [
        Evidence("Σβ² over the sub-layers", total, f"limit at the start {AMPLIFICATION:g}", stack)
        for stack, total in amplified(shares).items()
    ]
    for (stack,), own in groups([row for row in at_last(rows, "gradient") if row.index], "stack"):
        if own[-1].value > 0:
            evidence.append(
                Evidence("first / last gradient", own[0].value / own[-1].value, f"vanishing below {VANISHING}", stack)
            )
    variances = [row.value for row in at_last(rows, "token_variance")]
    if variances:
        evidence.append(Evidence("median token variance", statistics.median(variances), "1 where all tokens differ, 0 alike"))
    return Finding(
        "healthy", "healthy", "no problems found", tuple(evidence),
        "Branches, gradients, tokens and numbers are within the ranges of models that train.", "Train.",
    )  # fmt: skip
