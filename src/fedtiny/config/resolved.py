"""Configs in which nothing is left open that a computation needs."""

from dataclasses import dataclass, field
from typing import Literal

from fedtiny.config.settings import Config, PruningConfig, SelectionConfig, TrainConfig
from fedtiny.config.sizes import parse_size


@dataclass(frozen=True, eq=False)
class ResolvedTrain(TrainConfig):
    """Local training; a rate left open is the optimizer's own, whichever that is."""

    local_epochs: int = field(kw_only=True)
    batch_size: int = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class ResolvedSelection(SelectionConfig):
    """Coarse pruning."""

    pool_size: int | Literal["auto"] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class ResolvedPruning(PruningConfig):
    """Progressive pruning."""

    delta_r: int = field(kw_only=True)
    r_stop: int = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class ResolvedConfig(Config):
    """A config with the data set's preset filled in: what methods and costs are worked out from."""

    rounds: int = field(kw_only=True)
    train: ResolvedTrain = field(kw_only=True)
    selection: ResolvedSelection = field(kw_only=True)
    pruning: ResolvedPruning = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class RunConfig(ResolvedConfig):
    """A resolved config of which it is also settled who computes: what a run goes by."""

    simulator: Literal["reference", "gpu"] = field(kw_only=True)
    workers: int = field(kw_only=True)
    threads: int = field(kw_only=True)

    @property
    def plans_memory(self) -> bool:
        """Whether a budget is met by how devices compute, rather than by the density."""
        native = self.device_backend != "torch" and self.simulator != "gpu"
        return native and self.memory_budget is not None and self.memory_model == "device"

    @property
    def device_budget(self) -> int:
        """Most bytes that a native device may take; 0 is no limit."""
        return parse_size(self.memory_budget) if self.memory_budget and self.plans_memory else 0
