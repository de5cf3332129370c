"""Residual sub-layers of each architecture, by its paper and its source: the site count that tracing must find."""

from typing import Any

from torch import nn

PER_LAYER: dict[str, tuple[int, str]] = {}
"""Sub-layers that one layer more adds, for kinds that are not the usual 2 (encoder–decoders: 2 + 3)."""
IN_ALL: dict[tuple[str, str], tuple[int, str]] = {}
"""Residual sums of models whose depth cannot be chosen, where the source's additions are not the number."""


def expected_runs(library: str, name: str, model: nn.Module, layers: int, sums: int) -> tuple[int, str]:
    """How many executions of sites there are, or how many more with `layers` layers more, and how that is known."""
    if (library, name) in IN_ALL:
        return IN_ALL[library, name]
    if not layers:
        return sums, "sums of streams that its source runs"
    if library == "transformers":
        each, why = PER_LAYER.get(name) or _usual(model)
        return layers * each, why
    return sums, f"sums of streams that its source runs for {layers} layers"


def _usual(model: nn.Module) -> tuple[int, str]:
    """Attention and feed-forward for each layer of each tower; a decoder has cross-attention too."""
    config: Any = model.config
    if getattr(config, "is_encoder_decoder", False):
        return 5, "encoder 2, decoder 3 for each layer"
    towers = [key for key in ("text_config", "vision_config", "audio_config") if getattr(config, key, None) is not None]
    return 2 * max(1, len(towers)), "attention and feed-forward for each layer"
