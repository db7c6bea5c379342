"""A model of three layers, a transport to a fake fleet, and a method that keeps a diary."""

import numpy as np

from fedtiny.config import from_dict, resolve
from fedtiny.federation.messages import Reply, Verb
from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome, Traffic, reducer_for
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length

ANATOMY = ParamSpec(
    prunable={"a.weight": (4,), "b.weight": (4,), "c.weight": (2,)},
    dense={"norm.running_mean": (2,), "norm.running_var": (2,), "head.bias": (1,)},
    blocks=(("a.weight", "b.weight"), ("c.weight",)),
    norms=("norm",),
    input_layer="first",
    output_layer="head",
)
FULL = Mask.full(ANATOMY)
HALF = Mask(ANATOMY, {"a.weight": [0, 2], "b.weight": [1, 3], "c.weight": [0]})


def theta_of(mask=HALF, value=0.0):
    """Every value the same."""
    return Theta(mask, np.full(length(mask), value, np.float32))


class FakeTransport:
    """Devices that answer by a function of the device and the request: a reply, or a reason."""

    def __init__(self, devices=3, answer=None):
        self.devices = range(devices)
        self.asked = []
        self.answer = answer or (lambda device, request: Reply(device, 1, request.theta))

    def present(self):
        return self.devices

    def ask(self, devices, request, reducer, top_weights=None):
        self.asked.append((list(devices), request, reducer))
        replies, failed = reducer_for(reducer, top_weights=top_weights), {}
        for device in devices:
            match self.answer(device, request):
                case str() as reason:
                    failed[device] = reason
                case reply:
                    replies.add(reply)
        return replies.outcome(failed, Traffic(down=10 * len(devices), up=len(devices)))

    def state(self):
        return {}

    def restore(self, state, theta):
        pass

    def close(self):
        pass

    @property
    def requests(self):
        return [request for _, request, _ in self.asked]


class Diary(Method):
    """Does what every method does, and writes it down."""

    name = "diary"

    def __init__(self, config):
        super().__init__(config)
        self.calls = []

    def check(self, param_spec):
        self.calls.append("check")

    def coarse_prune(self, server):
        self.calls.append("coarse_prune")
        server.theta = server.theta.remasked(HALF)

    def train_locally(self, server):
        self.calls.append(f"train_locally {server.round}")
        return (Verb("train", {"epochs": 3}),)

    def score(self, server):
        self.calls.append(f"score {server.round}")
        return (Verb("top_gradients", {"counts": {"a.weight": 1}}),)

    def aggregate(self, server, outcome: Outcome):
        self.calls.append(f"aggregate {server.round}")
        return super().aggregate(server, outcome)

    def adjust(self, server, outcome: Outcome):
        self.calls.append(f"adjust {server.round}")
        return super().adjust(server, outcome)


def server_of(transport, theta=None, **config):
    fleet = {"devices": len(transport.devices)} | config.pop("fleet", {})
    settings = resolve(from_dict({"density": 0.5, "fleet": fleet, **config}))
    return Server(settings, transport, theta or theta_of(FULL, 1.0))
