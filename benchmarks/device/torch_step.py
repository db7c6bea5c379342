"""A training step in PyTorch: dense, or dense tensors under a mask."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from fedtiny import models

from .contender import Contender, Step
from .task import CLASSES, DECAY, LR, MOMENTUM, SHAPE, Task

Masks = list[tuple[nn.Parameter, torch.Tensor]]


def step(task: Task, contender: Contender) -> Step:
    """SGD with momentum; pruned weights get no gradient."""
    torch.set_num_threads(task.threads)
    layout = torch.channels_last if contender.channels_last else torch.contiguous_format
    network = models.build(task.model, SHAPE, CLASSES, width=task.width)
    network = network.to(memory_format=layout)  # type: ignore[call-overload]
    images, labels = map(torch.from_numpy, task.batch())
    images = images.to(memory_format=layout)
    masks = _masked(network, task, contender.density) if contender.backend == "masked" else []
    sgd = torch.optim.SGD(
        network.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, fused=True
    )

    def train() -> None:
        sgd.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=contender.autocast):
            loss = F.cross_entropy(network(images), labels)
        loss.backward()
        for parameter, mask in masks:
            assert parameter.grad is not None
            parameter.grad.mul_(mask)
        sgd.step()

    return train


def _masked(network: nn.Module, task: Task, density: float) -> Masks:
    """Set pruned weights to zero; each mask lies in memory as its weight does."""
    parameters, masks = dict(network.named_parameters()), []
    for name, kept in task.mask(density).items():
        flat = torch.zeros(task.prunable[name])
        flat[torch.from_numpy(kept.astype(np.int64))] = 1
        mask = torch.empty_like(parameters[name]).copy_(flat.view(parameters[name].shape))
        parameters[name].data.mul_(mask)
        masks.append((parameters[name], mask.detach()))
    return masks
