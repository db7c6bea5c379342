"""Layers as PyTorch would not compute them: batch norm that measures, pooling in a fixed order.

And what comes before the first of them: images, normalized and augmented.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from fedtiny.data.images import input_shape
from fedtiny.data.transforms import Draws, Preparation
from fedtiny.devices.engine import MOMENTUM


def norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The batch-norm layers of a model, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}


def in_training(model: nn.Module, *, freeze_bn: bool) -> nn.Module:
    """The model in training mode, but for batch norm if that is frozen (FixBN)."""
    model.train()
    if freeze_bn:
        for norm in norms(model).values():
            norm.eval()
    return model


@torch.no_grad()
def measured_statistics(
    model: nn.Module, batches: Iterable[Tensor], passes: int
) -> dict[str, NDArray[np.float32]]:
    """Mean and variance that each batch-norm layer sees, from reset statistics.

    One pass gives every batch the same weight; more passes keep a running mean. Only batch norm
    is in training mode: dropout would add noise to what is measured.
    """
    with measuring(model, momentum=None if passes == 1 else MOMENTUM) as measured:
        for _ in range(passes):
            for batch in batches:
                model(batch)
        return {
            f"{name}.{kind}": getattr(norm, kind).cpu().numpy().copy()
            for name, norm in measured.items()
            for kind in ("running_mean", "running_var")
        }


@torch.no_grad()
def measured_moments(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, NDArray[np.float32]]:
    """E[x] and E[x^2] of what each batch-norm layer sees over all samples."""
    sums: dict[str, Tensor] = {}
    with ExitStack() as stack, measuring(model, momentum=None) as measured:
        for name, norm in measured.items():
            hook = norm.register_forward_pre_hook(partial(_add_moments, sums, name))
            stack.callback(hook.remove)
        samples = 0
        for batch in batches:
            model(batch)
            samples += len(batch)
    return {name: (total / samples).float().cpu().numpy() for name, total in sums.items()}


def _add_moments(sums: dict[str, Tensor], name: str, _: nn.Module, args: tuple[Tensor]) -> None:
    values = args[0].double()
    others = [d for d in range(values.ndim) if d != 1]
    for kind, power in (("running_mean", values), ("running_square", values**2)):
        found = power.mean(dim=others) * len(values)
        key = f"{name}.{kind}"
        sums[key] = sums[key] + found if key in sums else found


@contextmanager
def changed(objects: Iterable[object], name: str, value: Any) -> Iterator[None]:
    """Some objects have another value of an attribute within, and what they had after it."""
    before = [(each, getattr(each, name)) for each in objects]
    for each, _ in before:
        setattr(each, name, value)
    try:
        yield
    finally:
        for each, own in before:
            setattr(each, name, own)


@contextmanager
def measuring(model: nn.Module, momentum: float | None) -> Iterator[dict[str, _BatchNorm]]:
    """Batch norm measures from reset statistics, the rest of the model does not train."""
    model.eval()
    measured = norms(model)
    with changed(measured.values(), "momentum", momentum):
        for norm in measured.values():
            norm.reset_running_stats()
            norm.train()
        yield measured


def frozen_statistics(model: nn.Module) -> AbstractContextManager[None]:
    """Batch norm uses the batch's own statistics and leaves its running ones alone."""
    return changed(norms(model).values(), "track_running_stats", False)


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch norm compute as in training, with running statistics as they are and no dropout."""
    model.eval()
    with changed(norms(model).values(), "training", True), frozen_statistics(model):
        yield


def least_epsilon(model: nn.Module, epsilon: float) -> AbstractContextManager[None]:
    """Batch norm computes with this epsilon at least."""
    smaller = [norm for norm in norms(model).values() if norm.eps < epsilon]
    return changed(smaller, "eps", epsilon)


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

    def answer_for(self, _: nn.Module, args: Any, named: dict[str, Any], __: Tensor) -> Any:
        """As a hook of another layer: what this one gives in place of that one."""
        return self(*args, **named)


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
        module.register_forward_hook(pool.answer_for, with_kwargs=True)
        for module, pool in pools.items()
        if pool
    ]


class Transform(Preparation):
    """The preparation of images, a batch at a time with PyTorch."""

    def normalise(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] as float32 with the data set's mean at 0 and its std at 1.

        Sequences are [N, C, T] then, and rows of a table [N, F].
        """
        std = torch.tensor(self.std, device=images.device)[:, None, None]
        mean = torch.tensor(self.mean, device=images.device)[:, None, None]
        unit = 1.0 if images.is_floating_point() else 255.0
        normal = images.to(torch.float32, copy=True).mul_(1 / (unit * std)).sub_(mean / std)
        return normal.reshape(len(images), *input_shape(self.layout, images.shape[1:]))

    def augment(self, images: Tensor, draws: Draws) -> Tensor:
        """Crop, flip, normalize and cut out, each sample by its own draws."""
        height, width = images.shape[2:]
        moved = images
        if (pixels := self.kept_pixels(draws, height, width)) is not None:
            padded = torch.nn.functional.pad(images, (self.crop_padding,) * 4).flatten(2)
            index = torch.from_numpy(pixels).to(images.device).expand(-1, images.shape[1], -1)
            moved = padded.gather(2, index).view(images.shape)
        normal = self.normalise(moved)
        if (holes := self.holes(draws, height, width)) is not None:
            normal.mul_(torch.from_numpy(~holes).to(images.device))
        return normal
