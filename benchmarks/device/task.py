"""What every contender of a benchmark trains, in a form that a fresh process can read."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny import models
from fedtiny.config.checks import MOST
from fedtiny.errors import ConfigError

SHAPE, CLASSES = (3, 32, 32), 10
LR, MOMENTUM, DECAY = 0.01, 0.9, 5e-4


@dataclass(frozen=True)
class Settings:
    """What is measured, and how often."""

    model: str = "resnet18"
    """Network: see `fedtiny list models`."""
    density: tuple[float, ...] = (0.1, 0.05, 0.01, 0.005, 0.001)
    """Share of weights that native devices keep, in every layer."""
    width: int | None = None
    """Channels of the network's first layer; default: the network's own."""
    batch_size: int = 64
    """Images in a training step, of 3x32x32."""
    threads: int = 2
    """Threads of each contender."""
    rounds: int = 5
    """Steps of each contender that are timed."""
    memory: bool = True
    """Measure resident memory too, in a process for each."""
    remove_dead: bool = False
    """Measure native without dead channels as well."""
    bf16: bool = False
    """Measure dense PyTorch under autocast to bfloat16 as well; ratios stay against float32."""

    def __post_init__(self) -> None:
        models.kind(self.model)
        for name, least in (("width", 1), ("batch_size", 2), ("threads", 1), ("rounds", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} must be at least {least}, got {value}")
            if value is not None and value > MOST.get(name, value):
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} must be at most {MOST[name]:,}, got {value:,}")
        if not self.density:
            raise ConfigError("--density needs at least one density")
        for density in self.density:
            if not 0 < density <= 1:
                raise ConfigError(f"--density must lie in (0, 1], got {density:g}")


@dataclass(frozen=True)
class Task:
    """A network and a batch: SGD with momentum on images of noise."""

    model: str
    width: int | None
    batch_size: int
    threads: int
    graph: list[dict[str, Any]]
    """The network as the native library wants it."""
    prunable: dict[str, int]
    """Sizes of the weights that a mask covers."""
    dense: dict[str, int]
    """Sizes of all other tensors, batch-norm statistics included."""

    @classmethod
    def of(cls, settings: Settings) -> "Task":
        """The task that settings ask for; the one place that needs torch to say what it is."""
        network = models.build(settings.model, SHAPE, CLASSES, width=settings.width)
        from fedtiny.graph.trace import trace

        graph = trace(network, SHAPE)
        param_spec = models.analyze(network, SHAPE, graph)
        return cls(
            model=settings.model,
            width=settings.width,
            batch_size=settings.batch_size,
            threads=settings.threads,
            graph=graph.to_plain(),
            prunable=dict(param_spec.sizes),
            dense=dict(param_spec.dense_sizes),
        )

    @property
    def trained(self) -> int:
        """Number of values that dense training updates."""
        others = (size for name, size in self.dense.items() if "running" not in name)
        return sum(self.prunable.values()) + sum(others)

    def counts(self, density: float) -> dict[str, int]:
        """Kept weights by layer: the same share of each, at least one."""
        return {name: max(1, round(size * density)) for name, size in self.prunable.items()}

    def mask(self, density: float) -> dict[str, NDArray[np.int32]]:
        """Sorted random positions of the kept weights by layer."""
        draw = np.random.default_rng(0)
        return {
            name: np.sort(draw.choice(self.prunable[name], count, replace=False)).astype(np.int32)
            for name, count in self.counts(density).items()
        }

    def batch(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Images and labels."""
        draw = np.random.default_rng(1)
        images = draw.standard_normal((self.batch_size, *SHAPE), dtype=np.float32)
        return images, draw.integers(0, CLASSES, self.batch_size)
