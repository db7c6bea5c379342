"""The data set and the network that a config names."""

from typing import TYPE_CHECKING, Protocol

from fedtiny import data as datasets
from fedtiny import models
from fedtiny.config import Config
from fedtiny.data import DataSet
from fedtiny.errors import ConfigError, ModelError
from fedtiny.extras import require
from fedtiny.runs.user_inputs import as_arguments, own_inputs

if TYPE_CHECKING:
    from torch import nn


def load_data(config: Config, own: DataSet | None = None) -> DataSet:
    """The run's data set, limited as asked, at a size that its model takes."""
    return fitting(load_images(config, own), config)


def load_images(config: Config, own: DataSet | None = None) -> DataSet:
    """The run's data set as it is, limited as asked."""
    if own is None and "data" in own_inputs(config):
        raise _not_given(config)
    data = own or datasets.load(config.data.name, config.data.root)
    return data.limited(config.data.limit_train, config.data.limit_test, config.seed)


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
    smallest = models.KINDS[config.model].smallest_input if config.model in models.KINDS else 1
    return data.resized(smallest) if min(data.shape[1:]) < smallest else data


class Images(Protocol):
    """What a network must know of the images it is for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""


def build_model(config: Config, data: Images) -> "nn.Module":
    """The network that a config names, for such images."""
    if "model" in own_inputs(config):
        raise _not_given(config)
    width = model_width(config, data)
    return models.build(config.model, data.shape, len(data.classes), width=width, seed=config.seed)


def model_width(config: Config, data: Images) -> int | None:
    """The width of the network that a config names, or None for its usual one."""
    if config.model != "small" or config.parameters is None:
        return config.width
    require("torch", extra="torch")
    from fedtiny.models.networks import width_for

    return width_for(config.parameters, data.shape[0], len(data.classes))


def parameters(config: Config, data: DataSet, own: "nn.Module | None" = None) -> int:
    """Number of parameters of the network that a config names, or of one's own."""
    network = build_model(config, data) if own is None else own
    return sum(parameter.numel() for parameter in network.parameters())


def check_trainable(model: "nn.Module") -> None:
    """Refuse a network that no training can start from."""
    torch = require("torch", extra="torch")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(
            "every parameter of the model is frozen (requires_grad is False), so that nothing can "
            "be trained; unfreeze some with parameter.requires_grad_(True)"
        )
    for name, value in model.state_dict().items():
        if not torch.isfinite(value).all():
            raise ModelError(
                f"'{name}' of the model holds NaN or infinity before any training; give a model "
                "whose values are finite"
            )


def check_outputs(model: "nn.Module", data: DataSet) -> None:
    """Refuse a network that does not tell the classes of the data apart."""
    torch = require("torch", extra="torch")
    with torch.no_grad():
        outputs = model.eval()(torch.zeros(1, *data.shape))
    if not isinstance(outputs, torch.Tensor):
        raise ModelError(
            f"the model gives a {type(outputs).__name__} for images; it must give one tensor, a "
            "logit a class"
        )
    if tuple(outputs.shape) != (1, len(data.classes)):
        raise ModelError(
            f"the model gives outputs of shape {tuple(outputs.shape[1:])} for an image, but the "
            f"data has {len(data.classes)} classes"
        )
