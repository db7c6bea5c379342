"""A federated run of the digits with a bare Cortex-M7 among its devices, beside one in Python.

    python benchmarks/board_federation.py [--rounds 2]

Device 0 is fedtiny-device, started by the run; device 1 is that program, which connects over TCP;
device 2 is the program for 64-bit ARM under qemu-aarch64; and device 3 is its firmware on QEMU's
mps2-an500, whose UART is a serial line. In every round each of the four is killed while it is at
work, and started again. Both runs must choose the same candidate, and grow and drop the same
weights within a hundredth of them; no device may fail. The learning rate is 1e-4: at 1e-3 rounding
grows in training.
"""

import argparse
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
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
BOARD = "qemu-system-arm -M mps2-an500 -display none -monitor none -serial pty -kernel"
AGREEING = 0.99  # share of the weights of the first adjustment that must be the same
ON_BOARD = 3
AT_WORK = 0.5  # seconds after which an emulated device has read its request
POWER_OFF = 1.0  # seconds that a device which the run does not start stays away


class Outside:
    """A device that somebody else than the run switches on."""

    def __init__(self, command: str, started: Callable[[subprocess.Popen[str]], None]) -> None:
        self.command = shlex.split(command)
        self.started = started
        self._timer = threading.Timer(0.0, self._start)
        self._timer.run()

    def _start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        self.started(self.process)

    def kill(self) -> None:
        """It loses its power, and has it again soon."""
        self.close()
        self._timer = threading.Timer(POWER_OFF, self._start)
        self._timer.start()

    def close(self) -> None:
        """It loses its power for good."""
        if self._timer.is_alive():
            self._timer.join()
        self.process.kill()
        self.process.communicate()


def plugged_in(line: Path) -> Callable[[subprocess.Popen[str]], None]:
    """Give the terminal that QEMU makes of a UART the same name each time, as a system does."""

    def plug_in(board: subprocess.Popen[str]) -> None:
        line.unlink(missing_ok=True)
        line.symlink_to(board.stdout.readline().split()[4])

    return plug_in


class Watcher(Silent):
    """Keeps the mask at the start and after every round, and who has failed."""

    def __init__(self, outside: dict[int, Outside]) -> None:
        self.masks: list[Mask] = []
        self.failed: dict[str, str] = {}
        self.outside = outside
        self.killed = 0

    def started(self, assembly, folder, records) -> None:
        self.server = assembly.server
        transport = assembly.server.transport
        if remote := getattr(transport.executor, "remote", None):
            answers, transport.executor.answers = transport.executor.answers, self.answers
            self.asked, self.remote = answers, remote

    def answers(self, tasks):
        """Ask all devices, and kill them before they have answered if they were told to train."""
        found = self.asked(tasks)
        if tasks[0].request.action == "train":
            for device in range(4):
                time.sleep(AT_WORK if device == 2 else 0.0)
                outside = self.outside.get(device)
                (outside or self.remote[device].place.process).kill()
                self.killed += 1
        return found

    def selected(self, selection) -> None:
        self.masks.append(self.server.theta.mask)

    def round_done(self, record) -> None:
        self.masks.append(self.server.theta.mask)
        self.failed |= record["failed"]

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


def programs(config: Config, folder: Path) -> dict[str, Path]:
    """Build all of them, and write the data of those whom the run does not give theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    assembly = assemble(config)
    for device in (1, ON_BOARD):
        shard = assembly.server.transport.shards[device]
        (folder / f"device{device}.ftd").write_bytes(shard.to_bytes())
    assembly.server.transport.close()
    data = folder / f"device{ON_BOARD}.ftd"
    made = {"here": device_program.build(folder / "fedtiny-device")}
    with compiler("aarch64-linux-gnu-g++"):
        made["foreign"] = device_program.build(folder / "fedtiny-device-aarch64")
    with compiler("arm-none-eabi-g++"):
        made["firmware"] = device_program.build_firmware(folder / "firmware.elf", data)
    for path in made.values():
        print(f"{path}: {path.stat().st_size} bytes")
    return made


@contextmanager
def devices(config: Config, folder: Path) -> Iterator[tuple[str, dict[int, Outside]]]:
    """What --device.program takes, and the devices that are started here."""
    made, line = programs(config, folder), (folder / "ttyM7").absolute()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    connecting = f"{made['here']} {folder / 'device1.ftd'} --connect {address}"
    with (
        closing(Outside(connecting, lambda process: None)) as second,
        closing(Outside(f"{BOARD} {made['firmware']}", plugged_in(line))) as board,
    ):
        yield (
            f"0={made['here']} {{data}}; 1=tcp://{address}; "
            f"2=qemu-aarch64 {made['foreign']} {{data}}; {ON_BOARD}=serial:{line}",
            {1: second, ON_BOARD: board},
        )


def play(
    config: Config, out: Path, outside: dict[int, Outside]
) -> tuple[fedtiny.Result, Watcher, float]:
    """A run, what it came to and its seconds."""
    shutil.rmtree(out, ignore_errors=True)
    watcher, start = Watcher(outside), time.monotonic()
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
    runs = {"Python": play(config, folder / "python", {})}
    with devices(config, folder) as (named, outside):
        far = replace(config, device=replace(config.device, program=named))
        runs["programs"] = play(far, folder / "programs", outside)
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
    print(f"{other.killed} times a device was killed at work; {len(other.failed)} devices failed")
    for device, why in other.failed.items():
        print(f"device {device}: {why}")
    chosen = [r.selection["selection"]["chosen"] for r in (home, away)]
    all_came_back = other.killed == 4 * asked.rounds and not other.failed
    if chosen[0] != chosen[1] or same < AGREEING or not all_came_back:
        sys.exit("the programs did not come to what devices in Python come to")


if __name__ == "__main__":
    main()
