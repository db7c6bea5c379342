"""SynFlow's cut within budgets of operations, which stays as it is."""

from fedtiny.methods.fedtiny import FedTiny


class FedTinyFlow(FedTiny):
    """SynFlow's cut in budgets of operations, rescaled, with a falling rate and server momentum.

    From SynFlow: the flow that says how many weights of a layer, and which, are kept, divided by
    operations so that they fit two budgets (`--pruning.flow-beta`, `--flops-budget`). SynFlow with
    the same budgets, rescaling and recipe trains the same model. From FedTiny: a model pruned on
    the server after a short training on public data, and sparse training within the memory of a
    sparse model. Of projection shortcuts flow would leave one weight each: they keep what uniform
    budgets leave them (`--pruning.flow-floor`). In a network that is one chain flow would gather in
    few units; there each unit is divided by its mean (`--pruning.flow-normalize`). Both are ours.
    What is left of a filter before batch norm is scaled to the norm that the filter had
    (`--pruning.rescale`), after the initialization of sparse networks by Evci and others, so that
    the few weights left do not learn at many times the rate of a dense filter; not in a chain,
    where the one pair of held-out runs loses by it. The mask is neither selected nor adjusted: on
    held-out images neither has shown a gain beyond the differences of seeds. From federated
    optimization: SGD with a rate that falls as a cosine, and FedAvgM, searched with masks of flow.
    How the defaults came about is in docs/decisions.md.

    With `--selection.kind adaptive_bn` candidates with noisy layer densities are compared as in
    FedTiny; where losses cannot tell them apart, the one with the most weights that carry something
    from the image to the output is taken.
    """

    name = "fedtiny_flow"
    adjusts = False
    extrudes = False
    pool = "flow"
    tolerance = 0.003  # VGG11 at density 0.001: all candidates lie within this of ln 10
