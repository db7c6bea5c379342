"""Measuring batch-norm statistics with PyTorch (Alg. 1, line 5)."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedtiny.devices.engine import MOMENTUM


def norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The batch-norm layers of a model, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}


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
def measuring(model: nn.Module, momentum: float | None) -> Iterator[dict[str, _BatchNorm]]:
    """Batch norm measures from reset statistics, the rest of the model does not train."""
    model.eval()
    measured = norms(model)
    before = {name: norm.momentum for name, norm in measured.items()}
    for norm in measured.values():
        norm.reset_running_stats()
        norm.momentum = momentum
        norm.train()
    try:
        yield measured
    finally:
        for name, norm in measured.items():
            norm.momentum = before[name]


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Batch norm uses the batch's own statistics and leaves its running ones alone."""
    tracked = list(norms(model).values())
    for norm in tracked:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracked:
            norm.track_running_stats = True


@contextmanager
def least_epsilon(model: nn.Module, epsilon: float) -> Iterator[None]:
    """Batch norm computes with this epsilon at least."""
    before = {norm: norm.eps for norm in norms(model).values()}
    for norm, own in before.items():
        norm.eps = max(own, epsilon)
    try:
        yield
    finally:
        for norm, own in before.items():
            norm.eps = own
