"""The ServerApp: the same server as in a simulation, with Flower's nodes behind its transport."""

from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from fedtiny.config import Config
from fedtiny.data import DataSet
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.errors import FedTinyError
from fedtiny.files import read_json
from fedtiny.finish import finish
from fedtiny.flower import settings as run_settings
from fedtiny.flower.node_registry import Assignments, NodeRegistry, Say, recalled
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.flower.settings import FlowerSettings
from fedtiny.flower.transport import FlowerTransport
from fedtiny.runs.display import Lines
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.runner import resume, run
from fedtiny.runs.split import Split, hold_back, share_out

app = ServerApp()


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


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play a run from its start, or continue the one in its folder."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        _play(grid, context, console)
    except FedTinyError as error:
        console.print(f"fedtiny: error: {error}", markup=False)
        raise


def _play(grid: Grid, context: Context, console: Console) -> None:
    settings, config = run_settings.read(context.run_config)
    folder = RunFolder(Path(settings.run).expanduser().absolute())
    fleet = FlowerFleet(grid, settings, folder, lambda line: console.print(line, markup=False))
    if settings.resume:
        result = resume(folder.path, reporter=Lines(console), fleet=fleet)
    else:
        result = run(config, out=folder.path, reporter=Lines(console), fleet=fleet)
    finish(result)
