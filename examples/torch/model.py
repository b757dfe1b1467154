"""A small vision transformer with weights from a seed: nothing to download."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in "qkvo")
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (batch, tokens, width)."""
        inner = self.norm1(x)
        parts = (self.q(inner), self.k(inner), self.v(inner))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        read = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(read.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Patches of 8 x 8 pixels, blocks, and a head over their mean."""

    def __init__(
        self, width: int = 192, blocks: int = 4, heads: int = 3, classes: int = 100
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=8, stride=8)
        self.position = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        """image (batch, 3, 64, 64); logits (batch, classes)."""
        x = self.patches(image).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(self.norm(x).mean(1))}


def transformer() -> nn.Module:
    """The model, the same every time."""
    torch.manual_seed(0)
    return Transformer()
