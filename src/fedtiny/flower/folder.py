"""A small Flower app: a pyproject with the run's settings, and two modules of two lines."""

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.config.flat import Flat, joined
from fedtiny.errors import RunError
from fedtiny.flower.settings import SECTION, FlowerSettings
from fedtiny.runs.folder import quoted

PACKAGE = "fedtiny_app"
SIMULATED = {"": ("simulator", "workers"), "fleet": ("fail_rate", "straggler_rate", "wire")}

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedtiny-app"
version = "1.0.0"
description = "Federated training of a tiny network with fedtiny"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = ["fedtiny[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "fedtiny"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# Every setting of the run; `flwr run . --run-config 'rounds=3 fleet.devices=2'` changes some.
{config}"""

MODULE = """\
from fedtiny.flower.{side} import app

__all__ = ["app"]
"""

README = """\
# A fedtiny app for Flower

`pyproject.toml` holds every setting of the run; its table `flower` says where the run folder is,
how long to wait for nodes and for their answers, and whose data is used. fedtiny must be installed
on the SuperLink's machine (`pip install 'fedtiny[flower,torch,data]'`) and on every node.

Try it on this machine, {devices} nodes with TLS and keys of their own, stopped in the end:

```console
fedtiny flower up . --nodes {devices} --tls
```

On machines of your own, once a SuperLink and SuperNodes run (every command is in fedtiny's
docs/flower.md):

```console
flwr run . fleet --stream
flwr run . fleet --stream --run-config 'rounds=30 flower.run="runs/longer"'
flwr run . fleet --stream --run-config 'flower.resume=true'   # after a crash of the server
fedtiny inspect {run}
```
"""


def write(folder: Path, config: Config, settings: FlowerSettings) -> None:
    """Write an app into a new or empty folder."""
    files = {
        "pyproject.toml": _pyproject(config, settings),
        "README.md": README.format(devices=config.fleet.devices, run=quoted(Path(settings.run))),
        f"{PACKAGE}/__init__.py": '"""fedtiny on Flower."""\n',
        f"{PACKAGE}/server_app.py": MODULE.format(side="server"),
        f"{PACKAGE}/client_app.py": MODULE.format(side="client"),
    }
    try:
        (folder / PACKAGE).mkdir(parents=True, exist_ok=True)
        taken = [name for name in files if (folder / name).exists()]
        if taken:
            raise RunError(f"{folder / taken[0]} is there already; choose another folder")
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write an app into {folder}: {error.strerror}") from error


def read(folder: Path) -> Flat:
    """The settings of an app, by the names that it gives them."""
    project = folder / "pyproject.toml"
    try:
        told = tomllib.loads(project.read_text(encoding="utf-8"))
        return joined(told["tool"]["flwr"]["app"]["config"])
    except (OSError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{folder} is no app; make one with: fedtiny flower init DIR") from error
    except ValueError as error:
        raise RunError(f"cannot read {project}: {error}") from error


def _pyproject(config: Config, settings: FlowerSettings) -> str:
    tables = {**_plain(configs.resolve(config)), SECTION: asdict(settings)}
    written = tomli_w.dumps({"tool": {"flwr": {"app": {"config": tables}}}})
    return PYPROJECT.format(package=PACKAGE, config=written)


def _plain(config: Config) -> dict[str, Any]:
    """The config without what only simulated devices have."""
    found = configs.to_dict(config)
    del found["gpu"]
    for table, names in SIMULATED.items():
        for name in names:
            (found[table] if table else found).pop(name, None)
    return found
