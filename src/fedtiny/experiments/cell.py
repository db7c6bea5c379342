"""One run among many: what it is, its name, and whether a folder already holds it."""

from dataclasses import dataclass

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.config.flat import Flat, flat
from fedtiny.errors import RunError
from fedtiny.runs.folder import RunFolder, quoted

HOW_IT_IS_COMPUTED = ("workers", "data.root", "device.python", "gpu.lanes", "gpu.cards")
"""What may change from machine to machine without a change of what is computed."""
CHOSEN_BY_THE_MACHINE = {"threads": None, "simulator": "auto", "device_backend": "auto"}
"""Settings that a machine fills in if they are left open."""


@dataclass(frozen=True)
class Cell:
    """A run, with the name of its run folder."""

    config: Config
    name: str


def settings_of(config: Config) -> Flat:
    """All that must be set to make a run again; where its data lies is nobody's business."""
    return {name: value for name, value in flat(config).items() if name not in HOW_IT_IS_COMPUTED}


def differing(one: Flat, other: Flat) -> list[str]:
    """Names of the settings that two runs do not share, but for those that change no result."""
    names = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    return [name for name in names if name not in HOW_IT_IS_COMPUTED]


def unlike(wanted: Config, there: Config) -> list[str]:
    """In what a run that is there differs from the one that is wanted."""
    asked = flat(configs.resolve(wanted))
    no_matter = {key for key, value in CHOSEN_BY_THE_MACHINE.items() if asked.get(key) == value}
    if there.simulator == "reference":
        no_matter |= {name for name in asked if name.startswith("gpu.")}
    return [name for name in differing(asked, flat(there)) if name not in no_matter]


def require_same(cell: Cell, folder: RunFolder) -> None:
    """A folder with other settings must not pass for this run's."""
    found = unlike(cell.config, configs.load(folder.config))
    if found:
        raise RunError(
            f"{folder.path} holds a run with other settings ({', '.join(found)}); choose "
            "another --out"
        )


def way_anew(folder: RunFolder) -> str:
    """What to do about a run that can neither be read nor go on."""
    return f"delete the folder {quoted(folder.path)}, and give the command again"
