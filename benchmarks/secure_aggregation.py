"""What secure aggregation costs: bytes of a steady round, time of a round, many devices.

Bytes: ResNet18 of width 64 on images of 32 x 32, density 0.01, ten devices, by the cost model, that
tests hold against what crosses the transport; with growth by `gradient` the table of a round that
adjusts. Processor time: digits, ResNet18 of width 16, 100 simulated devices of which 20 are asked,
in one process, each end making its own secrets, keys and masks; the same round without secure
aggregation, with it, without its cryptography, and with noise in shares on the devices. Modes take
turns, and a ratio is that of rounds side by side, since a machine may be busy; pairs of devices
that meet for the first time agree on a secret, which is in the first rounds. Many: the protocol
alone, every device and the server in one process, each pair's secret computed by both, on vectors
of as many values as ResNet18 has at density 0.01, one device in fifty dropped.

    python benchmarks/secure_aggregation.py [--rounds 40] [--devices 100 1000] [--values 137633]
                                            [--json FILE]
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtiny import cost
from fedtiny.config import Config, DataConfig, FleetConfig, PrivacyConfig
from fedtiny.federation.rounds import next_round, prepare
from fedtiny.privacy.secagg import discrete_gaussian
from fedtiny.privacy.secagg.ciphers import Cryptography, SigningKey
from fedtiny.privacy.secagg.device import SecureDevice
from fedtiny.privacy.secagg.server import Messages, SecureSum
from fedtiny.privacy.secagg.terms import KEYS, Message, Terms
from fedtiny.runs.assembly import assemble, computing_on

RUN = bytes(16)
MODES = {
    "plain": PrivacyConfig(),
    "secure": PrivacyConfig(secure_aggregation=True),
    "without cryptography": PrivacyConfig(secure_aggregation=True, cryptography=False),
    "noise on devices": PrivacyConfig(
        secure_aggregation=True, noise_multiplier=1.0, noise="devices", sampling="fixed"
    ),
}


def steady_bytes() -> dict[str, dict[str, int]]:
    """Bytes of a device in a round that adjusts nothing, down and up."""
    found = {}
    for mode in ("plain", "secure"):
        config = Config(data=DataConfig("cifar10"), density=0.01, privacy=MODES[mode])
        told = cost.summary(config)
        found[mode] = {"down": told["bytes_down"], "up": told["bytes_up"]}
    return found


def extras() -> dict[str, dict[str, int]]:
    """What a device has more of by growth, in the words of the cost model."""
    found = {}
    for growth in ("shared", "gradient"):
        config = Config(data=DataConfig("cifar10"), density=0.01, privacy=MODES["secure"])
        config = replace(config, pruning=replace(config.pruning, growth=growth))
        told = cost.summary(config)
        found[growth] = told["secure_aggregation"] | {"adjusting_up": told["bytes_adjusting_up"]}
    return found


def side_by_side(seconds: dict[str, list[float]], mode: str) -> dict[str, float]:
    """How many times a plain round a round takes: of all rounds, and the median of pairs."""
    own, plain = np.array(seconds[mode]), np.array(seconds["plain"])
    return {"total": float(own.sum() / plain.sum()), "median": float(np.median(own / plain))}


def noise_seconds(values: int, times: int = 5) -> float:
    """Processor seconds in which a device draws its share of the noise, the least of some."""
    found = []
    for number in range(times):
        started = time.process_time()
        discrete_gaussian.draw(values, discrete_gaussian.MAX_BITS, bytes([number]) * 32)
        found.append(time.process_time() - started)
    return min(found)


def round_seconds(rounds: int) -> dict[str, list[float]]:
    """Seconds of each round by mode; modes take turns, so that a busy machine is busy for all."""
    fleet = FleetConfig(devices=100, fraction=0.2, partition="iid")
    config = Config(density=0.01, width=16, rounds=rounds + 1, workers=1, fleet=fleet)
    config = replace(config, pruning=replace(config.pruning, growth="shared"))
    runs = {mode: assemble(replace(config, privacy=own)) for mode, own in MODES.items()}
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    with computing_on(1):
        for run in runs.values():
            prepare(run.server, run.method)
            next_round(run.server, run.method, rounds + 1)
        for _ in range(rounds):
            for mode, run in runs.items():
                started = time.process_time()
                next_round(run.server, run.method, rounds + 1)
                seconds[mode].append(time.process_time() - started)
    for run in runs.values():
        run.server.transport.close()
    return seconds


class Many:
    """A fleet that only aggregates."""

    def __init__(self, devices: int, values: int) -> None:
        privacy, self.values = MODES["secure"], values
        self.ciphers, signers = Cryptography(), [SigningKey() for _ in range(devices)]
        directory = {device: own.public for device, own in enumerate(signers)}
        limits = {"neighbors": privacy.neighbors, "threshold": privacy.threshold}
        self.devices = [
            SecureDevice(device, RUN, own, directory, self.ciphers, **limits)
            for device, own in enumerate(signers)
        ]
        self.terms = Terms(RUN, 1, 0, 1, tuple(range(devices)), *limits.values())
        self.spent = {"devices": 0.0, "server": 0.0}

    def seeds(self, asked: Messages) -> Messages:
        told = asked.items()
        return self._timed(lambda: {k: self.devices[k].seeds(1, one.entries) for k, one in told})

    def shares(self, asked: Messages) -> Messages:
        told = asked.items()
        return self._timed(lambda: {k: self.devices[k].shares(1, one.entries) for k, one in told})

    def _timed(self, work: Any) -> Any:
        started = time.process_time()
        answer = work()
        self.spent["devices"] += time.process_time() - started
        return answer

    def exchange(self) -> dict[str, Any]:
        """One exchange: seconds a device and of the server, after keys are known."""
        count, draw = len(self.devices), np.random.default_rng(0)
        keys = {own.device: own.key().entries[own.device] for own in self.devices}
        for own in self.devices:
            peers = self.terms.graph[own.device]
            own.meet(Message(KEYS, 0, own.device, {peer: keys[peer] for peer in peers}))
        total, exact = SecureSum(self.terms, self.values, self.ciphers), np.zeros(self.values, "u4")
        for own in self.devices[count // 50 :]:
            vector = draw.integers(0, 2**32, self.values, dtype=np.uint32)
            exact += vector
            message = self._timed(lambda own=own, v=vector: own.masked(self.terms, v, 0, 1))
            total.add(message)
        started, before = time.process_time(), self.spent["devices"]
        assert np.array_equal(total.result(self), exact)
        unmasking = time.process_time() - started - (self.spent["devices"] - before)
        total.close()
        return {
            "devices": count,
            "neighbors": self.terms.degree,
            "dropped": count // 50,
            "seconds_a_device": self.spent["devices"] / count,
            "seconds_server": unmasking,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--devices", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--values", type=int, default=137_633)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sent, seconds = steady_bytes(), round_seconds(options.rounds)
    print("bytes of a steady round of a device, ResNet18 at density 0.01, 10 devices:")
    for mode, own in sent.items():
        print(f"  {mode:22} {own['down']:>9,} down {own['up']:>9,} up")
    ratio = sum(sent["secure"].values()) / sum(sent["plain"].values())
    print(f"  ratio {ratio:.4f}")
    beside = extras()
    for growth, own in beside.items():
        print(
            f"  growth {growth}: {own['adjusting_up']:,} up in a round that adjusts, of which a "
            f"table {own['table_bytes']:,}; {own['masks']} masks, {own['mask_bytes']:,} bytes"
        )
    print("processor seconds of a round, 20 of 100 devices, digits, mean and median:")
    ratios = {mode: side_by_side(seconds, mode) for mode in seconds}
    for mode, own in seconds.items():
        total, median = ratios[mode].values()
        shown = f"{total:.2f} times plain, median {median:.2f}"
        print(f"  {mode:22} {np.mean(own):.3f} {np.median(own):.3f}  {shown}")
    noise = noise_seconds(options.values)
    print(f"noise of a device on {options.values:,} values: {noise * 1e3:.0f} ms")
    many = []
    print(f"one exchange of {options.values:,} values:")
    for count in options.devices:
        found = Many(count, options.values).exchange()
        many.append(found)
        each, server = found["seconds_a_device"] * 1e3, found["seconds_server"]
        print(
            f"  {count} devices, {found['neighbors']} neighbors, {found['dropped']} dropped: "
            f"{each:.1f} ms a device, {server:.1f} s server"
        )
    if options.json:
        told = {
            "bytes": sent,
            "by_growth": beside,
            "seconds": seconds,
            "times_plain": ratios,
            "noise_seconds": noise,
            "many": many,
            "values": options.values,
        }
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
