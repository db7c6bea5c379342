"""FedDST: devices change their own masks, the server averages over holders."""

import numpy as np

from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.federation.verbs import Program, PruneAndGrow, Train
from fedtiny.methods.at_start import prune_at_random
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.theta import Theta

BEFORE_GROWTH = 0.6  # 3 of 5 epochs come before a device changes its mask


class FedDST(Method):
    """Dynamic sparse training on the devices: each changes its own mask, holders are averaged.

    In the original, as here, the first mask is random; in an adjusting round a device trains,
    drops its smallest weights, grows those of largest gradient and trains on (3 and 2 of 5
    epochs in the paper); the server averages each weight over the devices that hold it and prunes
    every layer back by magnitude. The paper gives it FedTiny's schedule and pruning numbers, for
    all layers at a time. With a single local epoch a device swaps first: weights grown after
    the last step would be zero and never survive the server.
    """

    name = "feddst"
    private = False
    reducer = "mean over holders"
    granularity = "entire"

    def coarse_prune(self, server: Server) -> None:
        prune_at_random(self, server)

    def train_locally(self, server: Server) -> Program:
        epochs = self.config.train.local_epochs
        numbers = self.pruning_numbers(server)
        if not numbers:
            return (Train(epochs),)
        before, after = epochs_around_swap(epochs)
        epsilon = self.config.pruning.gradient_epsilon
        return (Train(before), PruneAndGrow(numbers, epsilon), Train(after))

    def aggregate(self, server: Server, outcome: Outcome) -> Theta:
        assert outcome.theta is not None
        counts = np.array(list(server.theta.mask.counts.values()))
        return prune_by_magnitude(outcome.theta, counts)


def epochs_around_swap(epochs: int) -> tuple[int, int]:
    """How many epochs come before a device changes its mask, and after.

    >>> epochs_around_swap(5), epochs_around_swap(1)
    ((3, 2), (0, 1))
    """
    before = min(round(BEFORE_GROWTH * epochs), epochs - 1)
    return before, epochs - before
