"""What a device without Python says of itself when it is met."""

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from fedtiny.devices.workers import FAILED
from fedtiny.errors import FedTinyError, WireError, printable
from fedtiny.federation import wire
from fedtiny.models.param_spec import Shape

HELLO = b"\4"  # an outcome, beside those of a task
SENTENCE_BYTES = 1024  # of a failure, at most
NO_DEVICE = "it did not introduce itself as a fedtiny device"
MAX_SENTENCE = 300
HELLO_BYTES = 4096  # at most
LINK_VERSION = 1
MOST = 2**40
MAX_TEXT = 60
LANES = (4, 8, 16)
DIGEST = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class Hello:
    """Who a device is, what data it has and how it computes."""

    name: str
    device: int | None
    """The number that its data were written for, if they were for one."""
    samples: int
    development: int
    shape: Shape
    classes: int
    digest: str
    """Of its data, as `DeviceData.digest` has it."""
    lanes: int
    """Images that it computes at once."""
    memory: int
    """Most bytes that it can take; 0 is no limit."""

    @classmethod
    def read(cls, frame: bytes) -> "Hello":
        """What a device sent, if it is a hello that can be understood here."""
        if frame[:1] == FAILED:  # a gateway that has no device
            raise FedTinyError(sentence(frame[1:]) or NO_DEVICE)
        if frame[:1] != HELLO:
            raise WireError(NO_DEVICE)
        try:
            told = json.loads(frame[1:])
        except (ValueError, RecursionError) as error:
            raise WireError("its hello is not plain JSON") from error
        if not isinstance(told, dict):
            raise WireError("its hello is not plain JSON")
        for name, own in (("link", LINK_VERSION), ("wire", wire.FORMAT_VERSION)):
            if told.get(name) != own:
                raise WireError(
                    f"it speaks version {printable(str(told.get(name)))[:MAX_TEXT]} of the {name} "
                    f"format, and this fedtiny {own}; build its program from the same fedtiny"
                )
        shape = told.get("shape")
        if not isinstance(shape, list) or len(shape) != 3:
            raise WireError("its hello lacks the shape of its samples")
        device = told.get("device")
        return cls(
            printable(str(told.get("name", "")))[:MAX_TEXT],
            None if device is None else _integer(told, "device", least=0),
            _integer(told, "samples"),
            _integer(told, "development"),
            tuple(_integer({"shape": side}, "shape") for side in shape),
            _integer(told, "classes"),
            _digest(told),
            _lanes(told),
            _integer(told, "memory", least=0),
        )

    def to_bytes(self) -> bytes:
        """The way back."""
        told = {**asdict(self), "link": LINK_VERSION, "wire": wire.FORMAT_VERSION}
        return HELLO + json.dumps(told).encode()

    @property
    def data(self) -> tuple[int | None, int, int, Shape, int, str]:
        """Which data it has: they never change in a run."""
        sizes = (self.samples, self.development, self.shape, self.classes)
        return (self.device, *sizes, self.digest)

    def check(self, device: int, shape: Shape, classes: int) -> None:
        """Refuse a device whose data are another's or do not fit the run."""
        if self.device not in (None, device):
            raise WireError(
                f"it has the data of device {self.device}, not those of device {device}"
            )
        if self.shape != tuple(shape):
            own, wanted = ("x".join(map(str, each)) for each in (self.shape, shape))
            raise WireError(f"its samples are {own}, and those of the run are {wanted}")
        if self.classes != classes:
            raise WireError(f"its data have {self.classes} classes, and the run has {classes}")


def sentence(said: bytes) -> str:
    """What a device says in words, as it can be shown: its last line, not too long."""
    text = said[:SENTENCE_BYTES].decode(errors="replace").strip().rpartition("\n")[2]
    return printable(text)[:MAX_SENTENCE]


def _integer(told: dict[str, Any], name: str, least: int = 1) -> int:
    value = told.get(name)
    if type(value) is not int or not least <= value < MOST:
        raise WireError(f"its hello has no usable number for '{name}'")
    return value


def _digest(told: dict[str, Any]) -> str:
    digest = str(told.get("digest"))
    if not DIGEST.fullmatch(digest):
        raise WireError(
            "its hello has no digest of its data; build its program from the same fedtiny"
        )
    return digest


def _lanes(told: dict[str, Any]) -> int:
    lanes = _integer(told, "lanes")
    if lanes not in LANES:
        raise WireError(f"it computes {lanes} images at once, and 4, 8 or 16 are known")
    return lanes
