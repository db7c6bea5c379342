"""What a run must know of devices that are not simulated."""

from typing import Protocol

from fedtiny.config import Config
from fedtiny.data import DataSet
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.federation.transport import Transport
from fedtiny.runs.split import Split


class Fleet(Protocol):
    """Real devices, wherever they are."""

    @property
    def tested_here(self) -> bool:
        """Whether the server measures accuracy on a test set of its own."""

    @property
    def samples(self) -> int:
        """Images of a device of mean size, as far as devices have told."""

    def share_out(self, data: DataSet, config: Config) -> Split:
        """The server's public images, and what is known of the devices' own."""

    def open_transport(self, spec: DeviceSpec, data: DataSet, split: Split) -> Transport:
        """Wait for the devices, and open the transport to them."""

    def note(self) -> None:
        """Write into the run folder who takes part; a folder that tells is not simulated."""
