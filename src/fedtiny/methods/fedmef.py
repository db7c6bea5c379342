"""FedMef: what is to be dropped is emptied first, in the round before the mask changes."""

from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.federation.verbs import Program, TopGradients, Train
from fedtiny.methods.at_start import prune_at_random
from fedtiny.sparse.adjust import Change, changed
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import largest, smallest
from fedtiny.sparse.vector import SparseVector


class FedMef(Method):
    """Budget-aware extrusion: weights to be dropped are penalized first, so that others take over.

    In the original, as here, the first mask is random. In an adjusting round the a smallest kept
    weights of each layer, as devices receive them, are marked on both sides; devices train with a
    penalty on them and, where the learning rate falls over the rounds, with a raised one; the
    server drops the marked ones, whatever they have become, and grows those of largest averaged
    gradient. The original's network has no batch norm and keeps few activations for the backward
    pass: that is `--model resnet18_ns`; extrusion goes with any network. We use FedTiny's schedule
    and pruning numbers, for all layers at a time. Native devices cannot extrude.
    """

    name = "fedmef"
    private = False
    granularity = "entire"
    native = False

    def coarse_prune(self, server: Server) -> None:
        prune_at_random(self, server)

    def train_locally(self, server: Server) -> Program:
        numbers = self.pruning_numbers(server)
        return (Train(self.config.train.local_epochs, extrude=numbers or None),)

    def score(self, server: Server) -> Program:
        numbers = self.pruning_numbers(server)
        epsilon = self.config.pruning.gradient_epsilon
        return (TopGradients(numbers, epsilon),) if numbers else ()

    def aggregate(self, server: Server, outcome: Outcome) -> Theta:
        """The mean, without the weights that were marked in what devices received."""
        assert outcome.theta is not None
        changes = {
            layer: _change(server.theta, layer, outcome.gradients[layer], number)
            for layer, number in self.pruning_numbers(server).items()
        }
        return changed(outcome.theta, changes)


def _change(received: Theta, layer: str, gradient: SparseVector, number: int) -> Change:
    """As many as can be grown; a weight whose gradient is zero never is."""
    useful = gradient.values != 0
    grown = gradient.indices[useful][largest(gradient.values[useful], number)]
    dropped = smallest(received.kept(layer), len(grown))
    return Change(grown, received.mask.indices(layer)[dropped])
