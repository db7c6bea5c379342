"""What a method of federated pruning is: the hooks of a round that it may change."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fedtiny.config import Config, ResolvedConfig
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import POOL_COUNTS, Arrays
from fedtiny.federation.transport import Outcome
from fedtiny.federation.verbs import Program, Train
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.densities import Counts, erdos_renyi_kernel, uniform
from fedtiny.sparse.flow import LayerFlow
from fedtiny.sparse.schedule import Granularity, Schedule
from fedtiny.sparse.theta import Theta

if TYPE_CHECKING:
    from fedtiny.federation.server import Server

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class CoarseRequest:
    """What devices are asked before the first round, as the cost model needs it."""

    program: Program
    counts: Mapping[str, int]
    """Kept weights by layer of the model that is sent."""
    arrays: Arrays = field(default_factory=dict)

    @property
    def candidates(self) -> int:
        """Number of candidates of the pool that is sent, if one is."""
        return len(self.arrays.get(POOL_COUNTS, ()))


class Method:
    """Plain federated averaging; a method of pruning overrides the hooks in which it differs.

    Everything a method remembers between hooks lives on the server, so that it is saved with
    the run.
    """

    name: ClassVar[str]
    dense: ClassVar[bool] = False
    """Whether the model stays dense, whatever the target density."""
    reducer: ClassVar[str] = "mean"
    granularity: ClassVar[Granularity | None] = None
    """What is adjusted at a time, where the method and not the config says so."""
    budgets: ClassVar[tuple[str, ...]] = ("uniform", "erk", "flow")
    """The settings of --pruning.budgets that make a difference to the method."""
    global_threshold: ClassVar[bool] = False
    """Whether one threshold sets what each layer keeps, whatever --pruning.budgets says."""
    flow: LayerFlow | None = None
    """What flows through the network before training; set by whoever knows the network."""
    native: ClassVar[bool] = True
    """Whether native devices can do all that it asks of them."""
    without_python: ClassVar[bool] = True
    """Whether those of them that have no Python can (--device.program)."""
    extrudes: ClassVar[bool] = False
    """Whether what it drops can be emptied on devices before (--pruning.extrude)."""
    private: ClassVar[bool] = True
    """Whether differential privacy can hide all that its devices send."""
    device_verbs: ClassVar[Mapping[str, Callable[..., None]]] = {}
    """Device-side Python of a third party's own; it runs on the reference engine only."""

    def __init__(self, config: ResolvedConfig) -> None:
        self.config = config

    @cached_property
    def schedule(self) -> Schedule:
        """When the mask is adjusted, and by how much."""
        asked = self.config.pruning
        granularity = self.granularity or asked.granularity
        return Schedule(asked.delta_r, asked.r_stop, granularity, asked.order, asked.rate)

    def pruning_numbers(self, server: "Server") -> dict[str, int]:
        """The layers to adjust at the end of this round, with their a_t^l above zero."""
        return self.schedule.pruning_numbers(server.theta.mask, server.round)

    def layer_counts(self, param_spec: ParamSpec) -> Counts:
        """How many weights each layer keeps at the target density (--pruning.budgets)."""
        density, pruning = self.config.density, self.config.pruning
        if pruning.budgets not in self.budgets or pruning.budgets in ("uniform", "global"):
            return uniform(param_spec, density)
        if pruning.budgets == "erk":
            return erdos_renyi_kernel(param_spec, density)
        if self.flow is None:
            raise FedTinyError("--pruning.budgets flow needs the network, which is not known here")
        return self.flow.counts(density, pruning.flow_beta, pruning.iterations)

    @property
    def needs_flow(self) -> bool:
        """Whether layer counts by synaptic flow are asked for."""
        return self.config.pruning.budgets == "flow"

    @property
    def has_flow_budgets(self) -> bool:
        """Whether flow sets how many weights the layers of any model keep."""
        return self.config.pruning.budgets == "flow" and "flow" in self.budgets

    @property
    def has_global_threshold(self) -> bool:
        """Whether one threshold over scores, not known before there are any, sets layer counts."""
        asked = self.config.pruning.budgets == "global" and "global" in self.budgets
        return self.global_threshold or asked

    @property
    def rescale(self) -> float:
        """How far filters get back the norm that they had before pruning (--pruning.rescale)."""
        asked = self.config.pruning.rescale
        if asked == "auto":
            return 0.0 if self.flow is not None and self.flow.normalized else 1.0
        return asked

    def first_counts(self, param_spec: ParamSpec) -> Counts:
        """The layer counts of the first sparse model, as the cost model takes them."""
        return self.layer_counts(param_spec)

    def check(self, param_spec: ParamSpec) -> None:
        """Refuse a model or a setting that this method cannot work with."""
        if not self.dense:
            uniform(param_spec, self.config.density)

    def remarks(self, param_spec: ParamSpec) -> tuple[str, ...]:
        """What this method does otherwise than asked with such a network, in sentences."""
        return ()

    def resolve(self, config: C, parameters: Callable[[], int]) -> C:
        """The config as this method runs it, given the number of parameters of the network."""
        return replace(config, density=1.0) if self.dense else config

    def density_limit(self, round: int) -> float:
        """The density that the model never exceeds once this round is over."""
        return 1.0 if self.dense else self.config.density

    def coarse_prune(self, server: "Server") -> None:
        """Before the first round: turn the pretrained dense model into the first sparse one."""

    def train_locally(self, server: "Server") -> Program:
        """What every device does with its data in this round (Alg. 2, lines 5 to 8)."""
        return (Train(self.config.train.local_epochs, extrude=self.extruded(server) or None),)

    def extruded(self, server: "Server") -> dict[str, int]:
        """How many weights of a layer devices empty in this round, before they are dropped."""
        asked = self.extrudes and self.config.pruning.extrude
        return self.pruning_numbers(server) if asked else {}

    def score(self, server: "Server") -> Program:
        """What devices measure after training, for the server to adjust by (lines 10 to 14)."""
        return ()

    def request_arrays(self, server: "Server") -> Arrays:
        """What every device is sent in this round beside the model."""
        return {}

    def top_weights(self, server: "Server") -> Mapping[str, int]:
        """Of how many largest kept weights of a layer the server counts who has them.

        The shares are in `outcome.top_weights`.
        """
        return {}

    def aggregate(self, server: "Server", outcome: Outcome) -> Theta:
        """The new global parameters (line 18)."""
        assert outcome.theta is not None
        return outcome.theta

    def adjust(self, server: "Server", outcome: Outcome) -> None:
        """Change the mask by what the devices measured (lines 19 to 26)."""

    def coarse_requests(self, param_spec: ParamSpec) -> tuple[CoarseRequest, ...]:
        """What `coarse_prune` asks of the devices; only the cost model reads it."""
        return ()

    def scored_images(self, public: int) -> int:
        """Images whose dense gradient `coarse_prune` takes on the server, which has so many.

        Layer budgets by synaptic flow are counted where they are measured.
        """
        return 0

    def summary(self, server: "Server") -> dict[str, Any]:
        """What a reader of the run should know of this method's choices, as plain JSON."""
        return {}
