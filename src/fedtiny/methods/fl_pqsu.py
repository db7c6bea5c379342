"""FL-PQSU: one-shot pruning by magnitude on the server, before training."""

from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.densities import uniform


class FLPQSU(Method):
    """One-shot magnitude pruning on the server, the same density in every layer.

    The original prunes whole filters by l1-norm, then quantises and updates selectively. The
    paper keeps the pruning alone and makes it unstructured, like its other baselines; so do we.
    """

    name = "fl_pqsu"

    def coarse_prune(self, server: Server) -> None:
        counts = uniform(server.param_spec, self.config.density)
        server.theta = prune_by_magnitude(server.theta, counts)
