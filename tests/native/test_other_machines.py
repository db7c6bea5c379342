"""The library for other machines, compiled by cross compilers and run under QEMU."""

import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from fedtiny.native import library
from fedtiny.native.compile import build, compiler

from .. import building
from . import replay
from .device_networks import MobileNetV2
from .programs import linked, output
from .test_layers import Residual
from .twins import Twins, agree, batch, random_mask, wake_norms


@dataclass(frozen=True)
class Machine:
    """A compiler for it, what to make, and what runs it here."""

    compiler: str
    library: str
    flags: tuple[str, ...]
    emulator: str
    root: str
    packages: str

    @property
    def is_here(self) -> bool:
        return all(map(shutil.which, (self.compiler.split()[0], self.emulator)))


MACHINES = {
    "aarch64": Machine(
        "aarch64-linux-gnu-g++",
        "libfedtiny-aarch64.so",
        (),
        "qemu-aarch64",
        "/usr/aarch64-linux-gnu",
        "g++-aarch64-linux-gnu and qemu-user",
    ),
    "armv7": Machine(  # and of one thread
        "arm-linux-gnueabihf-g++ -mfpu=neon-vfpv4 -mfp16-format=ieee",
        "libfedtiny-armv7.a",
        ("-O1",),
        "qemu-arm",
        "/usr/arm-linux-gnueabihf",
        "g++-arm-linux-gnueabihf and qemu-user",
    ),
}


@pytest.fixture(scope="module", params=MACHINES)
def programs(request, tmp_path_factory):
    """A function that runs a program on a machine and returns what it prints."""
    machine = MACHINES[request.param]
    if not machine.is_here:
        pytest.skip(f"needs Debian's {machine.packages}")
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", machine.compiler)
        made = building.once(
            tmp_path_factory, machine.library, lambda to: build(to, machine.flags, strict=True)
        )
        names = {name: linked(name, made, folder) for name in ("fuzz", "replay")}
    emulator = [machine.emulator, "-L", machine.root]
    return lambda name, *order: output([*emulator, names[name], *order])


def networks():
    """A residual network, one with depthwise convolutions, one of linear layers."""
    layers = [nn.Flatten(), nn.Linear(3 * 36, 20), nn.ReLU(), nn.Linear(20, 5)]
    return {
        "residual": (Residual(), (3, 9, 10)),
        "depthwise": (MobileNetV2(), (1, 8, 8)),
        "linear": (nn.Sequential(*layers), (3, 6, 6)),
    }


def trained(path, name, storage):
    """Torch's training of a network on a file; the x86 library agrees with it as others must."""
    torch.manual_seed(0)
    model, shape = networks()[name]
    rng = np.random.default_rng(2)
    weights = {n: p.numel() for n, p in model.named_parameters() if p.dim() > 1}
    masks = {n: random_mask(size, 0.4, rng) for n, size in weights.items()}
    twins = Twins.make(wake_norms(model), shape, masks, batch=18, optimizer="sgd", storage=storage)
    single = storage == "float32"
    limits = {"gradient_tolerance": 2e-4 if single else 0.05, "state_tolerance": 2e-3}
    classes = twins.native.graph.shapes[-1][0]
    pairs = replay.write(path, twins, batch(rng, 18, shape, classes), **limits)
    agree(pairs["gradients"], limits["gradient_tolerance"], pairs["noise"])
    agree(pairs["states"], limits["state_tolerance"], pairs["noise"])


CASES = pytest.mark.parametrize(
    ("name", "storage"),
    [
        ("residual", "float32"),
        ("depthwise", "float32"),
        ("linear", "float32"),
        ("residual", "float16"),
    ],
)


@pytest.mark.skipif(compiler() is None or not library.available(), reason="needs a C++ compiler")
def test_the_program_that_trains_again_tells_right_from_wrong(tmp_path):
    program, file = linked("replay", library.path(), tmp_path), tmp_path / "case"
    trained(file, "linear", "float32")
    assert " values, 0." in output([program, file])
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 0x40  # the exponent of the last value that is expected
    file.write_bytes(damaged)
    with pytest.raises(AssertionError, match="value of node"):
        output([program, file])


@pytest.mark.slow
@CASES
def test_gradients_and_steps_are_torchs(programs, name, storage, tmp_path):
    trained(tmp_path / "case", name, storage)
    assert programs("replay", tmp_path / "case").startswith("neon: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("programs", "calls"), [("aarch64", 20_000), ("armv7", 5000)], indirect=["programs"]
)
def test_calls_with_sense_and_nonsense(programs, calls):
    assert " calls, " in programs("fuzz", calls, 3)
