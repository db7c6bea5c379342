"""A network small enough to count by hand, and configs for it."""

from torch import nn

from fedtiny.config import (
    Config,
    DataConfig,
    PruningConfig,
    SelectionConfig,
    TrainConfig,
)
from fedtiny.cost import Workload

SHAPE = (1, 4, 4)
CLASSES = 3
GIVEN = {"shape": SHAPE, "classes": CLASSES, "samples": 20}


def tiny_network():
    """Weights 2x1x3x3, 4x2x1x1, 5x64 and 3x5; of 338 prunable weights 8 lie in the convolution."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Conv2d(2, 4, 1, bias=False),
        nn.Flatten(),
        nn.Linear(64, 5),
        nn.Linear(5, 3),
    )


def config(method="fl_pqsu", density=0.5, **changes):
    """Two epochs, batches of 8, four candidates, an adjustment in rounds 0, 2 and 4."""
    return Config(
        memory_model=changes.pop("memory_model", "paper"),
        method=method,
        density=density,
        data=DataConfig(name="cifar10"),
        train=TrainConfig(local_epochs=2, batch_size=8, optimizer=changes.pop("optimizer", "adam")),
        selection=SelectionConfig(
            **{"pool_size": 4, "development_ratio": 0.25} | changes.pop("selection", {})
        ),
        pruning=PruningConfig(**{"delta_r": 2, "r_stop": 8} | changes.pop("pruning", {})),
        **changes,
    )


def workload(method="fl_pqsu", density=0.5, **changes):
    """What the tiny network asks of a device with 20 samples."""
    return Workload.of(config(method, density, **changes), model=tiny_network(), **GIVEN)
