"""PruneFL: adaptive pruning by the full averaged gradient."""

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.federation.verbs import Program, Train
from fedtiny.methods.at_start import prune_to_budgets
from fedtiny.sparse.adjust import grow_and_drop
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.vector import SparseVector


class PruneFL(Method):
    """Adaptive pruning by full-size averaged gradients, of all layers at a time.

    The original lets a powerful device prune first, then chooses the mask by gradient squared
    over the time a weight costs. The paper prunes first on the server and gives PruneFL FedTiny's
    schedule and pruning numbers; so do we. In an adjusting round every device sums the gradients
    of all weights, pruned ones too, over all its batches and sends the mean: that is what makes
    it dear. Weights are grown by the square of the averaged gradient. These are the gradients of
    its own training steps, so no least epsilon of batch norm holds for them, in either recipe.
    """

    name = "prunefl"
    private = False
    granularity = "entire"

    def coarse_prune(self, server: Server) -> None:
        prune_to_budgets(self, server)

    def train_locally(self, server: Server) -> Program:
        adjusting = bool(self.pruning_numbers(server))
        return (Train(self.config.train.local_epochs, sum_dense_gradients=adjusting),)

    def adjust(self, server: Server, outcome: Outcome) -> None:
        numbers = self.pruning_numbers(server)
        squared = {
            layer: _of_pruned(server.theta.mask, layer, outcome.arrays[layer] ** 2)
            for layer in numbers
        }
        server.theta, _ = grow_and_drop(server.theta, squared, numbers)


def _of_pruned(mask: Mask, layer: str, values: NDArray[np.float32]) -> SparseVector:
    pruned = np.flatnonzero(~mask.array(layer).reshape(-1)).astype(np.int32)
    return SparseVector(values.size, pruned, values.reshape(-1)[pruned])
