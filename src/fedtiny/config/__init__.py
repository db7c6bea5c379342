"""The settings of a run: what there is, what is allowed, what is meant by default."""

from fedtiny.config.presets import resolve
from fedtiny.config.settings import (
    Config,
    DataConfig,
    DeviceConfig,
    FleetConfig,
    GpuConfig,
    PruningConfig,
    RobustnessConfig,
    SelectionConfig,
    TrainConfig,
)
from fedtiny.config.toml import dumps, from_dict, load, parse, to_dict

__all__ = [
    "Config",
    "DataConfig",
    "DeviceConfig",
    "FleetConfig",
    "GpuConfig",
    "PruningConfig",
    "RobustnessConfig",
    "SelectionConfig",
    "TrainConfig",
    "dumps",
    "from_dict",
    "load",
    "parse",
    "resolve",
    "to_dict",
]
