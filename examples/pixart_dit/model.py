"""PixArt-Sigma XL's denoiser with random weights: the shapes of the published checkpoints."""

from __future__ import annotations

import torch
from diffusers import PixArtTransformer2DModel


def at_512() -> torch.nn.Module:
    """For images of 512 x 512: latents of 64 x 64."""
    return _made(64)


def at_1024() -> torch.nn.Module:
    """For images of 1024 x 1024: latents of 128 x 128."""
    return _made(128)


def _made(latent: int) -> torch.nn.Module:
    """The transformer of PixArt-alpha/PixArt-Sigma-XL-2-*-MS, by its configuration file."""
    torch.manual_seed(0)
    return PixArtTransformer2DModel(
        num_attention_heads=16,
        attention_head_dim=72,
        in_channels=4,
        out_channels=8,
        num_layers=28,
        cross_attention_dim=1152,
        attention_bias=True,
        sample_size=latent,
        patch_size=2,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        norm_eps=1e-6,
        use_additional_conditions=False,
        caption_channels=4096,
        interpolation_scale=latent // 64,
    )
