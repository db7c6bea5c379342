"""SET: the smallest weights make way for random ones."""

from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.methods.at_start import prune_at_random
from fedtiny.methods.growth import GROWTH
from fedtiny.methods.progressive import mark_extruded, not_extruded
from fedtiny.sparse.adjust import grow_and_drop
from fedtiny.sparse.theta import Theta


class SET(Method):
    """Sparse evolutionary training: the smallest weights make way for ones drawn at random.

    The original trains on one machine and rewires every layer after each epoch. Here the server
    drops and draws after the mean, on FedTiny's schedule and with its pruning numbers, for all
    layers at a time. Devices are asked for nothing but training: no gradient of a pruned weight, no
    buffer, no upload, and nothing is revealed. `--pruning.extrude` has them empty what will be
    dropped.
    """

    name = "set"
    granularity = "entire"
    extrudes = True

    def coarse_prune(self, server: Server) -> None:
        prune_at_random(self, server)

    def aggregate(self, server: Server, outcome: Outcome) -> Theta:
        mark_extruded(server, self.extruded(server))
        return super().aggregate(server, outcome)

    def adjust(self, server: Server, outcome: Outcome) -> None:
        numbers = self.pruning_numbers(server)
        drawn = GROWTH["random"].scores(server, outcome, numbers)
        server.theta, _ = grow_and_drop(server.theta, drawn, numbers, not_extruded(server))
