"""The server: what it knows, and how it asks."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedtiny.config import ResolvedConfig
from fedtiny.errors import FedTinyError
from fedtiny.federation import private
from fedtiny.federation.messages import Arrays, Request
from fedtiny.federation.public import PublicSet
from fedtiny.federation.transport import ABSENT, NO_SUM, STRAGGLER, Outcome, Traffic, Transport
from fedtiny.federation.verbs import Program
from fedtiny.models.param_spec import ParamSpec
from fedtiny.randomness import generator
from fedtiny.sparse.theta import Theta

FINAL = "final model"
SILENT = {ABSENT, STRAGGLER, NO_SUM}  # why a round may have no reply at all, and the run goes on


class Account(NamedTuple):
    """Bytes, who failed, who was out of bounds, and the exchanges of secure aggregation."""

    traffic: Traffic
    failed: dict[int, str]
    bounded: dict[int, str]
    exchanges: list[Mapping[str, Any]]


@dataclass(frozen=True)
class ServerState:
    """Where a run stands between two rounds; arrays are replaced and never changed in place."""

    theta: Theta
    round: int
    memory: dict[str, Any]
    arrays: dict[str, Any]


@dataclass
class Server:
    """The state of a run, all of which a checkpoint holds, and the transport to the devices.

    `memory` (plain JSON) and `arrays` are for what a method must remember between rounds.
    """

    config: ResolvedConfig
    transport: Transport
    theta: Theta
    public: PublicSet | None = None
    round: int = 0
    coarse_pruned: bool = False
    memory: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    failed: dict[int, str] = field(default_factory=dict)
    bounded: dict[int, str] = field(default_factory=dict)
    exchanges: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def model(self) -> Theta:
        """What is measured and saved: theta, or after the last round an average over rounds."""
        final = self.arrays.get(FINAL)
        return self.theta if final is None else Theta(self.theta.mask, final)

    @property
    def param_spec(self) -> ParamSpec:
        """The parameter spec of the model in training."""
        return self.theta.param_spec

    def ask(
        self,
        action: str,
        program: Program,
        *,
        theta: Theta | None = None,
        arrays: Arrays | None = None,
        reducer: str = "mean",
        top_weights: Mapping[str, int] | None = None,
        without: Collection[int] = (),
    ) -> Outcome:
        """Ask this round's devices, but for some, and keep account of bytes and of who failed."""
        request = Request(
            action=action,
            method=self.config.method,
            round=self.round,
            program=program,
            theta=self.theta if theta is None else theta,
            arrays=arrays or {},
            mechanism=private.mechanism(self, action, program),
        ).identified(self.config.seed)
        devices = [device for device in self._sampled(action) if device not in without]
        outcome = self.transport.ask(devices, request, reducer, top_weights)
        self.traffic += outcome.traffic
        self.failed |= outcome.failed
        self.bounded |= outcome.bounded
        self.exchanges += [outcome.exchange] if outcome.exchange else []
        private.spend(self, outcome)
        whys = set(outcome.failed.values())
        if not outcome.answered and NO_SUM not in whys and not whys <= SILENT:
            reasons = [f"device {k}: {why}" for k, why in outcome.failed.items()][:3]
            raise FedTinyError(
                f"no device answered '{action}' in round {self.round + 1} ({'; '.join(reasons)})"
            )
        return outcome

    def enough(self, outcome: Outcome) -> bool:
        """Whether the replies reach the stated minimum; under privacy any number does."""
        return (
            self.config.privacy.differential
            or len(outcome.answered) >= self.config.fleet.min_replies
        )

    def take_account(self) -> Account:
        """What came of the questions since the last account."""
        account = Account(self.traffic, self.failed, self.bounded, self.exchanges)
        self.traffic, self.failed, self.bounded, self.exchanges = Traffic(), {}, {}, []
        return account

    def state(self) -> ServerState:
        """Where the run stands, to be put back there."""
        memory, arrays = deepcopy(self.memory), dict(self.arrays)
        return ServerState(self.theta, self.round, memory, arrays)

    def put_back(self, state: ServerState) -> None:
        """Stand again where the run stood."""
        self.theta, self.round = state.theta, state.round
        self.memory, self.arrays = deepcopy(state.memory), dict(state.arrays)

    def _sampled(self, action: str) -> list[int]:
        """A fraction of the devices in a round of training; every device otherwise."""
        if self.config.privacy.differential:
            return private.sampled(self)
        devices, asked = list(self.transport.devices), self.config.fleet.asked
        if action != "train" or asked >= len(devices):
            return devices
        there = self.transport.present()
        draw = generator(self.config.seed, "participants", round=self.round)
        chosen = draw.choice(there, size=min(asked, len(there)), replace=False)
        return sorted(int(device) for device in chosen)
