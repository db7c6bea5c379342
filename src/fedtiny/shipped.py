"""Folders of the repository that travel with an installed package."""

import importlib
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import fedtiny
from fedtiny.errors import FedTinyError

PACKAGE = Path(fedtiny.__file__).parent
ROOTS = (PACKAGE / "_shipped", PACKAGE.parents[1])
"""In an installed package; in a checkout, also an editable install of it."""


def folder(name: str, file: str) -> Path:
    """A folder of the repository, known by a file that it holds."""
    for root in ROOTS:
        if (root / name / file).is_file():
            return root / name
    raise FedTinyError(f"the folder '{name}' of fedtiny is missing; expected it in {ROOTS[0]}")


def load(name: str, module: str) -> ModuleType:
    """A module of a package that lies in such a folder; its own imports are relative."""
    package = f"fedtiny_{name.replace('/', '_')}"
    if package not in sys.modules:
        path = folder(name, "__init__.py")
        found = spec_from_file_location(
            package, path / "__init__.py", submodule_search_locations=[str(path)]
        )
        assert isinstance(found, ModuleSpec)
        assert found.loader is not None
        sys.modules[package] = module_from_spec(found)
        found.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.{module}")
