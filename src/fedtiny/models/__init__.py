"""The networks of the paper, and what pruning needs to know of any network."""

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtiny.aliases import old_names
from fedtiny.errors import ModelError, did_you_mean
from fedtiny.extras import require
from fedtiny.graph.ir import Graph
from fedtiny.models.param_spec import ParamSpec, Shape

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "ModelKind",
    "ParamSpec",
    "Traced",
    "analyze",
    "build",
    "kind",
    "names",
    "traced",
    "untrained",
]

__getattr__ = old_names(__name__)
Traced = Graph | ModelError
"""The graph of a network, or why it cannot be told."""


@dataclass(frozen=True)
class ModelKind:
    """A network that can be asked for by name."""

    description: str
    width: int
    smallest_input: int = 1


KINDS = {
    "resnet18": ModelKind("ResNet18 for small images (3x3 stem, no max-pool)", width=64),
    "resnet18_ns": ModelKind(
        "ResNet18 without batch norm that keeps few activations (FedMef)", width=64
    ),
    "vgg11": ModelKind("VGG11 with batch norm and its ImageNet head", width=64, smallest_input=32),
    "vgg11_small": ModelKind(
        "VGG11 with batch norm and one linear layer as head", width=64, smallest_input=32
    ),
    "small": ModelKind("three 3x3 convolutions and a linear head", width=16, smallest_input=4),
}


def names() -> dict[str, str]:
    """Every model that can be asked for by name, with a line of description."""
    return {name: model.description for name, model in KINDS.items()}


def kind(name: str) -> ModelKind:
    """The model of that name, or an error that names the nearest one."""
    if name in KINDS:
        return KINDS[name]
    known = f"(known: {', '.join(KINDS)})"
    raise ModelError(f"there is no model '{name}' {known}{did_you_mean(name, KINDS)}")


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
    from fedtiny.models import networks

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = networks.BUILDERS[name](shape[0], classes, width or model.width)
    return network


def traced(model: "nn.Module", shape: Shape) -> Traced:
    """The graph of a network that takes images of this shape, or why it cannot be told."""
    require("torch", extra="torch")
    from fedtiny.graph.trace import trace

    try:
        return trace(model, shape)
    except ModelError as error:
        return error


def analyze(model: "nn.Module", shape: Shape, graph: Traced | None = None) -> ParamSpec:
    """The parameter spec of any network that takes images of this shape.

    What tracing it gave may be handed in, so that it is not traced again.
    """
    graph = traced(model, shape) if graph is None else graph
    from fedtiny.models import analysis

    return analysis.analyze(model, shape, graph)


def untrained(model: "nn.Module", param_spec: ParamSpec, tensors: Container[str]) -> str:
    """Why a graph with these tensors does not train all of a model, or nothing."""
    for name in (*param_spec.prunable, *param_spec.dense):
        if name not in tensors:
            return f"the network never uses '{name}'"
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            return f"'{name}' is frozen (requires_grad is False), and all are trained here"
    return ""
