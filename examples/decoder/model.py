"""A small byte-level decoder: three blocks of attention with rotary positions, and SwiGLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention, silu

WIDTH, BLOCKS, HEADS, INNER, CONTEXT = 256, 3, 8, 512, 256
DROPOUT = 0.2


class RMSNorm(nn.Module):  # type: ignore[misc]
    """Root mean square normalization over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Block(nn.Module):  # type: ignore[misc]
    """Causal attention, then a gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_norm, self.ffn_norm = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        batch, length, _ = x.shape
        h = self.attn_norm(x)
        q, k, v = (
            project(h).view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = scaled_dot_product_attention(
            rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True
        )
        y = self.o_proj(y.transpose(1, 2).reshape(batch, length, WIDTH))
        x = x + dropout(y, DROPOUT, self.training)
        h = self.ffn_norm(x)
        y = self.down_proj(silu(self.gate_proj(h)) * self.up_proj(h))
        return x + dropout(y, DROPOUT, self.training)


class Decoder(nn.Module):  # type: ignore[misc]
    """Bytes to the logits of each next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, length) int64 to (batch, length, 256) logits."""
        half = WIDTH // HEADS // 2
        places = torch.arange(ids.shape[1], device=ids.device)
        frequencies = 1e4 ** (-torch.arange(half, device=ids.device) / half)
        angles = torch.outer(places, frequencies)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        logits: Tensor = self.head(self.norm(x))
        return logits


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021, arXiv 2104.09864)."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
