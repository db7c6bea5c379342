"""A federated run of the digits with a bare Cortex-M7 among its devices, beside one in Python.

    python benchmarks/board_federation.py [--rounds 2]

Devices 0 and 1 are fedtiny-device on this machine, device 2 is that program for 64-bit ARM under
qemu-aarch64, and device 3 is its firmware on QEMU's mps2-an500, over the UART. Device 0 is killed
after every round. Both runs must choose the same candidate, and grow and drop the same weights
within a hundredth of them. The learning rate is 1e-4: at 1e-3 rounding grows in training.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from board import PLACE

import fedtiny
from fedtiny.config import Config, from_dict
from fedtiny.native import device_program
from fedtiny.runs.assembly import assemble
from fedtiny.runs.reporter import Silent
from fedtiny.sparse.adjust import mask_changes
from fedtiny.sparse.mask import Mask

PACKAGES = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
    "arm-none-eabi-g++": "gcc-arm-none-eabi libstdc++-arm-none-eabi-newlib",
    "qemu-system-arm": "qemu-system-arm",
}
BOARD = "qemu-system-arm -M mps2-an500 -display none -monitor none -serial stdio -kernel"
AGREEING = 0.99  # share of the weights of the first adjustment that must be the same
ON_BOARD = 3


class Watcher(Silent):
    """Keeps the mask at the start and after every round; kills the program of device 0."""

    def __init__(self) -> None:
        self.masks: list[Mask] = []

    def started(self, assembly, folder, records) -> None:
        self.server = assembly.server

    def selected(self, selection) -> None:
        self.masks.append(self.server.theta.mask)

    def round_done(self, record) -> None:
        self.masks.append(self.server.theta.mask)
        remote = getattr(self.server.transport.executor, "remote", None)
        if remote is not None:
            remote[0].place.process.kill()

    def adjusted(self) -> set[tuple[str, int]]:
        """The weights that the first adjustment of the mask grew or dropped."""
        for before, after in zip(self.masks, self.masks[1:], strict=False):
            if changes := mask_changes(before, after):
                return {
                    (layer, int(place))
                    for layer, change in changes.items()
                    for place in (*change.grown, *change.dropped)
                }
        return set()


@contextmanager
def compiler(name: str) -> Iterator[None]:
    """Compile with a cross compiler meanwhile."""
    before = os.environ.get("CXX")
    os.environ["CXX"] = name
    try:
        yield
    finally:
        os.environ.pop("CXX")
        if before:
            os.environ["CXX"] = before


def programs(config: Config, folder: Path) -> str:
    """Build all of them; gives what --device.program takes."""
    folder.mkdir(parents=True, exist_ok=True)
    assembly = assemble(config)
    data = folder / f"device{ON_BOARD}.ftd"
    data.write_bytes(assembly.server.transport.shards[ON_BOARD].to_bytes())
    assembly.server.transport.close()
    here = device_program.build(folder / "fedtiny-device")
    with compiler("aarch64-linux-gnu-g++"):
        foreign = device_program.build(folder / "fedtiny-device-aarch64")
    with compiler("arm-none-eabi-g++"):
        firmware = device_program.build_firmware(folder / "firmware.elf", data)
    for made in (here, foreign, firmware):
        print(f"{made}: {made.stat().st_size} bytes")
    return f"0-1={here} {{data}}; 2=qemu-aarch64 {foreign} {{data}}; {ON_BOARD}={BOARD} {firmware}"


def play(config: Config, out: Path) -> tuple[fedtiny.Result, Watcher, float]:
    """A run, what it came to and its seconds."""
    shutil.rmtree(out, ignore_errors=True)
    watcher, start = Watcher(), time.monotonic()
    result = fedtiny.run(config, out=out, reporter=watcher)
    return result, watcher, time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    if lacks := [package for tool, package in PACKAGES.items() if not shutil.which(tool)]:
        sys.exit(f"this needs Debian's {', '.join(lacks)}: apt-get install {' '.join(lacks)}")
    config = from_dict(
        {
            **{"width": 8, "density": 0.1, "rounds": asked.rounds, "device_backend": "native"},
            **{"workers": 1, "fleet": {"devices": 4}, "selection": {"pool_size": 4}},
            **{
                "data": {"limit_train": 300, "limit_test": 100},
                "train": {"local_epochs": 1, "lr": 1e-4},
            },
            "pruning": {"delta_r": 1, "r_stop": 2},
        }
    )
    folder = PLACE / "federation"
    far = replace(config, device=replace(config.device, program=programs(config, folder)))
    runs = {"Python": play(config, folder / "python"), "programs": play(far, folder / "programs")}
    for name, (result, watcher, seconds) in runs.items():
        chosen = result.selection["selection"]["chosen"]
        print(
            f"{name}: candidate {chosen}, {len(watcher.adjusted())} weights adjusted first, "
            f"accuracy {result.accuracy:.4f}, {seconds:.0f} s"
        )
    (home, watched, _), (away, other, _) = runs.values()
    ours, theirs = other.adjusted(), watched.adjusted()
    same = len(ours & theirs) / max(len(ours), len(theirs), 1)
    print(f"{100 * same:.2f}% of the first adjustment is the same")
    chosen = [r.selection["selection"]["chosen"] for r in (home, away)]
    if chosen[0] != chosen[1] or same < AGREEING:
        sys.exit("the programs did not come to what devices in Python come to")


if __name__ == "__main__":
    main()
