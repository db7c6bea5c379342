"""SynFlow: pruning at the start by synaptic flow, without data."""

from fedtiny.federation.method import Method
from fedtiny.federation.public import LayerArrays, PublicSet
from fedtiny.federation.server import Server
from fedtiny.methods.at_start import GLOBAL, prune_at_start
from fedtiny.sparse.theta import Theta


class SynFlow(Method):
    """Pruning at the start by synaptic flow |w dR/dw|, which needs no data.

    The original prunes in 100 steps by a global threshold; R is the output of the network of
    absolute weights for an image of ones. The paper keeps the steps and asks for the same density
    in every layer (`--pruning.budgets global` is the original's). We score in float64 and let batch
    norm pass the flow on unchanged: with its statistics a residual network gives scores of zero
    behind a zero gamma, or loses its shortcuts. With `--pruning.budgets flow` scores are normalized
    if the budgets are.
    """

    name = "synflow"
    budgets = GLOBAL

    def coarse_prune(self, server: Server) -> None:
        pruning = self.config.pruning
        normalized = pruning.budgets == "flow" and self.flow is not None and self.flow.normalized

        def scores(public: PublicSet, theta: Theta) -> LayerArrays:
            return public.synaptic_flow(theta, normalized=normalized)

        prune_at_start(self, server, scores, pruning.iterations)

    def scored_images(self, public: int) -> int:
        return self.config.pruning.iterations  # each step takes one image, of ones
