"""What a run must know of devices that are not simulated."""

from dataclasses import dataclass
from typing import Protocol

from fedtiny.config import Config
from fedtiny.data import DataSet
from fedtiny.federation.door import Door
from fedtiny.models.anatomy import Anatomy
from fedtiny.native.description import Description
from fedtiny.runs.split import Split


@dataclass(frozen=True)
class Premises:
    """What a door to real devices is built on: the run, its data and its model.

    `description` is the network as native devices take it, or None where they use PyTorch.
    """

    config: Config
    data: DataSet
    split: Split
    anatomy: Anatomy
    description: Description | None


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

    def open_door(self, premises: Premises) -> Door:
        """Wait for the devices, and open the door to them."""

    def note(self) -> None:
        """Write into the run folder who takes part; a folder that tells is not simulated."""
