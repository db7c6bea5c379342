"""FedTiny over masks of synaptic flow, which stay as they are."""

from fedtiny.methods.fedtiny import FedTiny


class FedTinyFlow(FedTiny):
    """FedTiny over a pool of synaptic-flow cuts, with a falling rate and server momentum.

    From FedTiny: candidates with noisy layer densities, compared on the devices by adaptive
    batch-norm selection, within the memory of a sparse model. From SynFlow: the flow that says how
    many weights of a layer, and which, a candidate keeps, divided by operations so that it fits two
    budgets (`--pruning.flow-beta`, `--flops-budget`). In a network that is one chain that flow
    would gather in few units; there each unit is divided by its mean (`--pruning.flow-normalize`),
    which is ours. The mask is not adjusted: that would cost accuracy. From federated optimization:
    SGD with a rate that falls as a cosine, and FedAvgM. Where losses cannot tell candidates apart,
    the one with the most weights that carry something from the image to the output is taken; that
    rule is ours.
    """

    name = "fedtiny_flow"
    adjusts = False
    extrudes = False
    pool = "flow"
    tolerance = 0.003  # VGG11 at density 0.001: all candidates lie within this of ln 10
