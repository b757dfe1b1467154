"""Small PyTorch modules that have what large ones have: blocks, attention, 1x1 convolutions."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attention with q, k and v of one input, and a feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in "qkvo")
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (B, T, width)."""
        inner = self.norm(x)
        q, k, v = (
            f(inner).unflatten(-1, (2, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        read = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = x + self.out(read)
        return x + self.down(functional.gelu(self.up(x)))


class Net(nn.Module):
    """A stem, a 1x1 convolution, blocks, a head."""

    def __init__(self, width: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.proj = nn.Conv2d(16, width, 1)
        self.register_buffer("scale", torch.ones(width), persistent=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        """image (B, 3, H, W); logits (B, 10)."""
        x = self.proj(torch.relu(self.stem(image))).flatten(2).transpose(1, 2) * self.scale
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(x.mean(1))}


def net() -> nn.Module:
    """The net with weights that are the same every time."""
    torch.manual_seed(3)
    return Net()


class Shared(nn.Module):
    """One Linear under two names, and two that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.again = self.first
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (B, 16)."""
        return self.tied(torch.relu(self.again(torch.relu(self.first(x)))))


def shared() -> nn.Module:
    """With weights that are the same every time."""
    torch.manual_seed(5)
    return Shared()
