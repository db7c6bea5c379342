"""Federated training of tiny neural networks: FedTiny, its baselines, and real savings.

>>> import fedtiny
>>> config = fedtiny.Config(model="small", width=2, density=0.3, rounds=2, workers=1)
>>> result = fedtiny.run(config, out="runs/tiny")
>>> result.finished, result.density <= 0.3
(True, True)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtiny.api.callbacks import Callback
    from fedtiny.api.result import Result, load_run
    from fedtiny.api.running import resume, run
    from fedtiny.api.sweep import SweepResult, sweep
    from fedtiny.config import Config
    from fedtiny.data import DataSet, Partition, from_arrays, from_torch
    from fedtiny.export.packed import load

__version__ = "0.3.0.dev0"
__all__ = [
    "Callback",
    "Config",
    "DataSet",
    "Partition",
    "Result",
    "SweepResult",
    "__version__",
    "from_arrays",
    "from_torch",
    "load",
    "load_run",
    "resume",
    "run",
    "sweep",
]

_HOMES = {
    "Callback": "fedtiny.api.callbacks",
    "Config": "fedtiny.config",
    "DataSet": "fedtiny.data",
    "Partition": "fedtiny.data",
    "Result": "fedtiny.api.result",
    "SweepResult": "fedtiny.api.sweep",
    "from_arrays": "fedtiny.data",
    "from_torch": "fedtiny.data",
    "load": "fedtiny.export.packed",
    "load_run": "fedtiny.api.result",
    "resume": "fedtiny.api.running",
    "run": "fedtiny.api.running",
    "sweep": "fedtiny.api.sweep",
}
_MODULES = ("config", "cost", "data", "errors", "methods", "models")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing fedtiny stays quick."""
    if name in _MODULES:
        return importlib.import_module(f"fedtiny.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fedtiny' has no attribute '{name}'")


def __dir__() -> list[str]:
    """The public names and modules, whether or not they are imported yet."""
    return sorted([*__all__, *_MODULES])
