"""FedRTS: the mask is drawn by Thompson sampling from what was seen of every weight."""

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome, top_of_kept
from fedtiny.federation.verbs import Program, TopGradients
from fedtiny.methods.at_start import prune_at_random
from fedtiny.randomness import generator
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.top import highest
from fedtiny.sparse.vector import SparseVector

POSTERIOR = "posterior."
SHARE_OF_MEAN = 0.5  # gamma: what the averaged model says, against what the devices say
UNKNOWN = 0.5  # what the averaged model says of a pruned weight
VOTED_BELOW = 0.05  # the density below which few of all links have a vote


class FedRTS(Method):
    """Thompson sampling: masks drawn from a Beta posterior of every weight, fed by votes.

    In the original, as here, the first mask is random. In every round a kept weight counts as a
    success as far as it is among the largest K - a of its layer, in the mean and on the devices; in
    an adjusting round a pruned one as far as devices name it among their largest a gradients, of
    which they send the positions alone. Then one value is drawn from each posterior and the K
    largest of a layer make the new mask. The server reads the devices' largest weights off their
    replies. As published, all links take part in the draw; at low density those without a vote
    outnumber the others by far and win. So below density 0.05 only kept and voted ones do
    (`--pruning.draw` chooses). We use FedTiny's schedule and pruning numbers.
    """

    name = "fedrts"
    private = False
    granularity = "entire"

    def coarse_prune(self, server: Server) -> None:
        prune_at_random(self, server)
        for layer, size in server.param_spec.sizes.items():
            server.arrays[POSTERIOR + layer] = np.ones((2, size), dtype=np.float32)  # alpha, beta

    def score(self, server: Server) -> Program:
        numbers = self.pruning_numbers(server)
        epsilon = self.config.pruning.gradient_epsilon
        return (TopGradients(numbers, epsilon, votes=True),) if numbers else ()

    def top_weights(self, server: Server) -> dict[str, int]:
        """The K - a of each layer that are safe, until the last round that may adjust."""
        if server.round > self.schedule.r_stop:
            return {}
        sizes = server.param_spec.sizes
        return {
            layer: kept - self.schedule.pruning_number(server.round, kept, sizes[layer] - kept)
            for layer, kept in server.theta.mask.counts.items()
        }

    def adjust(self, server: Server, outcome: Outcome) -> None:
        mask, counts = server.theta.mask, self.top_weights(server)
        in_mean = top_of_kept(server.theta, counts)
        for layer, on_devices in outcome.top_weights.items():
            self._observe(server, layer, mask.indices(layer), in_mean[layer], on_devices)
        drawn = {}
        draw = generator(self.config.seed, "thompson sampling", round=server.round)
        for layer in self.pruning_numbers(server):
            votes = outcome.gradients[layer]
            pruned = np.flatnonzero(~mask.array(layer).reshape(-1))
            self._observe(server, layer, pruned, UNKNOWN, votes.dense()[pruned])
            drawn[layer] = self._drawn(server, layer, votes, draw)
        server.theta = server.theta.remasked(mask.replace(drawn))

    def _observe(
        self,
        server: Server,
        layer: str,
        positions: NDArray[np.integer],
        in_mean: NDArray[np.float32] | float,
        on_devices: NDArray[np.float32],
    ) -> None:
        """Count a round in, as often as it has devices: X to alpha, 1 - X to beta."""
        outcome = SHARE_OF_MEAN * in_mean + (1 - SHARE_OF_MEAN) * on_devices
        posterior, devices = server.arrays[POSTERIOR + layer].copy(), self.config.fleet.asked
        posterior[0, positions] += devices * outcome
        posterior[1, positions] += devices * (1 - outcome)
        server.arrays[POSTERIOR + layer] = posterior

    def _drawn(
        self, server: Server, layer: str, votes: SparseVector, draw: np.random.Generator
    ) -> NDArray[np.integer]:
        """As many positions as the layer keeps: those of the largest draws."""
        links = self._links(server.theta.mask, layer, votes)
        alpha, beta = server.arrays[POSTERIOR + layer][:, links]
        return links[highest(draw.beta(alpha, beta), server.theta.mask.kept(layer))]

    def _links(self, mask: Mask, layer: str, votes: SparseVector) -> NDArray[np.integer]:
        """Those that take part in the draw."""
        asked = self.config.pruning.draw
        if asked == "all" or (asked == "auto" and self.config.density >= VOTED_BELOW):
            return np.arange(mask.param_spec.sizes[layer])
        return np.union1d(mask.indices(layer), votes.indices)
