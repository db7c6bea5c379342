"""What a run over Flower is told by the app's run config, and the small app that holds it."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.config.flat import PROGRAMS, Flat, joined, nested
from fedtiny.errors import ConfigError, RunError
from fedtiny.files import parse_toml, read_file, write_new
from fedtiny.runs.folder import quoted

SECTION = "flower"
PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")  # as Flower finds settings in --run-config

PACKAGE = "fedtiny_app"

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


@dataclass(frozen=True)
class FlowerSettings:
    """The table `flower` of the run config; everything else in it is the run's own config."""

    run: str = "runs/flower"
    """The run folder; a relative path counts from where the SuperLink was started."""
    resume: bool = False
    """Continue the run in that folder."""
    data: Literal["partition", "own"] = "partition"
    """Nodes take a part each of the named data set, for trials, or have data of their own."""
    test: Literal["server", "devices"] = "server"
    """Who measures accuracy: the server on its test set, or the devices on their own data."""
    wait: float = 300.0
    """Seconds to wait for nodes to appear."""
    timeout: float = 600.0
    """Seconds that a question may take; who is later is left out of it."""
    unmask_timeout: float = 120.0
    """Seconds that each stage of unmasking a secure sum may take; who is later counts as gone."""
    reassign: bool = False
    """Give a device whose node is away to the next node; else it is kept for that node's key."""
    secagg_keys: str = ""
    """The list of nodes' public keys, to turn away who is not in it; nodes have their own copy."""

    def __post_init__(self) -> None:
        for name in ("wait", "timeout", "unmask_timeout"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"'{SECTION}.{name}' must be above 0 seconds, got {value:g}")


def read(run_config: Mapping[str, Any]) -> tuple[FlowerSettings, Config]:
    """The settings and the config of a run, from Flower's flat run config.

    >>> settings, config = read({"rounds": 3, "fleet.devices": 2, "flower.timeout": 60})
    >>> settings.timeout, config.rounds, config.fleet.devices
    (60.0, 3, 2)
    """
    values = nested(run_config)
    settings = configs.parse(FlowerSettings, values.pop(SECTION, {}), f"{SECTION}.")
    return settings, _for_nodes(configs.from_dict(values))


def read_changed(app: Flat, changes: Flat) -> tuple[FlowerSettings, Config]:
    """The same, of an app's settings with those of `--run-config`; what Flower refuses is told."""
    for name in changes:
        if name not in app:
            read({name: changes[name]})  # a name that is no setting at all is told as such
            raise ConfigError(
                f"--run-config changes only what the app's pyproject.toml names, and '{name}' is "
                "not there; add it"
            )
    return read({**app, **changes})


def parse_changes(text: str) -> Flat:
    """What `--run-config` says, of which Flower passes over in silence what it cannot read.

    >>> parse_changes('rounds=3 flower.run="runs/b"')
    {'rounds': 3, 'flower.run': 'runs/b'}
    """
    lines = "\n".join(f"{name} = {value}" for name, value in PAIR.findall(text))
    try:
        changes, ignored = tomllib.loads(lines), PAIR.sub("", text).strip()
    except tomllib.TOMLDecodeError:
        changes, ignored = {}, text
    if ignored:
        raise ConfigError(
            "--run-config takes settings as in 'rounds=3 method=\"fedavg\"', each of them once, "
            f"not {text!r}"
        )
    return joined(changes)


def write_changes(changes: Flat) -> str:
    """The way back.

    >>> write_changes({"rounds": 3, "flower.run": "runs/b"})
    'rounds=3 flower.run="runs/b"'
    """
    values = {name: json.dumps(value, ensure_ascii=False) for name, value in changes.items()}
    return " ".join(f"{name}={value}" for name, value in values.items())


def _for_nodes(config: Config) -> Config:
    """The same config without what only simulated devices have."""
    fleet = config.fleet
    if fleet.fail_rate or fleet.straggler_rate:
        raise ConfigError("fleet.fail_rate and fleet.straggler_rate are for simulated devices")
    for name in PROGRAMS:
        if getattr(config.device, name):
            raise ConfigError(f"device.{name} is for simulated devices")
    if config.simulator == "gpu":
        raise ConfigError("simulator is 'gpu', but the devices are real; leave it out")
    if config.privacy.secure_aggregation and not config.privacy.cryptography:
        raise ConfigError("privacy.cryptography = false is for simulated devices; leave it out")
    threads = 1 if config.threads is None else config.threads
    return replace(config, simulator="reference", workers=1, threads=threads)


def write_app(folder: Path, config: Config, settings: FlowerSettings) -> None:
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
            write_new(folder / name, text.encode())
    except OSError as error:
        raise RunError(f"cannot write an app into {folder}: {error.strerror}") from error


def read_app(folder: Path) -> Flat:
    """The settings of an app, by the names that it gives them."""
    project = folder / "pyproject.toml"
    try:
        told = parse_toml(read_file(project))
        return joined(told["tool"]["flwr"]["app"]["config"])
    except (OSError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{folder} is no app; make one with: fedtiny flower init DIR") from error
    except ValueError as error:
        raise RunError(f"cannot read {project}: {error}") from error


def _pyproject(config: Config, settings: FlowerSettings) -> str:
    tables = {**_without_simulation(configs.resolve(config)), SECTION: asdict(settings)}
    written = tomli_w.dumps({"tool": {"flwr": {"app": {"config": tables}}}})
    return PYPROJECT.format(package=PACKAGE, config=written)


def _without_simulation(config: Config) -> dict[str, Any]:
    """The config without what only simulated devices have."""
    found = configs.to_dict(config)
    for name in ("gpu", "simulator", "workers"):
        found.pop(name, None)
    for name in ("fail_rate", "straggler_rate", "wire"):
        found["fleet"].pop(name, None)
    return found
