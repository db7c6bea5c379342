"""The settings of a run: what there is, what is allowed, what is meant by default."""

from fedtiny.aliases import old_names
from fedtiny.config.flat import dumps, from_dict, load, parse, refuse_program, to_dict
from fedtiny.config.presets import (
    ResolvedConfig,
    ResolvedPruning,
    ResolvedServer,
    ResolvedTrain,
    RunConfig,
    parse_flops,
    parse_size,
    resolve,
    resolve_run,
)
from fedtiny.config.settings import (
    Config,
    DataConfig,
    DeviceConfig,
    FleetConfig,
    GpuConfig,
    PruningConfig,
    RobustnessConfig,
    SelectionConfig,
    ServerConfig,
    TrainConfig,
)

__getattr__ = old_names(__name__)
__all__ = [
    "Config",
    "DataConfig",
    "DeviceConfig",
    "FleetConfig",
    "GpuConfig",
    "PruningConfig",
    "ResolvedConfig",
    "ResolvedPruning",
    "ResolvedServer",
    "ResolvedTrain",
    "RobustnessConfig",
    "RunConfig",
    "SelectionConfig",
    "ServerConfig",
    "TrainConfig",
    "dumps",
    "from_dict",
    "load",
    "parse",
    "parse_flops",
    "parse_size",
    "refuse_program",
    "resolve",
    "resolve_run",
    "to_dict",
]
