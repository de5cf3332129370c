# mypy: disable-error-code="no-untyped-call, return-value, import-not-found, arg-type, attr-defined"
"""What the zoo holds: every class of the installed libraries that builds small with random weights, and options of others."""

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from bathy.lab.bench.optional import torchvision_ready
from bathy.lab.bench.shrink import HEADS, MOST_PARAMETERS, VOCAB, WIDTH, Excluded, ids, noise, of_transformers, weigh_
from bathy.lab.bench.zoo import Entry, timm, transformers


def torchvision() -> Iterator[Entry]:
    """Every classifier; the smallest of each family."""
    torchvision_ready()
    import torchvision

    def build(name: str, depth: int) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        model = torchvision.models.get_model(name, weights=None, num_classes=5)
        if sum(p.numel() for p in model.parameters()) > 8 * MOST_PARAMETERS:
            raise Excluded("has more than 64 million parameters")
        size = 224 if "vit" in name else 96 if "inception" in name else 64
        return model, noise(2, 3, size, size)

    for name in torchvision.models.list_models(torchvision.models):
        yield name, "torchvision", partial(build, name), False


X_OPTIONS: dict[str, dict[str, Any]] = {
    "default": {}, "post-norm": {"pre_norm": False}, "rmsnorm": {"use_rmsnorm": True},
    "simple rmsnorm": {"use_simple_rmsnorm": True},
    "scalenorm": {"use_scalenorm": True}, "sandwich": {"sandwich_norm": True}, "glu": {"ff_glu": True},
    "swish": {"ff_swish": True},
    "relu squared": {"ff_relu_squared": True}, "no bias": {"ff_no_bias": True}, "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True}, "t5 bias": {"rel_pos_bias": True}, "dynamic bias": {"dynamic_pos_bias": True},
    "gated residual": {"gate_residual": True}, "scale residual": {"scale_residual": True}, "macaron": {"macaron": True},
    "talking heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True}, "qk norm": {"attn_qk_norm": True},
    "one kv head": {"attn_one_kv_head": True}, "kv heads": {"attn_kv_heads": 2}, "memory": {"attn_num_mem_kv": 4},
    "value gate": {"attn_gate_values": True}, "attn on attn": {"attn_on_attn": True}, "residual attn": {"residual_attn": True},
    "shift tokens": {"shift_tokens": 1}, "layer scale": {"use_layerscale": True}, "flash": {"attn_flash": True},
    "layer dropout": {"layer_dropout": 0.3}, "post-norm, glu": {"pre_norm": False, "ff_glu": True},
    "post-norm, rmsnorm": {"pre_norm": False, "use_rmsnorm": True}, "weight tied": {"weight_tie_layers": True},
    "ff post act ln": {"ff_post_act_ln": True}, "resi dual": {"resi_dual": True},
    "residual attn, post-norm": {"residual_attn": True, "pre_norm": False},
}  # fmt: skip


def x_transformers() -> Iterator[Entry]:
    """Options of its encoder and decoder."""

    def build(kind: str, options: dict[str, Any], depth: int) -> tuple[nn.Module, Any]:
        with warnings.catch_warnings(action="ignore"):
            import x_transformers as library
        torch.manual_seed(0)
        try:
            layers = getattr(library, kind)(dim=WIDTH, depth=depth, heads=HEADS, attn_dim_head=8, **options)
        except (TypeError, AssertionError) as error:
            raise Excluded(f"cannot be built: {error}") from error
        return library.TransformerWrapper(num_tokens=VOCAB, max_seq_len=16, attn_layers=layers), (ids(),)

    for kind in ("Encoder", "Decoder"):
        for name, options in X_OPTIONS.items():
            yield f"{kind}, {name}", "x-transformers", partial(build, kind, options), name != "weight tied"


def diffusers() -> Iterator[Entry]:
    """Transformers and U-Nets of diffusion models."""
    import diffusers as library

    def dit(depth: int) -> tuple[nn.Module, Any]:
        model = library.DiTTransformer2DModel(
            num_attention_heads=2,
            attention_head_dim=8,
            in_channels=4,
            num_layers=depth,
            sample_size=8,
            patch_size=2,
            norm_num_groups=4,
        )
        return weigh_(model), {
            "hidden_states": noise(2, 4, 8, 8),
            "timestep": torch.tensor([1, 2]),
            "class_labels": torch.tensor([1, 2]),
        }

    def two_d(depth: int) -> tuple[nn.Module, Any]:
        model = library.Transformer2DModel(
            num_attention_heads=2,
            attention_head_dim=8,
            in_channels=32,
            num_layers=depth,
            cross_attention_dim=16,
            norm_num_groups=4,
        )
        return weigh_(model), {"hidden_states": noise(2, 32, 4, 4), "encoder_hidden_states": noise(2, 5, 16)}

    def pixart(depth: int) -> tuple[nn.Module, Any]:
        model = library.PixArtTransformer2DModel(
            num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=depth, sample_size=8,
            cross_attention_dim=16, caption_channels=16,
        )  # fmt: skip
        return weigh_(model), {
            "hidden_states": noise(2, 4, 8, 8), "timestep": torch.tensor([1, 2]), "encoder_hidden_states": noise(2, 5, 16),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        }  # fmt: skip

    def sd3(depth: int) -> tuple[nn.Module, Any]:
        model = library.SD3Transformer2DModel(
            sample_size=8, patch_size=2, in_channels=4, num_layers=depth, attention_head_dim=8, num_attention_heads=2,
            joint_attention_dim=16, caption_projection_dim=16, pooled_projection_dim=16, out_channels=4,
        )  # fmt: skip
        return weigh_(model), {
            "hidden_states": noise(2, 4, 8, 8), "encoder_hidden_states": noise(2, 5, 16), "pooled_projections": noise(2, 16),
            "timestep": torch.tensor([1, 2]),
        }  # fmt: skip

    def flux(depth: int) -> tuple[nn.Module, Any]:
        model = library.FluxTransformer2DModel(
            in_channels=4, num_layers=2, num_single_layers=depth, attention_head_dim=16, num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
        )  # fmt: skip
        return weigh_(model), {
            "hidden_states": noise(1, 16, 4), "encoder_hidden_states": noise(1, 5, 32), "pooled_projections": noise(1, 32),
            "timestep": torch.tensor([1.0]), "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(5, 3),
        }  # fmt: skip

    def unet(depth: int) -> tuple[nn.Module, Any]:
        model = library.UNet2DConditionModel(
            sample_size=8, block_out_channels=(8, 16), layers_per_block=2, cross_attention_dim=16, attention_head_dim=4,
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip
        return model, {"sample": noise(2, 4, 8, 8), "timestep": torch.tensor(1), "encoder_hidden_states": noise(2, 5, 16)}

    def plain_unet(depth: int) -> tuple[nn.Module, Any]:
        model = library.UNet2DModel(
            sample_size=8, in_channels=3, out_channels=3, layers_per_block=2, block_out_channels=(8, 16), norm_num_groups=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=4,
        )  # fmt: skip
        return model, {"sample": noise(2, 3, 8, 8), "timestep": torch.tensor(1)}

    def prior(depth: int) -> tuple[nn.Module, Any]:
        model = library.PriorTransformer(
            num_attention_heads=2, attention_head_dim=8, num_layers=depth, embedding_dim=16, num_embeddings=5
        )
        return weigh_(model), {
            "hidden_states": noise(2, 16), "timestep": torch.tensor(1), "proj_embedding": noise(2, 16),
            "encoder_hidden_states": noise(2, 5, 16),
        }  # fmt: skip

    def vae(depth: int) -> tuple[nn.Module, Any]:
        return library.AutoencoderKL(block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
                                     up_block_types=("UpDecoderBlock2D",) * 2), noise(2, 3, 16, 16)  # fmt: skip

    chosen = {"DiT": dit, "Transformer2D": two_d, "PixArt": pixart, "SD3": sd3, "Flux": flux, "Prior": prior}
    for name, build in chosen.items():
        yield name, "diffusers", build, True
    for name, build in {"UNet2DCondition": unet, "UNet2D": plain_unet, "AutoencoderKL": vae}.items():
        yield name, "diffusers", build, False


def peft() -> Iterator[Entry]:
    """Adapters of several kinds on BERT and on Llama."""
    settings: dict[str, dict[str, Any]] = {
        "LoraConfig": {"r": 4}, "LoHaConfig": {"r": 4}, "LoKrConfig": {"r": 4}, "IA3Config": {},
        "OFTConfig": {"oft_block_size": 4, "r": 0},
        "AdaLoraConfig": {"r": 4, "total_step": 10}, "VeraConfig": {"r": 4}, "BOFTConfig": {"boft_block_size": 4},
        "FourierFTConfig": {"n_frequency": 8},
        "HRAConfig": {"r": 4}, "LNTuningConfig": {},
    }  # fmt: skip
    targets = {"bert": ["query", "value"], "llama": ["q_proj", "v_proj"]}

    def build(kind: str, name: str, depth: int) -> tuple[nn.Module, Any]:
        import peft as library

        base = of_transformers(kind, depth)
        options = dict(settings[name]) | ({} if name == "LNTuningConfig" else {"target_modules": targets[kind]})
        if name == "IA3Config":
            options["feedforward_modules"] = []
        try:
            return library.get_peft_model(base, getattr(library, name)(**options)), {"input_ids": ids()}
        except (TypeError, ValueError, AttributeError, ImportError) as error:
            raise Excluded(f"cannot be built: {error}") from error

    for kind in targets:
        for name in settings:
            yield f"{name} on {kind}", "peft", partial(build, kind, name), True


def pytorch() -> Iterator[Entry]:
    """torch's own Transformer, in its options."""

    def encoder(options: dict[str, Any], depth: int) -> tuple[nn.Module, Any]:
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True, **options)
        return weigh_(nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)), noise(2, 8, WIDTH)

    def decoder(options: dict[str, Any], depth: int) -> tuple[nn.Module, Any]:
        layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=True, **options)
        return weigh_(nn.TransformerDecoder(layer, depth)), (noise(2, 8, WIDTH), noise(2, 5, WIDTH))

    def pair(options: dict[str, Any], depth: int) -> tuple[nn.Module, Any]:
        model = nn.Transformer(WIDTH, HEADS, depth, depth, 64, batch_first=True, **options)
        return weigh_(model), (noise(2, 8, WIDTH), noise(2, 5, WIDTH))

    for name, options in {
        "": {},
        ", norm_first": {"norm_first": True},
        ", gelu": {"activation": "gelu"},
        ", no bias": {"bias": False},
    }.items():
        yield f"TransformerEncoder{name}", "torch", partial(encoder, options), True
        yield f"TransformerDecoder{name}", "torch", partial(decoder, options), True
        yield f"Transformer{name}", "torch", partial(pair, options), True


LIBRARIES = {
    "torch": pytorch, "x-transformers": x_transformers, "peft": peft, "diffusers": diffusers, "timm": timm,
    "torchvision": torchvision, "transformers": transformers,
}  # fmt: skip


def entries(library: str) -> Iterator[Entry]:
    """The specimens of a library; none where it is not installed, which is said."""
    try:
        yield from LIBRARIES[library]()
    except ImportError as error:
        print(f"{library} is unavailable: {error}")
