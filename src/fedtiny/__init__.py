"""Federated training of tiny neural networks: FedTiny, its baselines, and real savings.

>>> import fedtiny
>>> result = fedtiny.run(fedtiny.Config(rounds=10))  # doctest: +SKIP
>>> result.accuracy, result.density  # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedtiny import aliases as aliases  # lets modules be imported by their old names

if TYPE_CHECKING:
    from fedtiny.config import Config
    from fedtiny.data import Partition, from_arrays, from_torch
    from fedtiny.export.packed import load
    from fedtiny.runs.runner import Result, resume, run

__version__ = "0.2.0"
__all__ = [
    "Config",
    "Partition",
    "Result",
    "__version__",
    "from_arrays",
    "from_torch",
    "load",
    "resume",
    "run",
]

_HOMES = {
    "Config": "fedtiny.config",
    "Partition": "fedtiny.data",
    "Result": "fedtiny.runs.runner",
    "from_arrays": "fedtiny.data",
    "from_torch": "fedtiny.data",
    "load": "fedtiny.export.packed",
    "resume": "fedtiny.runs.runner",
    "run": "fedtiny.runs.runner",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing fedtiny stays quick."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fedtiny' has no attribute '{name}'")
