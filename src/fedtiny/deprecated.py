"""Names of the version before: what plug-ins may still use goes on working, with a warning."""

import warnings
from collections.abc import Callable
from typing import Any


def renamed(module: str, **names: Any) -> Callable[[str], Any]:
    """What a module that gave some things other names takes for its `__getattr__`."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        warn_renamed(f"{module}.{name}", getattr(names[name], "__name__", "another"))
        return names[name]

    return find


def warn_renamed(old: str, new: str) -> None:
    """Say once, where it is used, that a name is going away."""
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
