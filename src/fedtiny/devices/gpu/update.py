"""The optimizer's step on one vector, with its state in place."""

import torch
from torch import Tensor

from fedtiny.devices.optimizer import Adam, Sgd


class Update:
    """Adam or SGD as PyTorch computes them, on tensors that stay where they are.

    The number of steps is a tensor too, so that a captured step counts on.
    """

    def __init__(self, rule: Adam | Sgd, vector: Tensor) -> None:
        self.rule = rule
        self.first = torch.zeros_like(vector)
        self.second = torch.zeros_like(vector) if isinstance(rule, Adam) else torch.empty(0)
        self.steps = torch.zeros(1, dtype=torch.float64, device=vector.device)

    def reset(self) -> None:
        """Begin a local training."""
        for tensor in (self.first, self.second, self.steps):
            tensor.zero_()

    def __call__(self, vector: Tensor, gradient: Tensor) -> None:
        gradient = gradient + self.rule.weight_decay * vector
        self.steps += 1
        if isinstance(self.rule, Sgd):
            self.first.mul_(self.rule.momentum).add_(gradient)
            vector.sub_(self.rule.lr * self.first)
            return
        first, second = self.rule.betas
        self.first.lerp_(gradient, 1 - first)
        self.second.mul_(second).add_((1 - second) * gradient * gradient)
        scale = torch.sqrt(1 - second**self.steps).float()
        size = (self.rule.lr / (1 - first**self.steps)).float()
        vector.sub_(size * self.first / (self.second.sqrt() / scale + self.rule.eps))
