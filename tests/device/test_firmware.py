"""The firmware of a bare Cortex-M7: built without a warning, and awake after half a frame."""

import shutil
import subprocess
import time

import pytest
from tests.devices.tiny import lab

from fedtiny.devices.channel import Channel
from fedtiny.native.compile import CannotCompileError
from fedtiny.native.device_program import build, build_firmware

from .link import HELLO

CROSS, EMULATOR = "arm-none-eabi-g++", "qemu-system-arm"
BOARD = ("-M", "mps2-an500", "-display", "none", "-monitor", "none", "-serial", "stdio")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "1.ftd"
    path.write_bytes(lab().shards[1].to_bytes())
    return path


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which(CROSS), reason=f"needs {CROSS}")
def test_the_firmware_builds_strictly_and_wakes_after_half_a_frame(data, monkeypatch):
    monkeypatch.setenv("CXX", f"{CROSS} -Wl,--defsym=ARENA_SIZE=8M")
    firmware = build_firmware(data.with_name("firmware.elf"), data, name="board", strict=True)
    assert firmware.read_bytes()[:4] == b"\x7fELF"
    if not shutil.which(EMULATOR):
        return
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    board = subprocess.Popen([EMULATOR, *BOARD, "-kernel", firmware], bufsize=0, **pipes)
    try:
        channel = Channel(board.stdout, board.stdin, timeout=60)
        hello = channel.recv_bytes()
        assert hello[0] == HELLO
        assert b'"memory":8388608' in hello
        board.stdin.write(b"FTch" + (50).to_bytes(8, "little") + b"half")
        time.sleep(4)
        channel.send_bytes(b"")
        assert channel.recv_bytes() == hello
    finally:
        board.kill()
        board.wait()
        board.stdin.close()
        board.stdout.close()


def test_what_cannot_be_built_is_said_before_it_is_tried(data):
    target = data.with_name("firmware.elf")
    with pytest.raises(CannotCompileError, match="no folder"):
        build(data.parent / "missing" / "program")
    with pytest.raises(CannotCompileError, match="no data file"):
        build_firmware(target, data.with_name("2.ftd"))
    with pytest.raises(CannotCompileError, match=r"the name .* cannot have quotes"):
        build_firmware(target, data, name='a "board"')
    odd = data.rename(data.with_name('a"b.ftd'))
    with pytest.raises(CannotCompileError, match=r"the path .* cannot have quotes"):
        build_firmware(target, odd)
