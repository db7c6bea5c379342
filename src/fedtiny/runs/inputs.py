"""The data set and the network of a run: those that a config names, or the user's own."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from fedtiny import data as datasets
from fedtiny import models
from fedtiny.config import Config
from fedtiny.data import DataSet, Partition
from fedtiny.errors import ConfigError, DataError, ModelError
from fedtiny.extras import require
from fedtiny.files import digest_of
from fedtiny.models.param_spec import Shape
from fedtiny.process import free_memory
from fedtiny.sparse.theta import LARGEST
from fedtiny.sparse.vector import VALUE_BYTES

if TYPE_CHECKING:
    from torch import nn

CUSTOM = "custom:"
"""Before the name of a model or a data set that came through the Python interface."""
COPIES = 4  # of all parameters while the server trains on the public set: Adam has two moments


def own_inputs(config: Config) -> dict[str, str]:
    """What of a run came through here: its names, by the arguments that take it."""
    names = {"data": config.data.name, "model": config.model}
    return {k: name.removeprefix(CUSTOM) for k, name in names.items() if name.startswith(CUSTOM)}


def naming_own(config: Config, data: DataSet | None, model: "nn.Module | None") -> Config:
    """The config with the names of what came through the API."""
    if data is not None:
        config = replace(config, data=replace(config.data, name=CUSTOM + data.name))
    if model is not None:
        config = replace(config, model=CUSTOM + type(model).__name__)
    return config


def model_digest(model: "nn.Module") -> str:
    """What another class, other layers or other values of a model would change."""
    torch = require("torch", extra="torch")
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    told = [f"{type(model).__module__}.{type(model).__qualname__}", repr(model)]
    told += [f"{name} {t.dtype} {list(t.shape)} {t.requires_grad}" for name, t in tensors.items()]
    flat = {name: tensor.detach().cpu().reshape(-1) for name, tensor in tensors.items()}
    arrays = {name: values.view(torch.uint8).numpy() for name, values in flat.items()}
    return digest_of(arrays, "\n".join(told))


def as_arguments(own: Iterable[str]) -> str:
    """How a call takes it again.

    >>> as_arguments(["data", "model"])
    'data=..., model=...'
    """
    return ", ".join(f"{argument}=..." for argument in own)


def load_data(config: Config) -> DataSet:
    """The data set that a config names, limited as asked, at a size that its model takes."""
    return fitting(load_images(config), config)


def load_images(
    config: Config, own: DataSet | None = None, partition: Partition | None = None
) -> DataSet:
    """The run's data set as it is, limited as asked; whose samples are whose may be handed in."""
    if own is None and "data" in own_inputs(config):
        raise _not_given(config)
    data = own or _named(config)
    if partition is not None:
        data = replace(data, partition=partition)
    if config.data.validation:
        data = data.validating(config.data.validation, config.seed)
    return data.limited(config.data.limit_train, config.data.limit_test, config.seed)


def _named(config: Config) -> DataSet:
    """The data set that a config names."""
    asked = config.data
    columns = datasets.Columns(asked.label_column, asked.device_column)
    return datasets.load(asked.name, asked.root, layout=asked.layout, columns=columns)


def _not_given(config: Config) -> ConfigError:
    """All that must be given again, whichever of it was missed first."""
    kinds = {"data": "a data set of your own", "model": "a model of your own"}
    own = own_inputs(config)
    used = " and ".join(f"{kinds[argument]} ({name})" for argument, name in own.items())
    return ConfigError(
        f"this run used {used}; continue it from Python with "
        f"fedtiny.resume(path, {as_arguments(own)})"
    )


def fitting(data: DataSet, config: Config) -> DataSet:
    """The same images, at a size that the run's model takes."""
    if data.layout != "NCHW":
        return data
    smallest = smallest_input(config)
    return data.resized(smallest) if min(data.shape[1:]) < smallest else data


def smallest_input(config: Config) -> int:
    """Height and width of the smallest images that the run's model takes."""
    return models.KINDS[config.model].smallest_input if config.model in models.KINDS else 1


def build_model(config: Config, shape: Shape, classes: int, copies: int = COPIES) -> "nn.Module":
    """The network that a config names, for images of such a shape and so many classes.

    So many copies of its parameters must fit the memory that is free.
    """
    if "model" in own_inputs(config):
        raise _not_given(config)
    width = model_width(config, shape, classes)
    with require("torch", extra="torch").device("meta"):
        check_memory(models.build(config.model, shape, classes, width=width), copies)
    return models.build(config.model, shape, classes, width=width, seed=config.seed)


def check_memory(network: "nn.Module", copies: int) -> None:
    """Refuse a network that does not fit this machine, before any of its weights is made."""
    count = sum(parameter.numel() for parameter in network.parameters())
    needed, free = copies * VALUE_BYTES * count, free_memory()
    if free is not None and needed > free:
        raise ConfigError(
            f"a network of {count:,} parameters needs {needed / 1e6:,.0f} MB of memory, and "
            f"{free / 1e6:,.0f} MB are free here; lower --width or --parameters, or take a "
            "larger machine"
        )


def model_width(config: Config, shape: Shape, classes: int) -> int | None:
    """The width of the network that a config names, or None for its usual one."""
    if config.model != "small" or config.parameters is None:
        return config.width
    require("torch", extra="torch")
    from fedtiny.models.networks import width_for

    return width_for(config.parameters, shape[0], classes)


def parameters(config: Config, data: DataSet, own: "nn.Module | None" = None) -> int:
    """Number of parameters of the network that a config names, or of one's own."""
    network = build_model(config, data.input_shape, len(data.classes)) if own is None else own
    return sum(parameter.numel() for parameter in network.parameters())


def check_network(model: "nn.Module", data: DataSet) -> None:
    """Refuse a network that cannot be trained, or does not tell the classes of the data apart."""
    torch = require("torch", extra="torch")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(
            "every parameter of the model is frozen (requires_grad is False), so that nothing can "
            "be trained; unfreeze some with parameter.requires_grad_(True)"
        )
    for name, value in model.state_dict().items():
        if value.is_floating_point() and not (value.abs() < LARGEST).all():
            raise ModelError(
                f"'{name}' of the model holds NaN or infinity before any training, or values too "
                "large to compute with; give a model whose values are finite and small"
            )
    with torch.no_grad():
        outputs = model.eval()(torch.zeros(1, *data.input_shape))
    if not isinstance(outputs, torch.Tensor):
        raise ModelError(
            f"the model gives a {type(outputs).__name__} for samples; it must give one tensor, a "
            "logit a class"
        )
    if tuple(outputs.shape) != (1, len(data.classes)):
        raise ModelError(
            f"the model gives outputs of shape {tuple(outputs.shape[1:])} for a sample, but the "
            f"data has {len(data.classes)} classes"
        )


def check_config(config: object) -> None:
    """Refuse what is no config."""
    if not isinstance(config, Config):
        raise ConfigError(
            f"a run takes a fedtiny.Config, got {_sort(config)}; fedtiny.config.from_dict makes "
            "one of plain dicts, fedtiny.config.load of a file"
        )


def check_inputs(data: object, model: object) -> None:
    """Refuse data that is no data set, and a model whose layers cannot be seen."""
    if not isinstance(data, DataSet | None):
        raise DataError(
            f"data must be a data set as fedtiny.from_arrays and fedtiny.from_torch make them, got "
            f"{_sort(data)}; one that fedtiny knows is named in Config(data=DataConfig(name=...))"
        )
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
