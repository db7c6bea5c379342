"""The optimizers of a device, as numbers: the same for every engine."""

from dataclasses import dataclass, replace

from fedtiny.config import TrainConfig


@dataclass(frozen=True)
class Adam:
    """Adam with decay added to the gradient."""

    lr: float = 1e-3
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum; decay is added to the gradient."""

    lr: float = 0.05
    weight_decay: float = 5e-4
    momentum: float = 0.9


def optimizer(config: TrainConfig) -> Adam | Sgd:
    """The optimizer that a config names; every local training starts it anew."""
    chosen = Sgd() if config.optimizer == "sgd" else Adam()
    if config.lr is not None:
        chosen = replace(chosen, lr=config.lr)
    if config.weight_decay is not None:
        chosen = replace(chosen, weight_decay=config.weight_decay)
    return chosen
