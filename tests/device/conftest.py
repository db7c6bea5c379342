"""The program as users build it but for -fPIC, compiled once for all of pytest's processes."""

import shutil

import pytest

from fedtiny.native import device_program
from fedtiny.native.compile import compiler
from fedtiny.native.library import available

from .. import building
from ..building import once

CROSS = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    """What the programs for this machine have in common."""
    if compiler() is None or not available():
        pytest.skip("needs a C++ compiler and the native library")
    return building.parts(tmp_path_factory)


@pytest.fixture(scope="session")
def program(tmp_path_factory, parts):
    """fedtiny-device for this machine."""

    def make(target):
        device_program.build(target, parts=parts, strict=True)

    return once(tmp_path_factory, "fedtiny-device", make)


@pytest.fixture(scope="session")
def program_with_tls(tmp_path_factory, parts):
    """fedtiny-device for this machine, with TLS."""
    if not device_program.has_mbedtls():
        pytest.skip("needs mbedTLS (Debian: libmbedtls-dev)")

    def make(target):
        device_program.build_with_tls(target, parts=parts, strict=True)

    return once(tmp_path_factory, "fedtiny-device-tls", make)


@pytest.fixture(scope="session")
def foreign_program(tmp_path_factory):
    """The command of fedtiny-device for 64-bit ARM, under QEMU."""
    if not shutil.which(CROSS) or not shutil.which(EMULATOR):
        pytest.skip(f"needs {CROSS} and {EMULATOR}")
    common = building.parts(tmp_path_factory, CROSS)

    def make(target):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CXX", CROSS)
            device_program.build(target, parts=common, strict=True)

    return f"{EMULATOR} {once(tmp_path_factory, 'fedtiny-device-aarch64', make)}"
