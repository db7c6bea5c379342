"""What the server can measure by itself."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtiny.graph.ir import Graph
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.theta import Theta

LayerArrays = Mapping[str, NDArray[np.floating]]


class PublicSet(Protocol):
    """The public one-shot set D_s and the network, on the server.

    Each score gives, by prunable layer, one value for each kept weight in order of position.
    A model under a full mask, zeros and all, has a value for every weight.
    """

    @property
    def graph(self) -> Graph | None:
        """The network; None where its graph cannot be told."""

    def evaluate(self, theta: Theta) -> Mapping[str, float]:
        """The loss and the accuracy on all of D_s."""

    def gradients(self, theta: Theta) -> LayerArrays:
        """The gradient of the loss on all of D_s."""

    def synaptic_flow(self, theta: Theta, *, normalized: bool = False) -> LayerArrays:
        """|w dR/dw|, where R is what flows through the network of absolute weights (SynFlow).

        If it is normalized, all units of a layer let the same through.
        """

    def hessian_gradient(self, theta: Theta) -> LayerArrays:
        """The Hessian times the gradient of the loss on all of D_s (GraSP)."""


def before_batch_norm(public: PublicSet | None, param_spec: ParamSpec) -> list[str]:
    """The prunable layers that only batch norm reads; none if the network has no graph."""
    graph = public.graph if public else None
    found = {f"{layer}.weight" for layer in graph.normalized} if graph else set()
    return [layer for layer in param_spec.prunable if layer in found]
