"""Residual sub-layers of each architecture, by its paper and its source: the site count that tracing must find."""

from typing import Any

from torch import nn

PARALLEL = (
    "aya_vision", "codegen", "cohere", "cohere2", "cohere2_moe", "cohere2_vision", "falcon", "gpt_neox", "gptj", "phi",
)  # fmt: skip
MAMBA = ("falcon_mamba", "mamba", "mamba2")
CONFORMERS = (
    "lasr_ctc", "lasr_encoder", "nemotron3_5_asr", "nemotron_asr_streaming", "nemotron_asr_streaming_encoder",
    "parakeet_ctc", "parakeet_encoder", "parakeet_rnnt", "parakeet_tdt", "wav2vec2-conformer",
)  # fmt: skip
CONFORMER_PAIRS = ("canary", "cohere_asr")
TWO_TOWERS = (
    "aimv2", "altclip", "blip", "chinese_clip", "clip", "clipseg", "groupvit", "metaclip_2", "owlv2", "owlvit",
    "siglip", "siglip2", "vision-text-dual-encoder",
)  # fmt: skip
NESTED = ("mobilebert",)
"""Models each of whose layers has a stack of its own within a branch of the outer stack."""
PER_LAYER: dict[str, dict[str, tuple[int, str]]] = {
    "torch": {
        "TransformerDecoder": (3, "self-attention, cross-attention, feed-forward"),
        "Transformer": (5, "encoder 2, decoder 3"),
    },
    "x-transformers": {"macaron": (3, "feed-forward, attention, feed-forward")},
    "diffusers": {
        "Transformer2D": (3, "self-attention, cross-attention, feed-forward"),
        "PixArt": (3, "self-attention, cross-attention, feed-forward"),
        "SD3": (4, "attention and feed-forward of two streams"),
        "Flux": (1, "attention and feed-forward in parallel"),
    },
    "transformers": {
        **dict.fromkeys(PARALLEL, (1, "attention and feed-forward in parallel")),
        **dict.fromkeys(MAMBA, (1, "one mixer")),
        "mobilebert": (
            5,
            "four feed-forwards on a narrow stream, and the wide stream round them; attention's shortcut is projected",
        ),
        "pegasus_x": (7, "encoder 4: attention and feed-forward of tokens and of global tokens; decoder 3"),
        "hrm_text": (16, "attention and feed-forward, 2 × (3 + 1) times over the same layers"),
        "mra": (1, "feed-forward; attention gives zeros without its CUDA kernel"),
        "rf_detr": (5, "backbone 2, decoder 3"),
        "swiftformer": (1, "a layer more is one convolutional block"),
        "timesformer": (3, "attention in time, attention in space, feed-forward"),
        **dict.fromkeys(CONFORMERS, (4, "feed-forward, attention, convolution, feed-forward")),
        **dict.fromkeys(CONFORMER_PAIRS, (7, "conformer 4 (feed-forward, attention, convolution, feed-forward), decoder 3")),
        "mllama": (1, "of the two layers more, one is cross-attention, which does not run without pictures"),
        **dict.fromkeys(TWO_TOWERS, (4, "attention and feed-forward of each of two towers")),
    },
}
"""Sub-layers that one layer more adds, where that is not attention and feed-forward (encoder–decoders: 2 + 3)."""
IN_ALL: dict[tuple[str, str], tuple[int, str]] = {
    ("transformers", "albert"): (10, "5 times the same attention and feed-forward"),
    ("timm", "coat_tiny"): (
        78,
        "8 serial blocks of 3, 6 parallel blocks of 3 for each of 3 scales; other scales join branches",
    ),
    ("timm", "regnety_040_sgn"): (18, "22 blocks, of which the first of each of 4 stages projects its shortcut"),
    ("timm", "sam2_hiera_tiny"): (21, "12 blocks of attention and feed-forward, of which 3 project their first shortcut"),
    ("timm", "xception41"): (8, "12 blocks with a shortcut, of which 4 project it"),
    ("timm", "csatv2"): (
        50,
        "14 convolutional blocks, within each of which a small Transformer has 2, and 4 Transformer blocks of 2",
    ),
    ("timm", "dla34"): (8, "12 blocks, of which the first of each of 4 levels projects its shortcut"),
    ("timm", "dpn68"): (18, "22 blocks, of which the first of each of 4 stages projects its shortcut"),
    ("timm", "edgenext_small"): (18, "18 blocks; in 3 of them attention over channels lies within the branch"),
    ("timm", "efficientformerv2_s0"): (
        19,
        "10 convolutional blocks, 4 of attention and feed-forward, and a query: pooled, plus a convolution",
    ),
    ("timm", "hiera_tiny_224"): (21, "12 blocks of attention and feed-forward, of which 3 project their first shortcut"),
    ("timm", "hrnet_w18_small"): (18, "4, 6 and 8 blocks of three stages; sums over scales add one stream to another"),
    ("timm", "lcnetv2_small"): (1, "one block has a shortcut; the other sums are of parallel convolutions"),
    ("timm", "test_maxvit"): (17, "8 × attention and feed-forward; of 4 convolutional blocks 3 project their shortcut"),
    ("timm", "repghostnet_050"): (11, "16 blocks, of which 5 project their shortcut"),
    ("timm", "res2net50d"): (12, "16 blocks, of which 4 project their shortcut; sums within a block add to groups of channels"),
    ("timm", "resnetv2_18"): (5, "8 blocks, of which 3 project their shortcut"),
    ("timm", "skresnet18"): (5, "8 blocks, of which 3 project their shortcut"),
    ("timm", "vitamin_small_224"): (
        33,
        "14 × attention and feed-forward; of 6 convolutional blocks one projects its shortcut",
    ),
    ("timm", "fastvit_s12"): (24, "12 blocks: mixer and feed-forward; sums within a block of convolutions merge into one"),
}
"""Residual sums of models whose depth cannot be chosen, where the source's additions are not the number."""


def expected_runs(row: dict[str, Any]) -> tuple[int, str]:
    """How many executions of sites a specimen has, or how many more with its `layers` layers more, and how that is known."""
    library, name, layers = row["library"], row["name"], row["layers"]
    if (library, name) in IN_ALL:
        return IN_ALL[library, name]
    if not layers:
        return row["sums"], "sums of two streams, as its source runs them"
    each, why = _known(library, name) or (row["usual"] if row["usual"][0] == 5 else (2, "attention and feed-forward"))
    return layers * each, f"{each} for each layer: {why}"


def _known(library: str, name: str) -> tuple[int, str] | None:
    """The architecture's own number, by the model's name without its options, or by an option."""
    table = PER_LAYER.get(library, {})
    plain, _, option = name.partition(", ")
    return table.get(name) or table.get(plain) or table.get(option)


def usual(library: str, model: nn.Module) -> tuple[int, str]:
    """Attention and feed-forward for each layer; a decoder beside an encoder has cross-attention too."""
    config: Any = getattr(model, "config", None)
    if library == "transformers" and getattr(config, "is_encoder_decoder", False):
        return 5, "encoder 2, decoder 3"
    return 2, "attention and feed-forward"
