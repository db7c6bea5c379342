"""A method of pruning in a package of its own: fedtiny finds it by its entry point."""

from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.densities import erdos_renyi_kernel


class ERK(Method):
    """One-shot magnitude pruning that keeps small layers denser than large ones (ERK).

    The density of a layer is in proportion to the sum of its dimensions over their product, so a
    1x1 shortcut keeps a larger share than a wide 3x3 convolution. Nothing else of a round differs
    from federated averaging, so nothing else is said here.
    """

    name = "erk"

    def coarse_prune(self, server: Server) -> None:
        """Before round 0: prune the pretrained model."""
        counts = erdos_renyi_kernel(server.param_spec, self.config.density)
        server.theta = prune_by_magnitude(server.theta, counts)
