"""What comes through the Python interface, refused in one sentence where it is something else."""

from fedtiny.config import Config
from fedtiny.errors import ConfigError


def check_config(config: object) -> None:
    """Refuse what is no config."""
    if not isinstance(config, Config):
        raise ConfigError(
            f"a run takes a fedtiny.Config, got {_sort(config)}; fedtiny.config.from_dict makes "
            "one of plain dicts, fedtiny.config.load of a file"
        )


def _sort(given: object) -> str:
    """What sort of thing this is, in words."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return f"a value of type {type(given).__name__}"
