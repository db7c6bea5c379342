"""FedSGC: devices change their own masks and heed which way the global model goes."""

import numpy as np

from fedtiny.federation.messages import Arrays
from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import HOLDERS_AND_ABSENT, Outcome
from fedtiny.federation.verbs import CongruentSwap, Program, Train
from fedtiny.methods.at_start import prune_at_random
from fedtiny.methods.feddst import epochs_around_swap
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.congruity import OF_DROPPED, OF_KEPT, no_directions, packed_directions
from fedtiny.sparse.theta import Theta

SHARE = 0.01  # lambda: of the weights that a device swaps, how many at most by direction


class FedSGC(Method):
    """Dynamic sparse training on the devices, guided by the direction of the global model.

    In the original, as here, the server sends the sign of each weight's last step. In an adjusting
    round a device trains, drops first a few small weights that moved the other way, grows first a
    few that would move the same way, else swaps as FedDST does, and trains on. The server averages
    each weight over the devices that hold it; devices that are not asked or do not answer count
    with the model as it was, so a round of few devices is a small step. A pruned weight has a
    direction only if the round before dropped it, so growth follows directions if every round
    adjusts (`--pruning.delta-r 1`). We start from a random mask, use FedTiny's schedule and pruning
    numbers, and prune every layer back by magnitude, as for FedDST. Devices without Python cannot
    swap in this way.
    """

    name = "fedsgc"
    private = False
    without_python = False
    reducer = HOLDERS_AND_ABSENT
    granularity = "entire"

    def coarse_prune(self, server: Server) -> None:
        prune_at_random(self, server)

    def train_locally(self, server: Server) -> Program:
        epochs, numbers = self.config.train.local_epochs, self.pruning_numbers(server)
        if not numbers:
            return (Train(epochs),)
        before, after = epochs_around_swap(epochs)
        recent = server.round > 0 and self.schedule.adjusts(server.round - 1)
        epsilon = self.config.pruning.gradient_epsilon
        return (Train(before), CongruentSwap(numbers, epsilon, SHARE, recent), Train(after))

    def request_arrays(self, server: Server) -> Arrays:
        if not self.pruning_numbers(server):
            return {}
        if OF_KEPT not in server.arrays:
            return no_directions(server.theta.mask)
        return {name: server.arrays[name] for name in (OF_KEPT, OF_DROPPED)}

    def aggregate(self, server: Server, outcome: Outcome) -> Theta:
        assert outcome.theta is not None
        counts = np.array(list(server.theta.mask.counts.values()))
        theta = prune_by_magnitude(outcome.theta, counts)
        server.arrays |= packed_directions(server.theta, theta)
        return theta
