"""What comes through the Python interface: its marks, and a sentence where it is no such thing."""

from collections.abc import Iterable

from fedtiny.config import Config
from fedtiny.config.aliases import CUSTOM
from fedtiny.data import DataSet
from fedtiny.errors import ConfigError, DataError, ModelError
from fedtiny.extras import require


def own_inputs(config: Config) -> dict[str, str]:
    """What of a run came through here: its names, by the arguments that take it."""
    names = {"data": config.data.name, "model": config.model}
    return {k: name.removeprefix(CUSTOM) for k, name in names.items() if name.startswith(CUSTOM)}


def as_arguments(own: Iterable[str]) -> str:
    """How a call takes it again.

    >>> as_arguments(["data", "model"])
    'data=..., model=...'
    """
    return ", ".join(f"{argument}=..." for argument in own)


def check_config(config: object) -> None:
    """Refuse what is no config."""
    if not isinstance(config, Config):
        raise ConfigError(
            f"a run takes a fedtiny.Config, got {_sort(config)}; fedtiny.config.from_dict makes "
            "one of plain dicts, fedtiny.config.load of a file"
        )


def check_data(data: object) -> None:
    """Refuse data that is no data set."""
    if not isinstance(data, DataSet | None):
        raise DataError(
            f"data must be a data set as fedtiny.from_arrays and fedtiny.from_torch make them, got "
            f"{_sort(data)}; one that fedtiny knows is named in Config(data=DataConfig(name=...))"
        )


def check_model(model: object) -> None:
    """Refuse a model whose layers cannot be seen."""
    if model is None:
        return
    torch = require("torch", extra="torch")
    if not isinstance(model, torch.nn.Module):
        raise ModelError(
            f"model must be a network, an instance of an nn.Module, got {_sort(model)}; one that "
            "fedtiny knows is named in Config(model=...)"
        )
    compiled = require("torch._dynamo", extra="torch").OptimizedModule
    if isinstance(model, torch.jit.ScriptModule | compiled):
        raise ModelError(
            "the layers of a network that torch.jit or torch.compile made cannot be seen; give the "
            "nn.Module that it was made of"
        )
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ModelError(
            "the model lies on the meta device, where its weights have no values; make it on the "
            "CPU, without torch.device('meta')"
        )


def _sort(value: object) -> str:
    """What sort of thing this is."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a value of type {type(value).__name__}"
