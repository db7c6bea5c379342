"""The nodes of a Flower federation as the fleet of a run."""

from dataclasses import dataclass, field

from flwr.serverapp import Grid

from fedtiny.config import Config
from fedtiny.data import DataSet
from fedtiny.flower.assignments import Assignments, recalled
from fedtiny.flower.kit import Kit
from fedtiny.flower.node_registry import NodeRegistry, Say
from fedtiny.flower.settings import FlowerSettings
from fedtiny.flower.transport import FlowerTransport
from fedtiny.runs.fleet import Premises
from fedtiny.runs.folder import RunFolder, read_json
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

    def open_transport(self, premises: Premises) -> FlowerTransport:
        """Wait until every device has its node, or for as long as the settings say."""
        fleet, kit = premises.config.fleet, Kit.of(premises, self._own_data)
        known = read_json(self.folder.nodes)["devices"] if self.folder.nodes.exists() else {}
        shares = () if self._own_data else [len(own) for own in premises.split.devices.devices]
        self.assignments = Assignments(fleet.devices, recalled(known), shares)
        self.registry = NodeRegistry(
            self.grid, kit, self.assignments, self.settings, self.folder, self.say
        )
        self.registry.present(wanted=fleet.devices, least=fleet.min_replies)
        return FlowerTransport(self.registry)

    def note(self) -> None:
        if self.registry:
            self.registry.note()

    @property
    def _own_data(self) -> bool:
        return self.settings.data == "own"
