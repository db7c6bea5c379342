"""How a native network is run, what it takes, and what it gives."""

from dataclasses import dataclass
from typing import Literal

from fedtiny.native.library import OptionsRecord


@dataclass(frozen=True)
class Options:
    """How a network is run and what memory it may use for that."""

    batch: int = 64
    """Most images of a training step."""
    forward_batch: int | None = None
    """Most images of a forward pass; default: those of a training step."""
    threads: int = 1
    """Results do not depend on it."""
    storage: Literal["float32", "float16"] = "float32"
    """How activations and their gradients are held."""
    recompute: bool = False
    """Compute what only batch norm reads again in the backward pass, and do not hold it."""
    remove_dead: bool = False
    """Leave out channels that cannot reach the output; their running statistics stay."""
    optimizer: Literal["sgd", "adam"] = "adam"
    input_gradient: bool = False
    top_count: int = 0
    """Most gradients of pruned weights that a layer is asked for."""
    budget: int = 0
    """Most bytes to take; 0 is no limit."""
    lanes: int = 0
    """Images computed at once: 0 takes what suits the processor and the batch."""

    def record(self) -> OptionsRecord:
        """As the library wants it."""
        return OptionsRecord(
            batch=self.batch,
            forward_batch=self.forward_batch or self.batch,
            threads=self.threads,
            lanes=self.lanes,
            half=self.storage == "float16",
            recompute=self.recompute,
            remove_dead=self.remove_dead,
            optimizer=self.optimizer == "adam",
            input_gradient=self.input_gradient,
            top_count=self.top_count,
            budget=self.budget,
        )


@dataclass(frozen=True)
class Memory:
    """Bytes that a prepared network takes, by what they are for."""

    total: int
    parameters: int
    lists: int
    activations: int
    scratch: int


@dataclass(frozen=True)
class Score:
    """Summed loss and number of right answers."""

    loss: float
    correct: int


@dataclass(frozen=True)
class Rates:
    """What an optimizer goes by."""

    lr: float
    momentum: float = 0.9
    decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
