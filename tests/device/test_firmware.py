"""The firmware of a bare Cortex-M7: built without a warning, and awake after half a frame."""

import shutil
import subprocess
import time

import pytest
from tests.devices.tiny import lab

from fedtiny.devices.channel import Channel
from fedtiny.native.compile import CannotCompileError
from fedtiny.native.device_program import CORTEX_M7, LIBRARY, build, build_firmware

from .. import building
from .link import HELLO

CROSS, EMULATOR = "arm-none-eabi-g++", "qemu-system-arm"
BOARD = ("-M", "mps2-an500", "-display", "none", "-monitor", "none", "-serial", "stdio")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "1.ftd"
    path.write_bytes(lab().shards[1].to_bytes())
    return path


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    if not shutil.which(CROSS):
        pytest.skip(f"needs {CROSS}")
    return building.parts(tmp_path_factory, CROSS, CORTEX_M7)


@pytest.mark.slow
def test_the_library_of_a_board_needs_no_threads(parts):
    order = ["arm-none-eabi-nm", parts / LIBRARY]
    names = subprocess.run(order, capture_output=True, text=True, check=True)
    assert "T fedtiny_run" in names.stdout
    for threads in ("pthread", "emutls", "__aeabi_read_tp", "St6thread", "St5mutex"):
        assert threads not in names.stdout


@pytest.mark.slow
def test_the_firmware_builds_strictly_and_wakes_after_half_a_frame(data, parts, monkeypatch):
    monkeypatch.setenv("CXX", f"{CROSS} -Wl,--defsym=ARENA_SIZE=8M")
    firmware = data.with_name("firmware.elf")
    build_firmware(firmware, data, name="board", parts=parts, strict=True)
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
