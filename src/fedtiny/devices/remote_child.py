"""A device in a process of its own: `python -m fedtiny.devices.remote_child`, without torch.

It is given a spec and the data of its devices on its standard input, says that it is ready, and
answers on its standard output until its input ends (see `SubprocessExecutor`).
"""

import contextlib
import os
import signal
import sys

from fedtiny import __version__
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.native_engine import NativeEngine
from fedtiny.devices.workers import DONE, GONE, Channel, serve, trouble


def main() -> None:
    """A child's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = _own_streams()
    with contextlib.suppress(*GONE):
        channel.send_bytes(DONE + __version__.encode())
        text = channel.recv_bytes().decode()
        count = int.from_bytes(channel.recv_bytes(), "little")
        packed = [channel.recv_bytes() for _ in range(count)]
        try:
            spec = DeviceSpec.from_json(text)
            engine, shards = NativeEngine(spec), [DeviceData.from_bytes(each) for each in packed]
        except Exception as error:
            channel.send_bytes(trouble(error))
            return
        channel.send_bytes(DONE)
        serve(channel, engine, spec, shards)


def _own_streams() -> Channel:
    """Standard input and output, kept from anyone who prints."""
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(sys.stderr.fileno(), 1)
    return Channel(reader, writer)


if __name__ == "__main__":
    main()
