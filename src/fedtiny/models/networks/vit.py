"""A tiny vision transformer."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedtiny.errors import ModelError

Shape = tuple[int, ...]
PATCHES = 8  # along the shorter side of an image
HEAD = 32  # values of an attention head
BLOCKS = 4


class Attention(nn.Module):
    """Self-attention of several heads over tokens [N, T, D]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._split(self.query(x)), self._split(self.key(x)), self.value(x)
        mixed = F.scaled_dot_product_attention(query, key, self._split(value))
        return self.project(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, x: Tensor) -> Tensor:
        """Tokens by head: [N, heads, T, D / heads]."""
        by_head: Tensor = x.unflatten(2, (self.heads, self.head)).transpose(1, 2)
        return by_head


class Block(nn.Module):
    """Attention, then a small network for each token, both beside an identity."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class VitTiny(nn.Module):
    """Patches of an eighth of the image, learned positions, four blocks, the mean of all tokens."""

    def __init__(self, shape: Shape, classes: int, width: int) -> None:
        super().__init__()
        channels, *sides = shape
        patch, heads = max(1, min(sides) // PATCHES), max(1, width // HEAD)
        if width % heads:
            raise ModelError(
                f"vit_tiny cannot split a width of {width} into {heads} heads of attention; take a "
                f"--width that is a multiple of {HEAD}"
            )
        tokens = (sides[0] // patch) * (sides[1] // patch)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros(1, tokens, width))
        nn.init.normal_(self.positions, std=0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        x = self.norm(self.blocks(x))
        return self.head(x.mean(dim=1))  # type: ignore[no-any-return]
