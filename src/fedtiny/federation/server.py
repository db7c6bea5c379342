"""The server: what it knows, and how it asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedtiny.aliases import old_attributes
from fedtiny.config import Config
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Arrays, Request
from fedtiny.federation.public import PublicSet
from fedtiny.federation.transport import ABSENT, STRAGGLER, Outcome, Traffic, Transport
from fedtiny.federation.verbs import Program
from fedtiny.models.param_spec import ParamSpec
from fedtiny.randomness import generator
from fedtiny.sparse.theta import Theta

FINAL = "final model"


@old_attributes
@dataclass
class Server:
    """The state of a run, all of which a checkpoint holds, and the transport to the devices.

    `memory` (plain JSON) and `arrays` are for what a method must remember between rounds.
    """

    config: Config
    transport: Transport
    theta: Theta
    public: PublicSet | None = None
    round: int = 0
    coarse_pruned: bool = False
    memory: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    failed: dict[int, str] = field(default_factory=dict)

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
    ) -> Outcome:
        """Ask this round's devices, and keep account of the bytes and of who failed."""
        request = Request(
            action=action,
            method=self.config.method,
            round=self.round,
            program=program,
            theta=self.theta if theta is None else theta,
            arrays=arrays or {},
        ).identified(self.config.seed)
        outcome = self.transport.ask(self._sampled(action), request, reducer, top_weights)
        self.traffic += outcome.traffic
        self.failed |= outcome.failed
        if not outcome.answered and not set(outcome.failed.values()) <= {ABSENT, STRAGGLER}:
            reasons = [f"device {k}: {why}" for k, why in outcome.failed.items()][:3]
            raise FedTinyError(
                f"no device answered '{action}' in round {self.round} ({'; '.join(reasons)})"
            )
        return outcome

    def enough(self, outcome: Outcome) -> bool:
        """Whether the replies reach the stated minimum."""
        return len(outcome.answered) >= self.config.fleet.min_replies

    def take_account(self) -> tuple[Traffic, dict[int, str]]:
        """The bytes and failures since the last account, which starts anew."""
        account = self.traffic, self.failed
        self.traffic, self.failed = Traffic(), {}
        return account

    def _sampled(self, action: str) -> list[int]:
        """A fraction of the devices in a round of training; every device otherwise."""
        devices, asked = list(self.transport.devices), self.config.fleet.asked
        if action != "train" or asked >= len(devices):
            return devices
        there = self.transport.present()
        draw = generator(self.config.seed, "participants", round=self.round)
        chosen = draw.choice(there, size=min(asked, len(there)), replace=False)
        return sorted(int(device) for device in chosen)
