"""fedtiny-device on a serial line that loses bytes: the next whole frame is answered."""

import os
import subprocess
import time
import tty

import pytest
from tests.devices.tiny import lab

from fedtiny.devices.channel import Channel

from .link import HELLO, resident

pytestmark = pytest.mark.slow


@pytest.fixture
def serial(program, tmp_path):
    """A device that has said hello at the other end of a serial line."""
    data = tmp_path / "1.ftd"
    data.write_bytes(lab().shards[1].to_bytes())
    near, far = os.openpty()
    tty.setraw(far)
    process = subprocess.Popen([program, data, "--serial", os.ttyname(far)])
    try:
        with os.fdopen(near, "rb+", buffering=0) as line:
            channel = Channel(line, line, timeout=20)
            assert channel.recv_bytes()[0] == HELLO
            yield near, channel, process
    finally:
        process.kill()
        process.wait()
        os.close(far)


def test_noise_on_a_serial_line_is_passed_over(serial):
    near, channel, _ = serial
    os.write(near, b"noise FTc FTch" + bytes([255] * 8) + b"FT")
    channel.send_bytes(b"")
    assert channel.recv_bytes()[0] == HELLO


@pytest.mark.parametrize("cut", [8, 12, 20])
def test_a_frame_that_is_cut_off_on_a_serial_line_ends_by_silence(serial, cut):
    near, channel, process = serial
    before = resident(process)
    os.write(near, (b"FTch" + (200_000_000).to_bytes(8, "little") + bytes(8))[:cut])
    time.sleep(2.5)
    assert resident(process) < before + 1_000_000, "what is only announced takes no memory"
    channel.send_bytes(b"")
    assert channel.recv_bytes()[0] == HELLO
