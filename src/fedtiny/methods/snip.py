"""SNIP: pruning at the start by connection sensitivity."""

import numpy as np

from fedtiny.federation.method import Method
from fedtiny.federation.public import PublicSet
from fedtiny.federation.server import Server
from fedtiny.methods.at_start import GLOBAL, prune_at_start
from fedtiny.sparse.iterative import Scores
from fedtiny.sparse.theta import Theta


def sensitivity(public: PublicSet, theta: Theta) -> Scores:
    """|gradient x weight| of every kept weight on the public set."""
    gradients = public.gradients(theta)
    return {layer: np.abs(g * theta.kept(layer)) for layer, g in gradients.items()}


class SNIP(Method):
    """Pruning at the start by connection sensitivity |g w| on the public one-shot set.

    The original prunes an untrained network in one shot with a global threshold. The paper prunes
    the pretrained one in 100 steps of an exponential schedule, as the SynFlow authors do, with
    the same density in every layer; so do we. `--pruning.budgets global` is the original's
    threshold, under which a layer may fall to the one weight that we always leave it.
    """

    name = "snip"
    budgets = GLOBAL

    def coarse_prune(self, server: Server) -> None:
        prune_at_start(self, server, sensitivity, self.config.pruning.iterations)

    def scored_images(self, public: int) -> int:
        return self.config.pruning.iterations * public
