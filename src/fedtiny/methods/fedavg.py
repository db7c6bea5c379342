"""FedAvg: dense federated averaging, the upper bound that pruning is compared with."""

from fedtiny.federation.method import Method


class FedAvg(Method):
    """Dense federated averaging: nothing is pruned, whatever the target density."""

    name = "fedavg"
    dense = True
    budgets = ()
