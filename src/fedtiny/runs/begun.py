"""What a run was begun with, when it goes on: its config, and the weights that it had."""

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.config.flat import Flat, flat, nested
from fedtiny.errors import ConfigError, RunError
from fedtiny.files import MAX_TENSORS, read_file
from fedtiny.runs import reading
from fedtiny.runs.folder import EarlierVersionError, RunFolder
from fedtiny.runs.split import NOT_OURS
from fedtiny.runs.weights import Weights


def weights_of(folder: RunFolder, config: Config) -> Weights | None:
    """What the run began with: its own copy, which must be the bytes of then."""
    if config.weights is None or not folder.weights.exists():
        return None
    weights = Weights(read_file(folder.weights, MAX_TENSORS), config.weights)
    if reading.about(folder).get("weights", {}).get("blake2b") != weights.digest:
        raise RunError(f"{folder.weights} is not what this run began with; put it back")
    return weights


MAY_CHANGE = (
    *("rounds", "workers", "eval_every", "eval_devices", "checkpoint_every", "save_best"),
    *("data.root", "device.python", "device.program", "device.timeout", "gpu.lanes", "gpu.cards"),
)
"""Settings of a stopped run that may be edited: how far it goes, what it keeps, where it runs."""


def lasting(config: Config) -> Flat:
    """The settings that hold for a run as long as it lasts."""
    return {name: value for name, value in flat(config).items() if name not in MAY_CHANGE}


def require_unchanged(folder: RunFolder, config: Config, settings: Flat) -> None:
    """Refuse a config that was edited after the run was begun, or lacks settings of today."""
    now = lasting(config)
    try:
        begun = lasting(configs.from_dict(nested(settings)))
    except (ConfigError, *NOT_OURS) as error:
        raise RunError(f"{folder.partition} is damaged") from error
    if begun.keys() != settings.keys():
        raise EarlierVersionError(folder.path)
    changed = [
        f"{name} was {begun.get(name, 'left out')} and is {now.get(name, 'left out')}"
        for name in sorted(begun.keys() | now.keys())
        if begun.get(name) != now.get(name)
    ]
    if changed:
        raise RunError(
            f"{folder.config} was edited after the run was begun: {'; '.join(changed)}; "
            "put it back, or begin another run with the new settings"
        )
