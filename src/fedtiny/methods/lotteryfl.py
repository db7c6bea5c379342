"""LotteryFL: iterative magnitude pruning of a dense model, with rewinding."""

import numpy as np

from fedtiny.config import ResolvedConfig
from fedtiny.errors import ConfigError
from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.densities import Counts, on_the_way, uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

INITIAL, FINAL = "initial theta", "final layer counts"


class LotteryFL(Method):
    """Iterative magnitude pruning from a dense model, rewound to its initial values each time.

    The original finds a lottery ticket for each device. The paper prunes one global model, so
    that all devices share a structure. We prune every layer at a fixed rate each delta_r rounds,
    to reach the target at r_stop, and rewind what is left to the pretrained values. Devices train
    dense models at first, so this saves neither memory nor the first rounds' work. A run that ends
    soon after r_stop ends soon after its last rewinding, and shows it. Other layer budgets than
    uniform ones are approached from the dense model, each layer at a rate of its own.
    """

    name = "lotteryfl"
    granularity = "entire"

    def __init__(self, config: ResolvedConfig) -> None:
        super().__init__(config)
        self.prunings = max(1, self.schedule.r_stop // self.schedule.delta_r)

    def check(self, param_spec: ParamSpec) -> None:
        super().check(param_spec)
        rounds = self.config.rounds
        if rounds and self.density_limit(rounds - 1) > self.config.density + 1e-9:
            raise ConfigError(
                f"lotteryfl reaches density {self.config.density:g} only in round "
                f"{self.schedule.r_stop + 1}, after the last; raise --rounds or lower "
                "--pruning.r-stop"
            )

    def density_limit(self, round: int) -> float:
        return float(self.config.density ** self._share(round))

    def _share(self, round: int) -> float:
        """How far the model has come from dense to its target, of 1."""
        done = round >= self.schedule.r_stop
        event = self.prunings if done else min(self.schedule.event(round), self.prunings)
        return event / self.prunings

    def coarse_prune(self, server: Server) -> None:
        server.arrays[INITIAL] = server.theta.vector
        if self.config.pruning.budgets in ("erk", "flow"):
            server.memory[FINAL] = self.layer_counts(server.param_spec).tolist()

    def adjust(self, server: Server, outcome: Outcome) -> None:
        limit = self.density_limit(server.round)
        if server.theta.mask.density > limit + 1e-9:
            ticket = prune_by_magnitude(server.theta, self._counts(server, limit)).mask
            initial = Theta(Mask.full(server.param_spec), server.arrays[INITIAL])
            server.theta = initial.remasked(ticket)

    def _counts(self, server: Server, limit: float) -> Counts:
        if self.config.pruning.budgets not in ("erk", "flow"):
            return uniform(server.param_spec, limit)
        final = np.array(server.memory[FINAL], dtype=np.int32)
        return on_the_way(server.param_spec, final, self._share(server.round))
