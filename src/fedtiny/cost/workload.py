"""What one device is asked to do: everything that a cost is worked out from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

import numpy as np

from fedtiny import methods
from fedtiny.config import Config, ResolvedConfig, resolve
from fedtiny.cost.network import IMAGES, Network, describe, layer_flow, least_small, named
from fedtiny.errors import ConfigError
from fedtiny.federation.bn_statistics import measuring
from fedtiny.federation.messages import Arrays, Request, pool_arrays
from fedtiny.federation.method import CoarseRequest, Method
from fedtiny.federation.reply_spec import without_weights
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Transport
from fedtiny.federation.verbs import DeviceLoad, LayerFlops, Losses, Program, Train, Verb, typed
from fedtiny.models import Traced, check_reads
from fedtiny.models.param_spec import ParamSpec, Shape
from fedtiny.sparse.densities import uniform
from fedtiny.sparse.flow import LayerFlow
from fedtiny.sparse.mask import Indices, Mask
from fedtiny.sparse.theta import Theta, length

if TYPE_CHECKING:
    from torch import nn

    from fedtiny.models.analysis import LayerProfile

PAPER_SAMPLES = 5_000
MAX_ROUNDS = 100_000  # that are looked at for programs which differ


class CostInputs(TypedDict, total=False):
    """What a config does not say. Left out: CIFAR-10's images and classes, 5,000 samples."""

    shape: Shape
    classes: int
    samples: int
    model: "nn.Module"
    """A network of your own, in place of the one that the config names."""
    graph: Traced
    """What tracing the network gave, so that it is not traced again."""
    flow: LayerFlow
    """What flows through the network, so that it is not measured again."""


class CountedMask(Mask):
    """A mask of which only the number of kept weights is known, in the memory of a number."""

    def __init__(self, param_spec: ParamSpec, counts: Mapping[str, int]) -> None:
        self.param_spec = param_spec
        self._kept = {
            layer: None if counts[layer] == size else np.broadcast_to(np.int32(0), counts[layer])
            for layer, size in param_spec.sizes.items()
        }

    def indices(self, layer: str) -> Indices:
        """The first positions, for want of the real ones."""
        return np.arange(self.kept(layer), dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Workload:
    """A method that trains a network under a mask on a device with so many samples.

    `network` is what devices train, `large` what it is compared with; they differ for the small
    model alone. What devices do is asked of the method itself, round by round, with a server that
    holds a model without values.
    """

    config: ResolvedConfig
    method: Method
    network: Network
    large: Network
    mask: Mask
    samples: int
    flow: LayerFlow
    """Of the large network."""

    @classmethod
    def of(cls, config: Config, **inputs: Unpack[CostInputs]) -> "Workload":
        """What a config asks of a device, under its layer budgets.

        One threshold over a method's own scores is not known before training: costed as uniform.
        """
        resolved = resolve(config)
        large = _large(resolved, **inputs)
        flow = inputs.get("flow") or layer_flow(large, inputs.get("model"), resolved)
        return cls._with(resolved, large, inputs.get("samples", PAPER_SAMPLES), flow)

    @classmethod
    def _with(
        cls, config: ResolvedConfig, large: Network, samples: int, flow: LayerFlow
    ) -> "Workload":
        method = method_of(config)
        method.flow = flow
        built = method.resolve(config, lambda: large.profile.parameters)
        other = built.model != config.model
        if other:
            check_reads(built.model, large.shape, method.name)
        network = named(built, large.shape, large.classes) if other else large
        mask = first_mask(method, network.param_spec)
        return cls(config, method, network, large, mask, samples, flow)

    def at(self, density: float) -> "Workload":
        """The same work with another target density."""
        config = replace(self.config, density=density)
        return self._with(config, self.large, self.samples, self.flow)

    def under(self, mask: Mask) -> "Workload":
        """The same work with the mask that a run has come to."""
        return replace(self, mask=mask)

    @property
    def kept(self) -> int:
        """Number of kept prunable weights."""
        return self.mask.count

    @property
    def least_kept(self) -> int:
        """The fewest weights of the large network that can be asked for."""
        param_spec = self.large.param_spec
        if self.network is self.large:
            return len(param_spec.prunable)
        share = least_small(self.large) / self.large.profile.parameters
        return min(param_spec.prunable_count, ceil(share * param_spec.prunable_count) + 1)

    @property
    def public(self) -> int:
        """Images of the server's public one-shot set D_s."""
        return self.config.data.n_shots * self.network.classes

    @cached_property
    def load(self) -> DeviceLoad:
        """What the costs of a verb follow from."""
        train, ratio = self.config.train, self.config.selection.development_ratio
        return DeviceLoad(
            layers=tuple(map(self._layer, self.network.profile.layers)),
            param_spec=self.network.param_spec,
            samples=self.samples,
            batch=min(train.batch_size, self.samples),
            development=min(self.samples, max(2, round(ratio * self.samples))),
            other=2 * self.network.profile.other_macs,
        )

    def _layer(self, layer: "LayerProfile") -> LayerFlops:
        kept = self.mask.counts.get(layer.weight, layer.size)
        return LayerFlops(layer.name, kept, 2 * kept * layer.uses, 2 * layer.macs)

    @cached_property
    def coarse(self) -> tuple[CoarseRequest, ...]:
        """What devices are asked before the first round."""
        return self.method.coarse_requests(self.network.param_spec)

    @cached_property
    def averaged(self) -> CoarseRequest | None:
        """What devices are asked after the last round, of a final model that is an average."""
        param_spec = self.network.param_spec
        frozen = self.config.train.freeze_bn < 1 or self.config.privacy.differential
        if self.config.server.average == "none" or frozen or not param_spec.norms:
            return None
        counts = np.array([list(self.mask.counts.values())], dtype=np.int32)
        program = (measuring(self.config.selection),)
        return CoarseRequest(program, dict(self.mask.counts), pool_arrays(counts))

    @property
    def candidates(self) -> int:
        """Number of candidates that devices compare, in one pool or in several."""
        compared = sum(asked.candidates for asked in self.coarse if Losses() in asked.program)
        return compared or max((asked.candidates for asked in self.coarse), default=0)

    @cached_property
    def programs(self) -> dict[int, Program]:
        """The programs of a run that differ, each by the first round that has it."""
        last = max(self.config.rounds, self.plain_round + 1)
        first: dict[str, int] = {}
        for round in (*range(min(last, MAX_ROUNDS)), self.plain_round):
            first.setdefault(repr(self.program(round)), round)
        return {round: self.program(round) for round in first.values()}

    @property
    def plain_round(self) -> int:
        """A round after the last that may adjust."""
        return self.config.pruning.r_stop + 1

    def program(self, round: int) -> Program:
        """What the method asks of a device in a round; plain training if it cannot be asked."""
        asked = self._asked(self._theta, round)
        return (Train(self.config.train.local_epochs),) if isinstance(asked, str) else asked

    def arrays(self, round: int) -> Arrays:
        """What the method sends a device beside the model; nothing if it cannot be asked."""
        try:
            return self.method.request_arrays(self._server(self._theta, round))
        except Exception:
            return {}

    @property
    def trouble(self) -> str:
        """Why the method cannot be asked, or nothing."""
        if type(self.method) is Method:
            return "is not installed here"
        asked = self._asked(self._theta, 0)
        return f"needs a run under way ({asked})" if isinstance(asked, str) else ""

    @property
    def unknown_verbs(self) -> list[str]:
        """A third party's verbs that are no class of their own: what they cost is not known."""
        programs = [*self.programs.values(), *(asked.program for asked in self.coarse)]
        return sorted({v.name for program in programs for v in program if type(v) is Verb})

    def requests(self) -> list[Request]:
        """What devices are asked in a run, each question that differs once, without a model."""
        theta, name = without_weights(self.network.param_spec), self.config.method
        asked = [(own.program, own.arrays) for own in self.coarse]
        asked += [(own, self.arrays(round)) for round, own in self.programs.items()]
        return [Request("", name, 0, program, theta, arrays) for program, arrays in asked]

    @property
    def sums_gradients(self) -> bool:
        """Whether the method asks for dense gradients at all, were there enough weights to swap."""
        param_spec = self.network.param_spec
        half = {layer: size // 2 for layer, size in param_spec.sizes.items()}
        asked = self._asked(_without_values(CountedMask(param_spec, half)), 0)
        return any(isinstance(verb, Train) and verb.sum_dense_gradients for verb in asked)

    @cached_property
    def _theta(self) -> Theta:
        return _without_values(self.mask)

    def _server(self, theta: Theta, round: int) -> Server:
        """A server that knows the round and how many weights are kept, and nothing else."""
        return Server(self.config, cast(Transport, None), theta, round=round)

    def _asked(self, theta: Theta, round: int) -> Program | str:
        """The method's own program for a model, or what kept it from giving one."""
        server = self._server(theta, round)
        try:
            program = (*self.method.train_locally(server), *self.method.score(server))
            return tuple(map(typed, program))
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def method_of(config: ResolvedConfig) -> Method:
    """The method of a config; plain sparse training in the place of one that is not installed."""
    try:
        return methods.create(config)
    except ConfigError:
        return Method(config)


def layer_flow_of(config: Config, **inputs: Unpack[CostInputs]) -> LayerFlow:
    """What flows through the network that a config names, or through one's own."""
    resolved = resolve(config)
    return layer_flow(_large(resolved, **inputs), inputs.get("model"), resolved)


def _large(config: Config, **inputs: Unpack[CostInputs]) -> Network:
    """The network before anything is pruned."""
    own, graph, (shape, classes) = inputs.get("model"), inputs.get("graph"), IMAGES["cifar10"]
    shape, classes = inputs.get("shape", shape), inputs.get("classes", classes)
    if own is None:
        return named(config, shape, classes, graph)
    return describe(own, shape, classes, graph=graph, depthwise=config.pruning.depthwise)


def first_mask(method: Method, param_spec: ParamSpec) -> CountedMask:
    """The mask of round 0, of which only the counts are known; some methods begin denser."""
    first = method.density_limit(0)
    at_target = method.budgets and first == method.config.density
    counts = method.first_counts(param_spec) if at_target else uniform(param_spec, first)
    return CountedMask(param_spec, dict(zip(param_spec.prunable, counts.tolist(), strict=True)))


def _without_values(mask: Mask) -> Theta:
    """Zeros, whose memory is never touched."""
    return Theta(mask, np.zeros(length(mask), np.float32))
