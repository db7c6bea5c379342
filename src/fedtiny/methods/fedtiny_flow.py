"""FedTiny with candidates of several kinds and every layer adjusted at a time."""

from fedtiny.methods.fedtiny import FedTiny


class FedTinyFlow(FedTiny):
    """FedTiny over a pool of synaptic-flow, ERK and magnitude cuts, all layers adjusted at a time.

    From FedTiny: candidates with noisy layer densities, compared on the devices by adaptive
    batch-norm selection, and adjustments by top-a gradients within the memory of a sparse model.
    From SynFlow: the flow that says how many weights of a layer, and which, a candidate keeps
    (divided by operations, `--pruning.flow-beta`). From SET and RigL: ERK budgets, and all layers
    at every adjustment. Where losses cannot tell candidates apart, the one with the most weights
    that carry something from the image to the output is taken; that rule is ours.
    """

    name = "fedtiny_flow"
    granularity = "entire"
    pool = "flow,erk,magnitude"
    tolerance = 0.003  # VGG11 at density 0.001: all candidates lie within this of ln 10
