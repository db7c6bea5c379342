"""Optional dependencies, imported only where they are used, and what is installed."""

import hashlib
import importlib
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import fedtiny
from fedtiny.errors import FedTinyError

PACKAGE = Path(__file__).parent
ROOTS = (PACKAGE / "_shipped", PACKAGE.parents[1])
"""Of folders that travel with the package: where it is installed, and in a checkout."""


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

    What travels with an installed package alone (`shipped_folder`) is not counted.
    """
    found = hashlib.blake2b(digest_size=6)
    for path in sorted(path for path in PACKAGE.rglob("*.py") if "_shipped" not in path.parts):
        found.update(path.relative_to(PACKAGE).as_posix().encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def shipped_folder(name: str, file: str) -> Path:
    """A folder of the repository, known by a file that it holds."""
    for root in ROOTS:
        if (root / name / file).is_file():
            return root / name
    raise FedTinyError(f"the folder '{name}' of fedtiny is missing; expected it in {ROOTS[0]}")


def shipped_module(name: str, module: str) -> ModuleType:
    """A module of a package that lies in such a folder; its own imports are relative."""
    package = ModuleType(f"fedtiny_{name.replace('/', '_')}")
    package.__path__ = [str(shipped_folder(name, "__init__.py"))]
    sys.modules.setdefault(package.__name__, package)
    return importlib.import_module(f"{package.__name__}.{module}")
