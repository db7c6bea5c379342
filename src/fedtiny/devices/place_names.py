"""How a user names where devices without Python are.

`tcp://HOST:PORT` is listened at, and devices connect there; `tls://HOST:PORT?cert=FILE&key=FILE` as
well, encrypted, and with `&ca=FILE` only those who show a certificate that it signed;
`serial:/dev/ttyACM0?baud=115200` is a line; `gateway://HOST:PORT` is a `fedtiny gateway` that has
the device, with `?ca=FILE` if that listens with TLS, and `&cert=FILE&key=FILE` if it asks for a
certificate; anything else is the command of a program that speaks on its standard streams.
"""

import contextlib
import re
import shlex
import ssl
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit

from fedtiny.devices import tls
from fedtiny.devices.listener import Listener
from fedtiny.devices.places import BAUD, Gateway, Place, Program, SerialLine
from fedtiny.errors import ConfigError

APART = re.compile(r""";(?=(?:[^'"]|'[^']*'|"[^"]*")*$)""")  # not within quotes
MAX_DIGITS = 12
NUMBERED = re.compile(r"\s*([\d\s,-]+)=(.*)", re.DOTALL)


def place_of(text: str) -> Place:
    """The place of that name."""
    if not text.startswith(("tcp://", "tls://", "gateway://", "serial:")):
        return Program(_command(text))
    try:
        parts = urlsplit(text)
    except ValueError as error:  # as for [::1
        raise _no_address(text) from error
    if text.startswith("tcp://"):
        if parts.query:
            raise ConfigError(f"'{text}' is not encrypted and takes no options; write tls://...")
        return Listener(*_host_and_port(text, parts))
    if text.startswith("tls://"):
        return Listener(*_host_and_port(text, parts), _listening(text, parts))
    if text.startswith("gateway://"):
        return Gateway(*_host_and_port(text, parts), _connecting(text, parts))
    return SerialLine(Path(parts.path), _baud(text, parts))


def _host_and_port(text: str, parts: SplitResult) -> tuple[str, int]:
    with contextlib.suppress(ValueError):
        if parts.hostname and parts.port is not None and not parts.path:
            return parts.hostname, parts.port
    raise _no_address(text)


def _no_address(text: str) -> ConfigError:
    right = f"{text.partition(':')[0]}://127.0.0.1:7000"
    return ConfigError(f"'{text}' is no address; write for example {right}")


def _listening(text: str, parts: SplitResult) -> ssl.SSLContext:
    files = _files(parts)
    if files.keys() not in ({"cert", "key"}, {"cert", "key", "ca"}):
        right = "tls://HOST:PORT?cert=FILE&key=FILE, with &ca=FILE if devices need a certificate"
        raise ConfigError(f"'{text}' does not name the files of TLS; write {right}")
    return tls.listening(**files)


def _connecting(text: str, parts: SplitResult) -> ssl.SSLContext | None:
    files = _files(parts)
    if files and files.keys() not in ({"ca"}, {"ca", "cert", "key"}):
        right = "HOST:PORT?ca=FILE, with &cert=FILE&key=FILE if it asks for a certificate"
        raise ConfigError(f"'{text}' does not name the files of TLS; write {right}")
    return tls.connecting(**files) if files else None


def _files(parts: SplitResult) -> dict[str, Path]:
    options = parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True)
    return {name: Path(file).expanduser() for name, file in options}


def _baud(text: str, parts: SplitResult) -> int:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    baud = options.pop("baud", str(BAUD))
    if options or not baud.isdecimal() or not parts.path.startswith("/"):
        raise ConfigError(f"'{text}' is no serial line; write serial:/dev/ttyACM0?baud={BAUD}")
    return int(baud)


def _command(text: str) -> list[str]:
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"'{text}' is no command: {error}") from error
    if not command:
        raise ConfigError("the command of a device's program is empty; name the program")
    return command


def places_by_device(text: str, devices: int) -> dict[int, str]:
    """Which device is where, as `--device.program` says: for all, or by numbers.

    >>> places_by_device("0,2-3=./program {data}; tcp://127.0.0.1:7000", 5)[2]
    './program {data}'
    >>> places_by_device("1 = qemu-aarch64 ./program {data}", 5)
    {1: 'qemu-aarch64 ./program {data}'}
    """
    found: dict[int, str] = {}
    rest = ""
    for part in filter(str.strip, APART.split(text)):
        numbered = NUMBERED.fullmatch(part)
        if numbered is None and rest:
            raise ConfigError("--device.program names two places for all devices; number one")
        if numbered is None:
            rest = part.strip()
            continue
        for device in _numbers(numbered[1], devices):
            if device in found:
                raise ConfigError(f"--device.program names device {device} twice")
            found[device] = numbered[2].strip()
    others = dict.fromkeys(set(range(devices)) - found.keys(), rest) if rest else {}
    return dict(sorted({**found, **others}.items()))


def _numbers(text: str, devices: int) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        ends = [end.strip() for end in part.split("-")]
        known = len(ends) < 3 and all(end.isdecimal() and len(end) <= MAX_DIGITS for end in ends)
        if not known or int(ends[-1]) < int(ends[0]):
            raise ConfigError(
                f"--device.program takes numbers of devices as in 0,2-3=COMMAND, got '{text}'"
            )
        if int(ends[-1]) >= devices:
            raise ConfigError(
                f"--device.program names device {ends[-1]} and there are {devices}, from 0 on"
            )
        found += range(int(ends[0]), int(ends[-1]) + 1)
    return found
