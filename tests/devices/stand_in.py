"""A stand-in for the program of a device without Python: it speaks the link's protocol in Python.

    python tests/devices/stand_in.py DATA [--connect HOST:PORT] [--lie KIND] [--times FILE]

With a lie it is not honest: see `lies`. FILE counts its starts, for lies that are told once.
"""

import argparse
import json
import socket
import struct
import sys
import time
from pathlib import Path

from fedtiny.devices.channel import MARK, Channel
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.native_engine import NativeEngine
from fedtiny.devices.node import Receiver, answer
from fedtiny.errors import FedTinyError
from fedtiny.federation import wire

DONE, FAILED, MISSING, HELLO = b"\0", b"\1", b"\3", b"\4"


class Device:
    """What the program holds: its data, and a spec, mask and theta from the gateway."""

    def __init__(self, data, lie=""):
        self.data, self.lie = data, lie
        self.replies = []

    def hello(self, question=""):
        """What it says of itself."""
        told = {
            **{"fedtiny": "any", "wire": wire.FORMAT_VERSION, "link": 1, "name": "stand-in"},
            **{"device": self.data.device, "samples": len(self.data)},
            **{"development": len(self.data.development), "shape": self.data.data.shape},
            **{"classes": len(self.data.data.classes), "instructions": "python"},
            **{"digest": self.data.digest, "lanes": 4, "memory": 0, "question": question},
        }
        told |= json.loads(self.lie) if self.lie.startswith("{") else {}
        return HELLO + json.dumps(told).encode()

    def outcome(self, frame):
        """What it answers to a frame."""
        if not frame or frame[:1] == b"?":
            return self.hello(frame[1:].decode())
        try:
            if frame[4:8] != b"FTNY":
                spec = DeviceSpec.from_plain(json.loads(frame))
                self.spec, self.engine = spec, NativeEngine(spec)
                self.receiver = Receiver()
                return DONE
            return DONE + self.reply(frame)
        except wire.MissingVersion as error:
            return MISSING + str(error).encode()
        except FedTinyError as error:
            return FAILED + str(error).encode()

    def reply(self, frame):
        """A reply in the wire format."""
        if self.lie == "fails":
            raise FedTinyError("it does not fit:\n1 MB \x1b[2J " + "x" * 900)
        if self.lie == "forgets":
            self.receiver = Receiver()
        number = int.from_bytes(frame[:4], "little")
        request = self.receiver.receive(frame[4:], self.spec.param_spec)
        data = DeviceData(number, self.data.data, self.data.indices, self.data.development)
        found = answer(self.engine, request, data, self.spec.config.seed)
        self.replies.append(wire.encode_reply(found, request.theta.mask))
        return self.replies[0 if self.lie == "replays" else -1]


def lies(device, channel, out):
    """Do what no honest device does, if that is what this one is for."""
    if device.lie == "long":
        channel._write(MARK + struct.pack("<Q", 1 << 40), None)
        channel.recv_bytes()
    elif device.lie == "huge":
        channel._write(MARK + struct.pack("<Q", len(out) + 50_000) + out, None)
        channel.recv_bytes()
    elif device.lie == "babbles":
        channel._write(b"Hello, world!" * 10, None)
    elif device.lie == "dies":
        raise EOFError
    elif device.lie == "sleeps":
        channel.recv_bytes()
    elif device.lie == "restarts":
        channel.send_bytes(device.hello())
    elif device.lie == "garbage":
        channel.send_bytes(b"\0garbage")
    elif device.lie == "unknown":
        channel.send_bytes(b"\x77what")
    else:
        return False
    return True


def serve(device, channel):
    """Say hello, and answer until the gateway goes away."""
    channel.send_bytes(device.hello())
    while True:
        frame = channel.recv_bytes()
        out = device.outcome(frame)
        if frame[4:8] != b"FTNY" or not lies(device, channel, out):
            channel.send_bytes(out)
            device.lie = device.lie.removeprefix("later ")


def main():
    """As the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--connect")
    parser.add_argument("--lie", default="")
    parser.add_argument("--times", type=Path, help="lie at the first start only")
    asked = parser.parse_args()
    if asked.times and asked.times.exists():
        asked.lie = ""
    if asked.times:
        asked.times.touch()
    data = DeviceData.from_bytes(asked.data.read_bytes())
    while True:
        try:
            if not asked.connect:
                return serve(Device(data, asked.lie), Channel(sys.stdin.buffer, sys.stdout.buffer))
            host, port = asked.connect.split(":")
            with socket.create_connection((host, int(port))) as connected:
                serve(Device(data, asked.lie), Channel(connected, connected))
        except (EOFError, OSError):
            if not asked.connect:
                return None
            time.sleep(0.1)


if __name__ == "__main__":
    main()
