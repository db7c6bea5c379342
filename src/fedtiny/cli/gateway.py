"""fedtiny gateway."""

from contextlib import closing
from dataclasses import dataclass
from typing import Annotated

import tyro

from fedtiny.config.checks import DAY
from fedtiny.errors import ConfigError, plural


@dataclass(frozen=True)
class Arguments:
    """Stand for a device without Python as a node of a Flower federation.

    It holds the connection of one fedtiny-device; the SuperNode that is started with
    --node-config 'gateway="HOST:PORT"' asks the device through it. Ctrl-C ends it.
    """

    place: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PLACE")]
    """Where the device is: tcp://HOST:PORT, to which it connects, or, with TLS,
    tls://HOST:PORT?cert=FILE&key=FILE&ca=FILE; serial:/dev/ttyACM0?baud=115200; or the command of
    a program, which is started."""
    listen: str = "127.0.0.1:7070"
    """Where the SuperNode asks for it; who can connect there can train with it. HOST:PORT or, with
    TLS, HOST:PORT?cert=FILE&key=FILE&ca=FILE."""
    timeout: float = 600.0
    """Seconds that the device may take for an answer, and to appear."""


def command(arguments: list[str]) -> int:
    """Parse, wait for the device and serve."""
    asked = tyro.cli(Arguments, prog="fedtiny gateway", args=arguments)
    if not 0 < asked.timeout <= DAY:
        raise ConfigError(f"--timeout must be above 0 and at most {DAY}, got {asked.timeout:g}")
    from fedtiny.devices.gateway import DeviceGateway
    from fedtiny.devices.listener import Listener
    from fedtiny.devices.place_names import place_of

    with (
        closing(place_of(f"{'tls' if '?' in asked.listen else 'tcp'}://{asked.listen}")) as door,
        closing(place_of(asked.place)) as place,
        closing(DeviceGateway(place, asked.timeout)) as gateway,
    ):
        assert isinstance(door, Listener)
        hello = gateway.hello
        number = "any device" if hello.device is None else f"device {hello.device}"
        shape = "x".join(map(str, hello.shape))
        print(f"{hello.name} is here: {number}, {plural(hello.samples, 'sample')} of {shape}")
        address = f"{door.address}?ca=FILE" if door.tls else door.address
        print(f"""start its SuperNode with --node-config 'gateway="{address}"'""", flush=True)
        gateway.serve(door)
    return 0
