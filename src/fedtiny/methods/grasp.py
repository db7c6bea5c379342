"""GraSP: pruning at the start that keeps the gradient flowing."""

from fedtiny.federation.method import Method
from fedtiny.federation.public import PublicSet
from fedtiny.federation.server import Server
from fedtiny.methods.at_start import GLOBAL, prune_at_start
from fedtiny.sparse.iterative import Scores
from fedtiny.sparse.theta import Theta


def flow_kept(public: PublicSet, theta: Theta) -> Scores:
    """w x (H g): how much of the gradient's norm each weight keeps up."""
    products = public.hessian_gradient(theta)
    return {layer: product * theta.kept(layer) for layer, product in products.items()}


HESSIAN_GRADIENTS = 3  # a gradient, and its own backward pass at twice the price


class GraSP(Method):
    """One-shot pruning at the start that keeps the gradient flow: the highest w (H g) stay.

    The original takes an untrained network, a batch of training data and a global threshold. The
    paper names it among the server-side methods without results. We score the pretrained network
    on the public one-shot set, once, with the same density in every layer
    (`--pruning.budgets global` is the original's).
    """

    name = "grasp"
    budgets = GLOBAL

    def coarse_prune(self, server: Server) -> None:
        prune_at_start(self, server, flow_kept, iterations=1)

    def scored_images(self, public: int) -> int:
        return HESSIAN_GRADIENTS * public
