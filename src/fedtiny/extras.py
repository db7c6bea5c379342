"""Optional dependencies, imported only where they are used, and what is installed."""

import hashlib
import importlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import fedtiny
from fedtiny.errors import FedTinyError


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say which extra brings it.

    >>> require("json", extra="torch").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        package = (missing.name or module).partition(".")[0]
        raise FedTinyError(
            f"{package} is not installed; it comes with: pip install 'fedtiny[{extra}]'"
        ) from missing


def version_of(package: str) -> str:
    """The version of a package that is installed; fedtiny's own wherever it runs from."""
    if package == "fedtiny":
        return fedtiny.__version__
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@cache
def own_code() -> str:
    """A short digest of fedtiny's own Python files: the same wherever the code is the same.

    What travels with an installed package alone (`shipped.py`) is not counted.
    """
    root = Path(__file__).parent
    found = hashlib.blake2b(digest_size=6)
    for path in sorted(path for path in root.rglob("*.py") if "_shipped" not in path.parts):
        found.update(path.relative_to(root).as_posix().encode())
        found.update(path.read_bytes())
    return found.hexdigest()
