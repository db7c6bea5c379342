"""fedtiny-device as a process, the gateway's end of its link, and its data file."""

import json
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np

from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.workers import Channel
from fedtiny.federation import wire
from fedtiny.federation.messages import Reply, Request

DONE, FAILED, MISSING, HELLO = 0, 1, 3, 4


def data_file(shard: DeviceData) -> bytes:
    """A device's data as its program reads them."""
    own, places = np.unique(np.concatenate([shard.indices, shard.development]), return_inverse=True)
    data = shard.data.subset(own)
    is_float = data.images.dtype.kind == "f"
    images = data.images.astype("<f4" if is_float else "u1").tobytes()
    numbers = (1, shard.device, len(own), len(shard.indices), len(shard.development))
    shape = data.images.shape[1:]
    head = struct.pack("<4s11I", b"FTdd", *numbers, *shape, len(data.classes), is_float, 0)
    content = head + places.astype("<u4").tobytes() + data.labels.astype("<u4").tobytes() + images
    content += bytes(-len(content) % 4)
    return content + struct.pack("<I", zlib.crc32(content))


class Gateway:
    """The other end of a device's standard input and output."""

    def __init__(self, program: Path, data: Path, *options: str, runner: tuple[str, ...] = ()):
        self.process = subprocess.Popen(
            [*runner, program, data, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.channel = Channel(self.process.stdout, self.process.stdin)
        self.hello = self._hello(self.channel.recv_bytes())

    @staticmethod
    def _hello(payload: bytes) -> dict:
        assert payload[0] == HELLO
        return json.loads(payload[1:])

    def tell(self, payload: bytes) -> tuple[int, bytes]:
        """The outcome of a message, and what it announces."""
        self.channel.send_bytes(payload)
        found = self.channel.recv_bytes()
        return found[0], found[1:]

    def equip(self, spec: DeviceSpec) -> tuple[int, bytes]:
        return self.tell(json.dumps(spec.to_plain()).encode())

    def ask(self, request: Request, device: int, known=wire.NOTHING_KNOWN) -> Reply | str:
        """The reply to a request, or the sentence why there is none."""
        task = device.to_bytes(4, "little") + wire.encode_request(request, known)
        outcome, found = self.tell(task)
        if outcome != DONE:
            return found.decode()
        return wire.decode_reply(found, request.theta.param_spec, request.theta.mask)

    def close(self) -> str:
        """End the program; gives what it printed on its error output."""
        self.channel.close()
        printed = self.process.stderr.read().decode()
        self.process.stderr.close()
        self.process.wait(timeout=10)
        return printed

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
