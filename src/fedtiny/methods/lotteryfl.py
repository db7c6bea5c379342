"""LotteryFL: iterative magnitude pruning of a dense model, with rewinding."""

from fedtiny.config import ResolvedConfig
from fedtiny.errors import ConfigError
from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.densities import uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

INITIAL = "initial theta"


class LotteryFL(Method):
    """Iterative magnitude pruning from a dense model, rewound to its initial values each time.

    The original finds a lottery ticket for each device. The paper prunes one global model, so
    that all devices share a structure. We prune every layer at a fixed rate each delta_r rounds,
    to reach the target at r_stop, and rewind what is left to the pretrained values. Devices train
    dense models at first, so this saves neither memory nor the first rounds' work. A run that ends
    soon after r_stop ends soon after its last rewinding, and shows it.
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
        done = round >= self.schedule.r_stop
        event = self.prunings if done else min(self.schedule.event(round), self.prunings)
        return float(self.config.density ** (event / self.prunings))

    def coarse_prune(self, server: Server) -> None:
        server.arrays[INITIAL] = server.theta.vector

    def adjust(self, server: Server, outcome: Outcome) -> None:
        limit = self.density_limit(server.round)
        if server.theta.mask.density > limit + 1e-9:
            counts = uniform(server.param_spec, limit)
            ticket = prune_by_magnitude(server.theta, counts).mask
            initial = Theta(Mask.full(server.param_spec), server.arrays[INITIAL])
            server.theta = initial.remasked(ticket)
