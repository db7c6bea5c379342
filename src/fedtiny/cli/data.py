"""fedtiny data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from fedtiny import config as configs
from fedtiny.cli.main import config_file_first
from fedtiny.config import Config
from fedtiny.config.checks import MOST
from fedtiny.data import hub
from fedtiny.errors import ConfigError, plural


@dataclass(frozen=True)
class Get:
    """Fetch a data set from the hub; this is the only command that uses the network."""

    name: tyro.conf.Positional[str]
    """cifar10, cifar100, cinic10 or svhn."""
    root: Path | None = None
    """Folder to put it in; default: FEDTINY_DATA, else data/."""

    def carry_out(self) -> int:
        """Fetch it."""
        print(f"{self.name} is in {hub.get(self.name, self.root)}")
        return 0


@dataclass(frozen=True)
class Devices:
    """Write the data of each device of a run as fedtiny-device reads it, a file for each.

    A run with the same settings gives its devices the same samples. With --own all samples of a
    file or folder are one device's, and mean the classes of the run's data set.
    """

    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    out: Path = Path("devices")
    """Folder for the files; those that are there are written anew."""
    own: Path | None = None
    """Samples of one device, as a node has them: an .npz, .csv or .parquet file, or a folder."""
    device: int | None = None
    """Number of the device whose samples --own are; default: any."""

    def _check(self) -> None:
        if self.own is None and self.device is not None:
            raise ConfigError("--device numbers the samples of --own; give that too")
        most = MOST["fleet.devices"]
        if self.device is not None and not 0 <= self.device < most:
            raise ConfigError(f"--device must be from 0 to {most - 1}, got {self.device}")

    def carry_out(self) -> int:
        """Write them."""
        from fedtiny.devices.device_data import NO_DEVICE, shard
        from fedtiny.files import write_atomically
        from fedtiny.runs.inputs import load_data
        from fedtiny.runs.own_samples import own_samples
        from fedtiny.runs.split import shards_of, share_out

        self._check()
        config = configs.resolve(self.config)
        data = load_data(config)
        if self.own is None:
            shards = shards_of(data, share_out(data, config), config)
        else:
            found = own_samples(self.own, config, data.shape, data.classes, data.layout)
            number = NO_DEVICE if self.device is None else self.device
            ratio = config.selection.development_ratio
            shards = (shard(number, found, np.arange(len(found)), ratio, config.seed),)
        self.out.mkdir(parents=True, exist_ok=True)
        for each in shards:
            name = "device.ftd" if each.device == NO_DEVICE else f"device{each.device}.ftd"
            packed = each.to_bytes()
            write_atomically(self.out / name, packed)
            print(f"{self.out / name}: {plural(len(each), 'sample')}, {len(packed):,} bytes")
        return 0


def command(arguments: list[str]) -> int:
    """Parse and carry out."""
    asked: Get | Devices
    if arguments[:1] == ["devices"]:
        file, flags = config_file_first(arguments[1:])
        default = Devices(configs.load(file) if file else Config())
        prog = "fedtiny data devices [CONFIG.toml]"
        asked = tyro.cli(Devices, prog=prog, args=flags, default=default)
    else:
        kinds: dict[str, Any] = {"get": Get, "devices": Devices}
        asked = tyro.extras.subcommand_cli_from_dict(
            kinds, prog="fedtiny data", description="Data sets.", args=arguments
        )
    return asked.carry_out()
