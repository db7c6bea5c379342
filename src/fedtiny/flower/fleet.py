"""The nodes of a Flower federation as the fleet of a run."""

from dataclasses import dataclass, field

from flwr.serverapp import Grid

from fedtiny.config import Config
from fedtiny.data import DataSet
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.files import read_json
from fedtiny.flower.assignments import Assignments, recalled
from fedtiny.flower.node_registry import NodeRegistry, Say
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.flower.settings import FlowerSettings
from fedtiny.flower.transport import FlowerTransport
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.split import Split, hold_back, share_out


@dataclass
class FlowerFleet:
    """The nodes behind a grid; who they are is known once the transport is open."""

    grid: Grid
    settings: FlowerSettings
    folder: RunFolder
    say: Say
    assignments: Assignments = field(default_factory=lambda: Assignments(0))
    registry: NodeRegistry | None = None

    @property
    def tested_here(self) -> bool:
        return self.settings.test == "server"

    @property
    def samples(self) -> int:
        return self.assignments.samples

    def share_out(self, data: DataSet, config: Config) -> Split:
        sharing = hold_back if self._own_data else share_out
        return sharing(data, config)

    def open_transport(self, spec: DeviceSpec, data: DataSet, split: Split) -> FlowerTransport:
        """Wait until every device has its node, or for as long as the settings say."""
        fleet = spec.config.fleet
        node_spec = NodeSpec(spec, self._own_data, data.shape, data.classes)
        known = read_json(self.folder.nodes)["devices"] if self.folder.nodes.exists() else {}
        shares = () if self._own_data else [len(own) for own in split.devices.devices]
        self.assignments = Assignments(fleet.devices, recalled(known), shares)
        self.registry = NodeRegistry(
            self.grid, node_spec, self.assignments, self.settings, self.folder, self.say
        )
        self.registry.present(expected=fleet.devices, least=fleet.min_replies)
        return FlowerTransport(self.registry)

    def note(self) -> None:
        if self.registry:
            self.registry.note()

    @property
    def _own_data(self) -> bool:
        return self.settings.data == "own"
