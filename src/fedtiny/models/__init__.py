"""The networks of the paper, and what pruning needs to know of any network."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtiny.errors import ModelError
from fedtiny.extras import require
from fedtiny.models.param_spec import ParamSpec, Shape
from fedtiny.suggest import did_you_mean

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ModelKind", "ParamSpec", "build", "dissect", "kind", "names"]


@dataclass(frozen=True)
class ModelKind:
    """A network that can be asked for by name."""

    module: str
    function: str
    description: str
    width: int
    smallest_input: int = 1


KINDS = {
    "resnet18": ModelKind(
        "resnet", "resnet18", "ResNet18 for small images (3x3 stem, no max-pool)", width=64
    ),
    "vgg11": ModelKind(
        "vgg", "vgg11", "VGG11 with batch norm and its ImageNet head", width=64, smallest_input=32
    ),
    "vgg11_small": ModelKind(
        "vgg", "vgg11_small", "VGG11 with batch norm and one linear layer as head", 64, 32
    ),
    "small": ModelKind(
        "small", "small", "three 3x3 convolutions and a linear head", width=16, smallest_input=4
    ),
}


def names() -> dict[str, str]:
    """Every model that can be asked for by name, with a line of description."""
    return {name: model.description for name, model in KINDS.items()}


def kind(name: str) -> ModelKind:
    """The model of that name, or an error that names the nearest one."""
    if name in KINDS:
        return KINDS[name]
    hint = did_you_mean(name, KINDS)
    raise ModelError(f"there is no model '{name}' (known: {', '.join(KINDS)}){hint}")


def build(
    name: str, shape: Shape, classes: int, *, width: int | None = None, seed: int = 0
) -> "nn.Module":
    """A freshly initialised network for images of this shape (channels, height, width)."""
    model = kind(name)
    if min(shape[1:]) < model.smallest_input:
        raise ModelError(
            f"{name} needs images of at least {model.smallest_input} pixels, got {shape[1:]}"
        )
    torch = require("torch", extra="torch")
    module = require(f"fedtiny.models.{model.module}", extra="torch")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = getattr(module, model.function)(
            channels=shape[0], classes=classes, width=width or model.width
        )
    return network


def analyze(model: "nn.Module", shape: Shape) -> ParamSpec:
    """The parameter spec of any network that takes images of this shape."""
    param_spec: ParamSpec = require("fedtiny.models.analysis", extra="torch").analyze(model, shape)
    return param_spec
