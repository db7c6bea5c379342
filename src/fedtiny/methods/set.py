"""SET: the smallest weights make way for random ones."""

from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.methods.at_start import prune_at_random
from fedtiny.sparse.adjust import grow_and_drop
from fedtiny.sparse.positions import random_pruned
from fedtiny.sparse.vector import all_alike


class SET(Method):
    """Sparse evolutionary training: the smallest weights make way for ones drawn at random.

    The original trains on one machine and rewires every layer after each epoch. Here the server
    drops and draws after the mean, on FedTiny's schedule and with its pruning numbers, for all
    layers at a time. Devices are asked for nothing but training: no gradient of a pruned weight, no
    buffer, no upload, and nothing is revealed.
    """

    name = "set"
    granularity = "entire"

    def coarse_prune(self, server: Server) -> None:
        prune_at_random(server)

    def adjust(self, server: Server, outcome: Outcome) -> None:
        numbers, sizes = self.pruning_numbers(server), server.param_spec.sizes
        positions = random_pruned(
            server.theta.mask,
            numbers,
            seed=self.config.seed,
            round=server.round,
            purpose="random growth",
        )
        grown = {layer: all_alike(sizes[layer], own) for layer, own in positions.items()}
        server.theta, _ = grow_and_drop(server.theta, grown, numbers)
