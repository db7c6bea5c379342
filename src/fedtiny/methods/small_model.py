"""The small dense model: what one would train without pruning."""

from collections.abc import Callable
from dataclasses import replace

from fedtiny.federation.method import C, Method
from fedtiny.models.param_spec import ParamSpec


class SmallModel(Method):
    """A dense three-convolution network with as many parameters as the pruned model has left.

    The paper compares FedTiny with training a small network from the start. We take the widest
    one whose parameters do not exceed density x N, where N counts all parameters of the large
    network, and train it by federated averaging.
    """

    name = "small_model"
    budgets = ()

    def check(self, param_spec: ParamSpec) -> None:
        """Nothing to refuse: the network is as small as it must be, and dense."""

    def density_limit(self, round: int) -> float:
        return 1.0

    def resolve(self, config: C, parameters: Callable[[], int]) -> C:
        if config.model == "small" and config.parameters is not None:
            return config
        budget = max(1, int(config.density * parameters()))
        return replace(config, model="small", width=None, parameters=budget)
