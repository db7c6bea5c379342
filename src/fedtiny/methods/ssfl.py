"""SSFL: pruning at the start by the sensitivity that devices measure."""

from fedtiny.federation.method import CoarseRequest, Method
from fedtiny.federation.server import Server
from fedtiny.federation.verbs import Sensitivity
from fedtiny.methods.at_start import require_enough
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.iterative import prune_by_scores


class SSFL(Method):
    """Salient sparse training: one global threshold on |g w|, averaged over the devices' batches.

    In the original, as here, every device scores the dense model on one batch of its own at
    first, scores are averaged by samples, and the mask then stays. So every device must once hold a
    dense model with its gradient, and send as many values. Every layer keeps one weight at least.
    We score the pretrained network.
    """

    name = "ssfl"
    private = False
    budgets = ()
    global_threshold = True

    def coarse_prune(self, server: Server) -> None:
        outcome = require_enough(server, server.ask("select", (Sensitivity(),)))
        server.theta = prune_by_scores(server.theta, outcome.arrays, self.config.density, "global")

    def coarse_requests(self, param_spec: ParamSpec) -> tuple[CoarseRequest, ...]:
        return (CoarseRequest((Sensitivity(),), param_spec.sizes),)
