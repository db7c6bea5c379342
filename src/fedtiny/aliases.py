"""Names of version 0.1 that still work, each with a warning: the one table of them.

Old names of settings, in files and as flags, are in `fedtiny.config.aliases`.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T", bound=type)

MODULES = {
    "fedtiny.devices.shard": "fedtiny.devices.device_data",
    "fedtiny.federation.door": "fedtiny.federation.transport",
    "fedtiny.models.anatomy": "fedtiny.models.param_spec",
    "fedtiny.runs.display": "fedtiny.runs.reporter",
    "fedtiny.runs.tracking.tracker": "fedtiny.runs.tracking",
}
NAMES = {
    "fedtiny.config.TrustConfig": "fedtiny.config.RobustnessConfig",
    "fedtiny.cost.workload.Given": "fedtiny.cost.workload.CostInputs",
    "fedtiny.devices.engine.Moment": "fedtiny.devices.engine.RngKey",
    "fedtiny.devices.shard.Shard": "fedtiny.devices.device_data.DeviceData",
    "fedtiny.errors.StartAnewError": "fedtiny.errors.ModelError",
    "fedtiny.federation.door.Door": "fedtiny.federation.transport.Transport",
    "fedtiny.federation.messages.swap": "fedtiny.federation.messages.prune_and_grow",
    "fedtiny.models.Anatomy": "fedtiny.models.ParamSpec",
    "fedtiny.models.anatomy.Anatomy": "fedtiny.models.param_spec.ParamSpec",
    "fedtiny.models.dissect": "fedtiny.models.analyze",
}
ATTRIBUTES = {
    "BnStatistics": {"moment": "second_moment"},
    "Config": {"trust": "robustness"},
    "FleetConfig": {"late_rate": "straggler_rate"},
    "Mask": {"anatomy": "param_spec"},
    "PruningConfig": {"scope": "budgets"},
    "RobustnessConfig": {"most_samples": "max_samples"},
    "Server": {"anatomy": "param_spec", "door": "transport"},
    "Theta": {"anatomy": "param_spec"},
    "Work": {"moment": "rng_key"},
}
VERBS = {"swap": "prune_and_grow"}
HOOKS = {"settle": "resolve"}
"""Those of a `Method`."""


def old_names(module: str) -> Callable[[str], Any]:
    """A `__getattr__` for a module that has, or had, other names."""

    def find(name: str) -> Any:
        old = f"{module}.{name}"
        new = NAMES.get(old) or f"{MODULES.get(module, '')}.{name}"
        home, _, found = new.rpartition(".")
        if not home or name.startswith("__"):
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        value = getattr(importlib.import_module(home), found)
        _warn(old, new, stacklevel=3)
        return value

    return find


class OldModules:
    """Finds and loads modules by their old names: each looks its names up in the new one.

    It has the methods of `importlib.abc`, which takes a third of the time of `fedtiny --help`.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = old_names(module.__name__)


sys.meta_path.append(OldModules())


def old_attributes(kind: T) -> T:
    """A class whose attributes may be read, and given as options, by their old names."""
    names, init = ATTRIBUTES[kind.__name__], kind.__init__  # type: ignore[misc]

    def current(name: str) -> str:
        _warn(f"{kind.__name__}.{name}", f"{kind.__name__}.{names[name]}")
        return names[name]

    @wraps(init)
    def init_with_any(self: Any, *values: Any, **options: Any) -> None:
        for old in names.keys() & options.keys():
            options[current(old)] = options.pop(old)
        init(self, *values, **options)

    def reading(old: str) -> property:
        return property(lambda self: getattr(self, current(old)))

    for name, value in {"__init__": init_with_any, **{old: reading(old) for old in names}}.items():
        setattr(kind, name, value)
    return kind


def old_hooks(kind: T) -> T:
    """A class whose hooks have their old names too, and may be overridden by these."""
    for old, new in HOOKS.items():
        if old in vars(kind):
            _warn(f"{kind.__name__}.{old}", f"{kind.__name__}.{new}")
            setattr(kind, new, vars(kind)[old])
        elif new in vars(kind):
            setattr(kind, old, vars(kind)[new])
    return kind


def _warn(old: str, new: str, stacklevel: int = 4) -> None:
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=stacklevel)
