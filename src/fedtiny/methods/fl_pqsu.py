"""FL-PQSU: one-shot pruning by magnitude on the server, before training."""

from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.methods.at_start import prune_to_budgets


class FLPQSU(Method):
    """One-shot magnitude pruning on the server, by default the same density in every layer.

    The original prunes whole filters by l1-norm, then quantises and updates selectively. The
    paper keeps the pruning alone and makes it unstructured, like its other baselines; so do we.
    """

    name = "fl_pqsu"

    def coarse_prune(self, server: Server) -> None:
        prune_to_budgets(self, server)
