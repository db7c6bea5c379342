"""Adaptive average pooling as two products, whose gradients add in a fixed order."""

import torch
from torch import Tensor, nn

from fedtiny.devices.gpu.stand_ins import replaced


class SteadyPool(nn.Module):
    """What nn.AdaptiveAvgPool2d gives, whose own gradient CUDA adds up in any order."""

    def __init__(self, rows: int | None, columns: int | None) -> None:
        super().__init__()
        self.rows = rows
        self.columns = columns

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        with torch.autocast(x.device.type, enabled=False):
            down = _averaging(height, self.rows or height, x.device)
            across = _averaging(width, self.columns or width, x.device)
            return (down @ x.float() @ across.T).to(x.dtype)


def _averaging(size: int, parts: int, device: torch.device) -> Tensor:
    """A row for each part of so many values: its share of each of them."""
    first = torch.arange(parts, device=device)[:, None]
    value = torch.arange(size, device=device)
    inside = (value * parts < (first + 1) * size) & ((value + 1) * parts > first * size)
    return inside / inside.sum(1, keepdim=True)


def with_steady_pools(model: nn.Module) -> nn.Module:
    """The same model with every adaptive average pooling in a fixed order."""
    return replaced(model, lambda _, module: _steady(module))


def _steady(module: nn.Module) -> nn.Module | None:
    if type(module) is not nn.AdaptiveAvgPool2d:  # a subclass may do something else
        return None
    size = module.output_size
    rows, columns = (size, size) if isinstance(size, int | None) else size
    alone = (rows, columns) == (1, 1)  # which PyTorch computes as a mean
    return None if alone else SteadyPool(rows, columns)
