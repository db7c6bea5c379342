"""Who is measured: dense PyTorch in both layouts, masked PyTorch, native in its storages."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from fedtiny.extras import require

from .task import Settings, Task

Step = Callable[[], object]
BYTES_A_VALUE = 12  # a float32 parameter, its gradient and its momentum


@dataclass(frozen=True)
class Contender:
    """A way to do a training step."""

    backend: Literal["dense", "masked", "native"]
    density: float = 1.0
    channels_last: bool = False
    storage: Literal["float32", "float16"] = "float32"
    recompute: bool = False
    remove_dead: bool = False
    autocast: bool = False

    @property
    def name(self) -> str:
        """For a reader; the density stands beside it."""
        said = {
            "channels last": self.channels_last,
            "bf16": self.autocast,
            "half": self.storage == "float16",
            "recompute": self.recompute,
            "no dead channels": self.remove_dead,
        }
        return ", ".join([self.backend, *(word for word, holds in said.items() if holds)])

    def step(self, task: Task) -> Step:
        """A function that does one training step; all else is done here."""
        if self.backend == "native":
            from . import native_step

            return native_step.step(task, self)
        require("torch", extra="torch")
        from . import torch_step

        return torch_step.step(task, self)

    def parameter_bytes(self, task: Task) -> int:
        """Parameters, gradients and momentum: the memory that the paper counts."""
        if self.backend != "native":
            return BYTES_A_VALUE * task.trained
        from . import native_step

        return native_step.parameter_bytes(task, self)


DENSE = (Contender("dense"), Contender("dense", channels_last=True))
BF16 = replace(DENSE[1], autocast=True)
NATIVE = (
    Contender("native"),
    Contender("native", storage="float16"),
    Contender("native", storage="float16", recompute=True),
)
NO_DEAD = Contender("native", remove_dead=True)


def field(settings: Settings) -> list[Contender]:
    """Everyone who takes part; masked PyTorch costs the same at any density, so one is enough."""
    densities = tuple(dict.fromkeys(settings.density))
    kinds = (*NATIVE, NO_DEAD) if settings.remove_dead else NATIVE
    masked = Contender("masked", densities[0], channels_last=True)
    dense = (*DENSE, BF16) if settings.bf16 else DENSE
    return [*dense, masked, *(replace(kind, density=d) for d in densities for kind in kinds)]
