"""fedtiny-device as a process, with its standard input and output in hand."""

import json
import subprocess
from pathlib import Path

from fedtiny.devices.channel import Channel
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.federation import wire
from fedtiny.federation.messages import Request

DONE, FAILED, MISSING, HELLO = 0, 1, 3, 4


def resident(process: subprocess.Popen[bytes]) -> int:
    """Most bytes of memory that a process has had at a time."""
    told = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in told if line.startswith("VmHWM"))


class Link:
    """The gateway's end of a device."""

    def __init__(self, *command: str | Path) -> None:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, bufsize=0, **streams)
        self.channel = Channel(self.process.stdout, self.process.stdin, timeout=120)
        said = self.channel.recv_bytes()
        assert said[0] == HELLO
        self.hello = json.loads(said[1:])

    def tell(self, payload: bytes) -> tuple[int, bytes]:
        """The outcome of a message, and what it announces."""
        self.channel.send_bytes(payload)
        found = self.channel.recv_bytes()
        return found[0], found[1:]

    def equip(self, spec: DeviceSpec) -> tuple[int, bytes]:
        """Send a spec."""
        return self.tell(json.dumps(spec.to_plain()).encode())

    def ask(
        self, request: Request, device: int, known: wire.Known = wire.NOTHING_KNOWN
    ) -> tuple[int, bytes]:
        """Send a request."""
        return self.tell(device.to_bytes(4, "little") + wire.encode_request(request, known))

    def close(self) -> str:
        """End the program; gives what it printed as errors."""
        self.channel.close()
        printed = self.process.stderr.read().decode()
        self.process.stderr.close()
        self.process.wait(timeout=10)
        return printed
