"""Networks by name, and what pruning needs to know of any network."""

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtiny.errors import ModelError, did_you_mean
from fedtiny.extras import require
from fedtiny.graph.ir import Graph
from fedtiny.graph.operations import native_lacks
from fedtiny.models.param_spec import ParamSpec, Shape

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "ModelKind",
    "ParamSpec",
    "ReadsOtherDataError",
    "Traced",
    "analyze",
    "build",
    "check_reads",
    "kind",
    "names",
    "not_native",
    "remarks",
    "traced",
    "untrained",
]

Traced = Graph | ModelError
"""The graph of a network, or why it cannot be told."""


READS = {1: "a table [features]", 2: "sequences [channels, time]", 3: "images"}
"""What a network takes, by the number of dimensions of one sample."""

STANDARD = {1: (64,), 2: (6, 128), 3: (3, 32, 32)}
"""The samples for which parameters are counted, with ten classes."""


@dataclass(frozen=True)
class ModelKind:
    """A network that can be asked for by name."""

    description: str
    width: int
    parameters: int
    """At its own width, for standard samples of ten classes."""
    smallest_input: int = 1
    dimensions: int = 3
    """Of one sample: 3 of an image, 2 of a sequence, 1 of a row of a table."""
    native: bool = True
    """Whether native devices train it, at the kept weights only."""
    c: bool = True
    """Whether it can be exported to C, and to a packed file."""

    @property
    def reads(self) -> str:
        """What it takes, in words."""
        return READS[self.dimensions]


KINDS = {
    "resnet18": ModelKind(
        "ResNet18 for small images (3x3 stem, no max-pool)", width=64, parameters=11_173_962
    ),
    "resnet18_gn": ModelKind(
        "ResNet18 with group norm of two groups in place of batch norm", 64, 11_173_962
    ),
    "resnet18_ns": ModelKind(
        "ResNet18 without batch norm that keeps few activations (FedMef)",
        64,
        11_173_962,
        native=False,
        c=False,
    ),
    "resnet8": ModelKind("ResNet8 of MLPerf Tiny: three stages of one block", 16, 78_042),
    "resnet20": ModelKind("ResNet20 of CIFAR: three stages of three blocks", 16, 272_474),
    "resnet56": ModelKind("ResNet56 of CIFAR: three stages of nine blocks", 16, 855_770),
    "vgg11": ModelKind(
        "VGG11 with batch norm and its ImageNet head", 64, 128_812_810, smallest_input=32
    ),
    "vgg11_small": ModelKind(
        "VGG11 with batch norm and one linear layer as head", 64, 9_231_114, smallest_input=32
    ),
    "mobilenetv2": ModelKind("MobileNetV2 for small images (stem of stride 1)", 32, 2_236_682),
    "mobilenetv3_small": ModelKind(
        "MobileNetV3-small for small images (stem of stride 1)", 16, 1_528_106
    ),
    "efficientnet_lite0": ModelKind(
        "EfficientNet-Lite0 for small images (stem of stride 1)", 32, 3_383_818
    ),
    "squeezenet": ModelKind("SqueezeNet 1.1 with batch norm (Fire modules)", 64, 730_570, 12),
    "ds_cnn": ModelKind("DS-CNN of MLPerf Tiny for keywords, on spectrograms", 64, 28_170, 4),
    "lenet5": ModelKind("LeNet-5 as in PyTorch's tutorial, without norms", 6, 62_006, 16),
    "vit_tiny": ModelKind(
        "a vision transformer of four blocks and 64 patches", 96, 311_146, 8, native=False
    ),
    "cnn1d": ModelKind("four convolutions over time, for sensors", 32, 87_306, dimensions=2),
    "mlp": ModelKind("three hidden layers, for tables", 128, 43_018, dimensions=1),
    "small": ModelKind("three 3x3 convolutions and a linear head", 16, 24_346, smallest_input=4),
}


def names() -> dict[str, str]:
    """The networks that can be asked for by name.

    Returns:
        What each is, in one line, by its name.

    Example:
        >>> "resnet18" in fedtiny.models.names()
        True
    """
    return {
        name: f"{model.description}; reads {model.reads}, {model.parameters:,} parameters"
        for name, model in KINDS.items()
    }


def kind(name: str) -> ModelKind:
    """The model of that name, or an error that names the nearest one."""
    if name in KINDS:
        return KINDS[name]
    known = f"(known: {', '.join(KINDS)})"
    raise ModelError(f"there is no model '{name}' {known}{did_you_mean(name, KINDS)}")


def build(
    name: str, shape: Shape, classes: int, *, width: int | None = None, seed: int = 0
) -> "nn.Module":
    """A network by its name, freshly initialized.

    Args:
        name: One of :func:`fedtiny.models.names`.
        shape: The shape of a sample: (C, H, W), (C, T) or (F,).
        classes: How many classes it tells apart.
        width: Channels of its first layer; default: its own.
        seed: What draws its weights.

    Returns:
        The network.

    Raises:
        ModelError: There is no such network, or it does not take such samples.

    Example:
        >>> network = fedtiny.models.build("small", (1, 8, 8), 10, width=4)
        >>> sum(parameter.numel() for parameter in network.parameters())
        1702
    """
    model = kind(name)
    check_reads(name, shape)
    if len(shape) == 3 and min(shape[1:]) < model.smallest_input:
        raise ModelError(
            f"{name} needs images of at least {model.smallest_input} pixels, got {shape[1:]}"
        )
    torch = require("torch", extra="torch")
    from fedtiny.models import networks

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = networks.build(name, shape, classes, width or model.width)
    return network


class ReadsOtherDataError(ModelError):
    """A network reads samples with other dimensions than the data have."""


def check_reads(name: str, shape: Shape, method: str = "") -> None:
    """Refuse samples with other dimensions than the network of that name reads.

    `method` has chosen the network, if it was not the user.
    """
    wanted = kind(name).dimensions
    if len(shape) == wanted:
        return
    fitting = [other for other, model in KINDS.items() if model.dimensions == len(shape)]
    if not fitting:
        raise ModelError(f"{name} reads {READS[wanted]}, not samples of shape {tuple(shape)}")
    which = f"{READS[len(shape)]}, of shape {tuple(shape)}"
    if method:
        raise ReadsOtherDataError(
            f"{method} trains '{name}', which reads {READS[wanted]}, but the data are {which}; "
            "take another method"
        )
    others = " or another for it" if len(fitting) > 1 else ""
    raise ReadsOtherDataError(
        f"{name} reads {READS[wanted]}, but the data are {which}; take --model {fitting[0]}{others}"
        ", or a network of your own"
    )


def traced(model: "nn.Module", shape: Shape) -> Traced:
    """The graph of a network that takes images of this shape, or why it cannot be told."""
    require("torch", extra="torch")
    from fedtiny.graph.trace import trace

    try:
        return trace(model, shape)
    except ModelError as error:
        return error


def analyze(
    model: "nn.Module", shape: Shape, graph: Traced | None = None, *, depthwise: bool = False
) -> ParamSpec:
    """What of a network may be pruned, and what stays dense.

    Args:
        model: Any network.
        shape: The shape of a sample that it takes.
        graph: What tracing it gave, so that it is not traced again.
        depthwise: Whether depthwise and squeeze-and-excite layers may be pruned too.

    Returns:
        The parameter spec: names, shapes and blocks of its layers.

    Raises:
        ModelError: Nothing of it can be pruned.

    Example:
        >>> network = fedtiny.models.build("small", (1, 8, 8), 10, width=4)
        >>> fedtiny.models.analyze(network, (1, 8, 8)).prunable_count
        1440
    """
    graph = traced(model, shape) if graph is None else graph
    from fedtiny.models import analysis

    return analysis.analyze(model, shape, graph, depthwise=depthwise)


def not_native(graph: Traced) -> str:
    """Why native devices cannot train a network, or nothing."""
    if not isinstance(graph, Graph):
        return str(graph)
    missing = native_lacks(graph.nodes)
    return f"native devices lack {missing}" if missing else ""


def remarks(graph: Traced) -> tuple[str, ...]:
    """What whoever trains a network should know of how it is read, in sentences."""
    if not isinstance(graph, Graph) or not graph.log_softmax:
        return ()
    return (
        "the log-softmax at the end of the network is left out of native training and of exports, "
        "which give logits: the cross entropy is the same with and without it",
    )


def untrained(model: "nn.Module", param_spec: ParamSpec, tensors: Container[str]) -> str:
    """Why a graph with these tensors does not train all of a model, or nothing."""
    for name in (*param_spec.prunable, *param_spec.dense):
        if name not in tensors:
            return f"the network never uses '{name}'"
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            return f"'{name}' is frozen (requires_grad is False), and all are trained here"
    return ""
