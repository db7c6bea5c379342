"""The network whose costs are asked for, without the memory for its weights."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from fedtiny import models
from fedtiny.config import Config, ResolvedConfig
from fedtiny.data.hub import KNOWN
from fedtiny.extras import require
from fedtiny.graph.ir import Graph
from fedtiny.models import Traced
from fedtiny.models.param_spec import ParamSpec, Shape
from fedtiny.sparse.flow import LayerFlow, Prune

if TYPE_CHECKING:
    from torch import nn

    from fedtiny.models.analysis import Profile

IMAGES: dict[str, tuple[Shape, int]] = {
    "digits": ((1, 8, 8), 10),
    **{name: ((3, 32, 32), known.n_classes) for name, known in KNOWN.items()},
}
"""Shape (channels, height, width) and number of classes of the data sets known by name."""


@dataclass(frozen=True, eq=False)
class Network:
    """What costs depend on: parameter spec, profile, and what the network is made for."""

    name: str
    param_spec: ParamSpec
    profile: "Profile"
    shape: Shape
    classes: int
    own_width: bool = True
    """Whether the network is as wide as its paper says."""
    width: int | None = None
    """Channels of its first layer, if it is one of fedtiny's own."""
    not_native: str = ""
    """Why native devices cannot train it, or nothing."""
    is_chain: bool = False
    """Whether it is one chain of layers; not known of a network that cannot be traced."""
    projections: frozenset[str] = frozenset()
    """The layers that shortcuts are made of, likewise."""

    @property
    def statistics(self) -> int:
        """Number of batch-norm statistics: means and variances."""
        return sum(self.param_spec.dense_sizes[name] for name in self.param_spec.statistics)

    @property
    def dense_parameters(self) -> int:
        """Number of trained parameters that are never pruned."""
        return self.param_spec.dense_count - self.statistics


def describe(
    model: "nn.Module",
    shape: Shape,
    classes: int,
    name: str = "own",
    graph: Traced | None = None,
    *,
    depthwise: bool = False,
) -> Network:
    """A network of one's own; what tracing it gave may be handed in."""
    graph = models.traced(model, shape) if graph is None else graph
    from fedtiny.models.analysis import profile

    param_spec = models.analyze(model, shape, graph, depthwise=depthwise)
    return Network(
        name,
        param_spec,
        profile(model, shape, graph),
        shape,
        classes,
        own_width=False,
        not_native=models.not_native(graph),
        is_chain=isinstance(graph, Graph) and graph.is_chain,
        projections=graph.projections if isinstance(graph, Graph) else frozenset(),
    )


def named(config: Config, shape: Shape, classes: int, graph: Traced | None = None) -> Network:
    """The network that a config names, for images of this shape."""
    width = config.width
    if config.model == "small" and config.parameters is not None:
        require("torch", extra="torch")
        from fedtiny.models.networks import width_for

        width = width_for(config.parameters, shape[0], classes)
    smallest = models.kind(config.model).smallest_input
    if len(shape) == 3 and min(shape[1:]) < smallest:  # a run resizes its images
        shape = (shape[0], smallest, smallest)
    return _built(config.model, shape, classes, width, graph, config.pruning.depthwise)


def least_small(large: Network) -> int:
    """Parameters of the narrowest small model for the same images."""
    require("torch", extra="torch")
    from fedtiny.models.networks import parameters

    return parameters(large.shape[0], large.classes, width=1)


@lru_cache(maxsize=64)
def _built(
    name: str,
    shape: Shape,
    classes: int,
    width: int | None,
    graph: Traced | None,
    depthwise: bool,
) -> Network:
    torch = require("torch", extra="torch")
    with torch.device("meta"):
        model = models.build(name, shape, classes, width=width)
    own_width = width in (None, models.kind(name).width)
    found = describe(model, shape, classes, name, graph, depthwise=depthwise)
    return replace(found, own_width=own_width, width=width)


def layer_flow(network: Network, own: "nn.Module | None", config: ResolvedConfig) -> LayerFlow:
    """What flows through a network before training, and how often an image uses each weight.

    A network that fedtiny knows is built with its first weights, once they are needed.
    """
    prunable, pruning = network.param_spec.prunable, config.pruning
    asked = pruning.flow_normalize
    normalized = asked == "always" or (asked == "auto" and network.is_chain)

    def opened() -> Prune:
        from fedtiny.models.synaptic_flow import SynapticFlow

        first = {"shape": network.shape, "classes": network.classes, "width": network.width}
        model = models.build(network.name, **first, seed=config.seed) if own is None else own  # type: ignore[arg-type]
        flow = SynapticFlow(model, network.shape, tuple(prunable), normalized=normalized)
        return flow.layer_counts

    uses = {layer.weight: layer.uses for layer in network.profile.layers}
    return LayerFlow(
        network.param_spec,
        {layer: uses[layer] for layer in prunable},
        opened,
        floors={f"{layer}.weight": pruning.flow_floor for layer in network.projections},
        normalized=normalized,
    )
