"""Adaptive average pooling as two products, whose gradients add in a fixed order."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class DeterministicAdaptivePool(nn.Module):
    """What nn.AdaptiveAvgPool2d gives, whose own gradient CUDA adds up in any order."""

    def __init__(self, rows: int | None, columns: int | None) -> None:
        super().__init__()
        self.rows = rows
        self.columns = columns

    def forward(self, input: Tensor) -> Tensor:
        x = input  # the name by which networks may give it
        height, width = x.shape[-2:]
        with torch.autocast(x.device.type, enabled=False):
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            down = _averaging(height, self.rows or height, wide)
            across = _averaging(width, self.columns or width, wide)
            return (down @ wide @ across.T).to(x.dtype)


def _averaging(size: int, parts: int, like: Tensor) -> Tensor:
    """A row for each part of so many values: its share of each of them."""
    first = torch.arange(parts, device=like.device)[:, None]
    value = torch.arange(size, device=like.device)
    inside = (value * parts < (first + 1) * size) & ((value + 1) * parts > first * size)
    return inside.to(like.dtype) / inside.sum(1, keepdim=True)


def deterministic_pool(module: nn.Module) -> DeterministicAdaptivePool | None:
    """What gives the same as this layer in a fixed order, where the layer itself would not."""
    if type(module) is not nn.AdaptiveAvgPool2d:  # a subclass may do something else
        return None
    size = module.output_size
    rows, columns = (size, size) if isinstance(size, int | None) else size
    alone = (rows, columns) == (1, 1)  # which PyTorch computes as a mean
    return None if alone else DeterministicAdaptivePool(rows, columns)


def deterministic_pools(model: nn.Module) -> list[RemovableHandle]:
    """Let deterministic pools answer for a model's layers, which stay, until they are let go."""
    pools = {module: deterministic_pool(module) for module in model.modules()}
    return [
        module.register_forward_hook(partial(_answer, pool), with_kwargs=True)
        for module, pool in pools.items()
        if pool
    ]


def _answer(
    pool: DeterministicAdaptivePool, _: nn.Module, args: Any, named: dict[str, Any], __: Any
) -> Any:
    return pool(*args, **named)
