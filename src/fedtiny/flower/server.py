"""The ServerApp: the same server as in a simulation, with Flower's nodes behind its transport."""

from dataclasses import dataclass

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from fedtiny.config import Config
from fedtiny.data import DataSet
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.errors import FedTinyError
from fedtiny.federation.secure_exchange import SecureServer
from fedtiny.finish import finish
from fedtiny.flower import settings as run_settings
from fedtiny.flower.node_registry import NodeRegistry, Say
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.flower.settings import FlowerSettings
from fedtiny.flower.transport import FlowerTransport
from fedtiny.paths import user_path
from fedtiny.privacy.secagg.ciphers import Cryptography
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reporter import Lines
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
    registry: NodeRegistry | None = None

    @property
    def tested_here(self) -> bool:
        return self.settings.test == "server"

    @property
    def samples(self) -> int:
        return self.registry.samples if self.registry else 0

    def share_out(self, data: DataSet, config: Config) -> Split:
        sharing = hold_back if self._own_data else share_out
        return sharing(data, config)

    def open_transport(self, spec: DeviceSpec, data: DataSet, split: Split) -> FlowerTransport:
        """Wait until every device has its node, or for as long as the settings say."""
        fleet = spec.config.fleet
        privacy = spec.config.privacy
        secure = SecureServer(spec.config, Cryptography()) if privacy.secure_aggregation else None
        session = secure.run if secure else b""
        node_spec = NodeSpec(spec, self._own_data, data.shape, data.classes, session)
        if secure:
            secure.spec = node_spec.lasting_text
        shares = () if self._own_data else [len(own) for own in split.devices.devices]
        self.registry = NodeRegistry(
            self.grid, node_spec, self.settings, self.folder, self.say, shares
        )
        self.registry.present(expected=fleet.devices, least=fleet.min_replies)
        return FlowerTransport(self.registry, secure)

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
    folder = RunFolder(user_path(settings.run, "flower.run").absolute())
    fleet = FlowerFleet(grid, settings, folder, lambda line: console.print(line, markup=False))
    if settings.resume:
        result = resume(folder.path, reporter=Lines(console), fleet=fleet)
    else:
        result = run(config, out=folder.path, reporter=Lines(console), fleet=fleet)
    finish(result)
