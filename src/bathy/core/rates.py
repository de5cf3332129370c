"""Learning rate, ε and weight decay of each parameter, where a scheme has them differ: an optimiser's groups."""

from __future__ import annotations

from bathy.core.constants import Rates
from bathy.core.stack import place
from bathy.core.transformer import Transformer


def rates(model: Transformer) -> dict[str, Rates]:
    """Multipliers for every parameter by name; all 1 unless a stack's scheme says otherwise (completep does).

    What belongs to no stack, such as the embeddings, follows the last one.
    """
    config = model.config
    result = {}
    for name, parameter in model.named_parameters():
        root = name.partition(".")[0]
        stack = root if root in config.stacks else config.stacks[-1]
        result[name] = config.scheme(stack).rates(place(config, stack), _part(name, parameter.dim()))
    return result


def _part(name: str, dimensions: int) -> str:
    if ".layers." in name:
        return "matrix" if dimensions > 1 else "vector"
    if dimensions > 1:
        return "head" if name.startswith("head") else "embedding"
    return "other"
