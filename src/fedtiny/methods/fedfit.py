"""Fedfit: grow and drop by what the loss would gain, with the Fisher information."""

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.federation.verbs import DropScores, Program, TopGradients
from fedtiny.methods.at_start import prune_at_random
from fedtiny.sparse.adjust import Change, changed
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.top import highest, largest
from fedtiny.sparse.vector import SparseVector


class FedFit(Method):
    """Growth by g^2 / (2 F) and dropping by -g w + w^2 F / 2, with the Fisher information F.

    F of a weight is the mean square of its input times that of its output's gradient, so a device
    needs two vectors a layer for it. What the original has devices send is not known to us: here a
    device sends its a largest g / sqrt(2 F) of pruned weights, of whose mean the square counts, and
    the drop score of each kept weight; the server drops those of lowest mean. The first mask is
    random, schedule and pruning numbers are FedTiny's, all layers are adjusted at a time.
    """

    name = "fedfit"
    private = False
    granularity = "entire"

    def coarse_prune(self, server: Server) -> None:
        prune_at_random(self, server)

    def score(self, server: Server) -> Program:
        numbers, mask = self.pruning_numbers(server), server.theta.mask
        if not numbers:
            return ()
        epsilon = self.config.pruning.gradient_epsilon
        kept = {layer: mask.kept(layer) for layer in numbers}
        return (TopGradients(numbers, epsilon, fisher=True), DropScores(kept, epsilon))

    def adjust(self, server: Server, outcome: Outcome) -> None:
        mask, numbers = server.theta.mask, self.pruning_numbers(server)
        changes = {
            layer: _change(mask, layer, outcome.gradients[layer], outcome.arrays[layer], number)
            for layer, number in numbers.items()
        }
        server.theta = changed(server.theta, changes)


def _change(
    mask: Mask, layer: str, growth: SparseVector, drop: NDArray[np.float32], number: int
) -> Change:
    useful = growth.values != 0
    grown = growth.indices[useful][largest(growth.values[useful], number)]
    return Change(grown, mask.indices(layer)[highest(-drop, len(grown))])
