"""In what the settings of two runs differ."""

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.config.flat import Flat, flat

HOW_IT_IS_COMPUTED = ("workers", "data.root", "device.python", "gpu.lanes", "gpu.cards")
"""What may change from machine to machine without a change of what is computed."""
CHOSEN_BY_THE_MACHINE = {"threads": None, "simulator": "auto", "device_backend": "auto"}
"""Settings that a machine fills in where they are left open."""


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
