"""Attacks of one to three of ten devices by defence: accuracy, and who is named.

FedTiny on the digits with the small network, Dirichlet(0.5), three seeds. Each cell is the mean
accuracy over the seeds; a star marks that every hostile device was named in every run. "absent"
is what is lost with their data alone. In brackets: the share of test images that a backdoor
turns, and of final weights where forged gradients wanted them. The last rows have the largest loss
of a seed, in points, in the attacks above x-1: beside the run without the hostile devices, and
beside the run in which all are honest. Tables: runs in which all are honest, with and without
bounds; one hostile device, by how many samples it has; one to three, by defence. "run fails" is
one that no device can go on with. Results are kept in the JSON file, each with a digest of the code
that decides it, and one of the present code is not run again. With --stored nothing is run, and
what is missing or of other code is a dash. To share the work out, let every process have a file and
runs of its own (names end in the defence and the seed), and merge the files:

    python benchmarks/attacks.py [--json benchmarks/results/attacks.json] [--seeds 3] [--rounds 16]
                                 [--hostile 1 2 3] [--defences none default ...] [--stored]
    python benchmarks/attacks.py --json part1.json --only '(none|median), seed 0'
    python benchmarks/attacks.py --merge part*.json --stored
"""

import argparse
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedtiny
from fedtiny.config import Config, FleetConfig, RobustnessConfig
from fedtiny.data import ImageSet
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.executors import Executor, Task
from fedtiny.devices.simulator import Simulator
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.rounds import prepare
from fedtiny.runs.acceptance import accepted_round
from fedtiny.runs.assembly import Assembly, assemble
from fedtiny.runs.metrics import Record, selection_record
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

DEVICES, HUGE, TARGET, PATCH = 10, np.float32(1e30), 0, (slice(0, 3), slice(0, 3))
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {"bound": 0.0, "reject": 0.0},
    "default": {},
    "median": {"mean": "median"},
    "trimmed": {"mean": "trimmed", "trim": 0.3},
    "trimmed, buckets of 2": {"mean": "trimmed", "trim": 0.3, "bucket": 2},
    "krum": {"mean": "krum", "trim": 0.3},
    "centered": {"mean": "centered"},
}
"""Robust means are on top of the default bounds."""
PARTITIONS = {
    "iid": ("iid", 0.5),
    "Dirichlet(0.5)": ("dirichlet", 0.5),
    "Dirichlet(0.1)": ("dirichlet", 0.1),
}


@dataclass(frozen=True)
class Attack:
    """How a hostile device changes its data before it works, and its reply afterwards."""

    lie: Callable[[Reply, Request], Reply] = lambda reply, request: reply
    poison: Callable[[DeviceData], DeviceData] = lambda shard: shard
    absent: bool = False
    """Whether it does nothing at all: what is lost with its data."""


def scaled(factor: float) -> Attack:
    """The device's update times a factor."""

    def lie(reply: Reply, request: Request) -> Reply:
        if reply.theta is None:
            return reply
        sent = request.theta.vector.astype(np.float64)
        moved = (sent + factor * (reply.theta.vector - sent)).astype(np.float32)
        return replace(reply, theta=_possible(Theta(reply.theta.mask, moved)))

    return Attack(lie)


def _possible(theta: Theta) -> Theta:
    """No variance is negative, for such a reply is refused."""
    names = [name for name in theta.param_spec.statistics if name.endswith("running_var")]
    return theta.with_dense({name: np.maximum(theta.tensor(name), 0) for name in names})


def _largest(reply: Reply, request: Request) -> Reply:
    if reply.theta is None:
        return reply
    vector = np.full_like(reply.theta.vector, 3e38)
    return replace(reply, theta=Theta(reply.theta.mask, vector))


def _statistics(reply: Reply, request: Request) -> Reply:
    huge = {n: np.full_like(a, HUGE) for n, a in reply.arrays.items() if "running" in n}
    return replace(reply, arrays={**reply.arrays, **huge})


def _losses(reply: Reply, request: Request) -> Reply:
    """No loss for the candidate that is worst on the device."""
    if "losses" not in reply.arrays:
        return reply
    losses = reply.arrays["losses"].copy()
    losses[np.argmax(losses)] = 0
    return replace(reply, arrays={"losses": losses})


def wanted(layer: str, request: Request, count: int) -> np.ndarray[Any, Any]:
    """The positions where the attacker wants weights: the first ones that are pruned."""
    mask = request.theta.mask
    pruned = np.flatnonzero(~mask.array(layer).reshape(-1))
    return pruned[:count].astype(np.int32)


def _gradients(reply: Reply, request: Request, norms: float | None = None) -> Reply:
    """Huge gradients where weights are wanted, or ones of so many times the honest norm."""
    found = {}
    for layer, own in reply.gradients.items():
        positions = wanted(layer, request, len(own))
        root = max(1, len(positions)) ** 0.5
        value = HUGE if norms is None else norms * np.linalg.norm(own.values) / root
        found[layer] = SparseVector(own.size, positions, np.full(len(positions), value, np.float32))
    return replace(reply, gradients=found)


def relabelled(change: Callable[[ImageSet], ImageSet]) -> Callable[[DeviceData], DeviceData]:
    """The device's data with images and labels changed."""
    return lambda shard: replace(shard, data=change(shard.data))


def flipped(data: ImageSet) -> ImageSet:
    """Every label for its opposite."""
    return replace(data, labels=len(data.classes) - 1 - data.labels)


def triggered(data: ImageSet, every: int = 1) -> ImageSet:
    """A bright corner on every so manieth image, which is then of the target's class."""
    images, labels = data.images.copy(), data.labels.copy()
    images[(slice(None, None, every), slice(None), *PATCH)] = images.max()
    labels[::every] = TARGET
    return replace(data, images=images, labels=labels)


ATTACKS = {
    "x100": scaled(100),
    "x-10": scaled(-10),
    "x-5": scaled(-5),
    "x-3": scaled(-3),
    "x3": scaled(3),
    "3e38": Attack(_largest),
    "statistics": Attack(_statistics),
    "losses": Attack(_losses),
    "gradients": Attack(_gradients),
    "gradients x1.5": Attack(partial(_gradients, norms=1.5)),
    "gradients x2.5": Attack(partial(_gradients, norms=2.5)),
    "backdoor": Attack(scaled(10).lie, relabelled(lambda data: triggered(data, every=2))),
    "x-1": scaled(-1),
    "labels": Attack(poison=relabelled(flipped)),
    "absent": Attack(absent=True),
}
LOOKS_HONEST = ("x-1", "labels", "absent")
BY_PLACE_ONLY = ("x-5", "x-3", "x3", "gradients x1.5", "gradients x2.5")
SHOWN = {"backdoor": "backdoor"} | dict.fromkeys(
    ("gradients", "gradients x1.5", "gradients x2.5"), "placed"
)
LARGEST, SMALLEST = "largest", "smallest"


class KnownReplies:
    """Replies of honest devices: to the same request they are the same in all runs of a seed."""

    MOST = 8000

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], Reply | FedTinyError] = {}

    def of(self, task: Task, work: Callable[[], Reply | FedTinyError]) -> Reply | FedTinyError:
        key = task.shard.device, hash(task.shard.indices.tobytes()), task.request.id
        reply = self._known.pop(key) if key in self._known else work()
        self._known[key] = reply
        if len(self._known) > self.MOST:
            self._known.pop(next(iter(self._known)))
        return reply


KNOWN = KnownReplies()


@dataclass
class HostileExecutor:
    """Lets some devices attack; the others work as ever."""

    own: Executor
    attack: Attack
    hostile: Sequence[int]
    positions: dict[str, set[int]] = field(default_factory=dict)
    """Where weights are wanted, by layer."""

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        for task, reply in zip(tasks, self._honest(tasks), strict=True):
            if task.shard.device in self.hostile and isinstance(reply, Reply):
                if self.attack.absent:
                    yield FedTinyError("absent")
                    continue
                reply = self.attack.lie(reply, task.request)
                for layer, own in reply.gradients.items():
                    self.positions.setdefault(layer, set()).update(own.indices.tolist())
            yield reply

    def _honest(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        """What is answered before anybody lies; work on poisoned data is never known."""
        poisoned = self.attack.poison is not Attack.poison
        for task in tasks:
            if poisoned and task.shard.device in self.hostile:
                yield from self.own.answers([replace(task, shard=self.attack.poison(task.shard))])
            else:
                yield KNOWN.of(task, lambda own=task: next(iter(self.own.answers([own]))))

    def account(self) -> dict[str, Any]:
        return self.own.account()

    def close(self) -> None:
        self.own.close()


def settings(seed: int, rounds: int, robustness: dict[str, Any], partition: str) -> Config:
    kind, alpha = PARTITIONS[partition]
    return Config(
        model="small",
        width=16,
        density=0.2,
        rounds=rounds,
        seed=seed,
        workers=1,
        threads=1,
        simulator="reference",
        fleet=FleetConfig(devices=DEVICES, partition=kind, alpha=alpha),  # type: ignore[arg-type]
        robustness=RobustnessConfig(**robustness),
    )


def played(
    config: Config, attack: Attack | None = None, hostile: Sequence[int] | str = ()
) -> dict[str, Any]:
    """A run, and what it shows of an attack by some devices, or by the largest or smallest."""
    assembly = assemble(config)
    sizes = [len(own) for own in assembly.split.devices.devices]
    if isinstance(hostile, str):
        hostile = [int({LARGEST: np.argmax, SMALLEST: np.argmin}[hostile](sizes))]
    assembly.pretrain()
    transport = assembly.server.transport
    assert isinstance(transport, Simulator)
    executor = HostileExecutor(transport.executor, attack or Attack(), hostile)
    transport.executor = executor
    prepare(assembly.server, assembly.method)
    selection, records, versions = selection_record(assembly), [], []
    while assembly.server.round < assembly.config.rounds:
        try:
            records.append(accepted_round(assembly, time.perf_counter()))
        except FedTinyError:
            return {"ended": assembly.server.round}
        versions.append(f"{assembly.server.theta.version:016x}")
    return {
        "accuracy": records[-1]["accuracy"],
        "named": _named(hostile, [selection, *records]),
        "others_named": sorted(_all_named([selection, *records]) - {str(k) for k in hostile}),
        "rejected": sum("rejected" in record for record in records),
        "backdoor": _backdoor(assembly),
        "placed": _placed(assembly, executor),
        "versions": [] if hostile else versions,
    }


def _all_named(records: Sequence[Record]) -> set[str]:
    return {device for record in records for device in record.get("bounded", ())}


def _named(hostile: Sequence[int], records: Sequence[Record]) -> bool:
    return {str(device) for device in hostile} <= _all_named(records)


def _placed(assembly: Assembly, executor: HostileExecutor) -> float:
    """The share of the kept weights of adjusted layers where hostile devices wanted weights."""
    mask = assembly.server.theta.mask
    kept = {layer: set(mask.indices(layer).tolist()) for layer in executor.positions}
    there = sum(len(kept[layer] & own) for layer, own in executor.positions.items())
    return there / max(1, sum(map(len, kept.values())))


def _backdoor(assembly: Assembly) -> float:
    """The share of test images of other classes that the trigger turns into the target's."""
    test = assembly.data.test
    others = np.flatnonzero(test.labels != TARGET)
    marked = triggered(test.subset(others))
    shard = DeviceData(-99, marked, np.arange(len(others)), np.arange(len(others)))
    assembly.engine.load(assembly.server.model)
    return float(assembly.engine.evaluate(shard)["accuracy"])


DECIDING = (
    "federation/bounds.py",
    "federation/norms.py",
    "federation/directions.py",
    "sparse/robust_mean.py",
    "runs/acceptance.py",
)
"""Files of the package that decide, beside the attacks, what comes of a run."""


def code_digest() -> str:
    """A digest of the code that decides the results: of the defenses, and of the attacks above."""
    attacks = Path(__file__).read_text().partition("\nDEVICES")[2].partition("\nDECIDING")[0]
    package = Path(fedtiny.__file__).parent
    texts = [attacks, *((package / name).read_text() for name in DECIDING)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


class Results:
    """What was measured, in a file that grows; what other code gave is measured again.

    Or, from what is stored only, it is nothing.
    """

    def __init__(self, path: Path, stored_only: bool = False, only: str = "") -> None:
        self.path, self.stored_only, self.only = path, stored_only, only
        self.code = code_digest()
        self.found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = self.found.get(name, {})
        if result.get("code") == self.code:
            return result
        if self.stored_only or not re.search(self.only, name):
            return {}
        self.found[name] = run() | {"code": self.code}
        self._write()
        return self.found[name]  # type: ignore[no-any-return]

    def merge(self, files: Sequence[Path]) -> None:
        """Take over what other processes have measured with the present code."""
        for file in files:
            theirs = json.loads(file.read_text()).items()
            self.found |= {name: run for name, run in theirs if run["code"] == self.code}
        self._write()

    def _write(self) -> None:
        self.path.write_text(json.dumps(self.found, indent=1, sort_keys=True) + "\n")


def honest_table(results: Results, seeds: int, rounds: int) -> Iterator[str]:
    """Runs in which all are honest, with and without bounds."""
    yield "| all honest | accuracy without bounds | with bounds | rounds of the same bits | named |"
    yield "|---|---|---|---|---|"
    for partition in PARTITIONS:
        plain, bounded = (
            [
                results.of(
                    f"honest, {partition}, {name}, seed {seed}",
                    lambda s=seed, n=name, p=partition: played(settings(s, rounds, DEFENCES[n], p)),
                )
                for seed in range(seeds)
            ]
            for name in ("none", "default")
        )
        if not all([*plain, *bounded]):
            yield _row(partition, ["-"] * 4)
            continue
        pairs = [
            p
            for a, b in zip(plain, bounded, strict=True)
            for p in zip(a["versions"], b["versions"], strict=True)
        ]
        same = sum(one == other for one, other in pairs)
        named = sum(len(run["others_named"]) for run in bounded)
        yield (
            f"| {partition} | {_mean(plain, 'accuracy'):.3f} | {_mean(bounded, 'accuracy'):.3f} "
            f"| {same} of {len(pairs)} | {named} |"
        )


def attack_table(
    results: Results, seeds: int, rounds: int, count: int, defences: Sequence[str]
) -> Iterator[str]:
    """Attacks of so many devices, by defence."""
    columns = {name: partial(_attacked, results, seeds, rounds, name, count) for name in defences}
    honest = {name: _honest(results, seeds, rounds, name) for name in defences}
    attacks = [attack for attack in ATTACKS if attack not in BY_PLACE_ONLY]
    yield from table(f"{count} of {DEVICES} hostile", attacks, columns, honest)


def place_table(results: Results, seeds: int, rounds: int) -> Iterator[str]:
    """Attacks of one device by default, by how many samples it has."""
    which = {"the first": 1, "the largest": LARGEST, "the smallest": SMALLEST}
    columns = {
        name: partial(_attacked, results, seeds, rounds, "default", own)
        for name, own in which.items()
    }
    honest = _honest(results, seeds, rounds, "default")
    yield from table(f"1 of {DEVICES} hostile", [*ATTACKS], columns, dict.fromkeys(which, honest))


Runs = list[dict[str, Any]]


def table(
    title: str,
    attacks: Sequence[str],
    columns: Mapping[str, Callable[[str], Runs]],
    honest: Mapping[str, Runs],
) -> Iterator[str]:
    """Rows of attacks; what a column gives for an attack is a run of each seed."""
    yield f"| {title} | {' | '.join(columns)} |"
    yield "|---|" + "---|" * len(columns)
    nobody = [f"{_mean(own, 'accuracy'):.3f}" if all(own) else "-" for own in honest.values()]
    yield _row("nobody", nobody)
    found = {name: {attack: runs(attack) for attack in attacks} for name, runs in columns.items()}
    for attack in attacks:
        yield _row(attack, [_cell(attack, found[name][attack]) for name in columns])
    beside_absent = [_worst(found[name], found[name]["absent"]) for name in columns]
    yield _row("worst, beside absent", beside_absent)
    yield _row("worst, beside nobody", [_worst(found[name], honest[name]) for name in columns])


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _cell(attack: str, runs: Runs) -> str:
    if not all(runs):
        return "-"
    if any("ended" in run for run in runs):
        return "run fails"
    star = "*" if all(run["named"] for run in runs) else ""
    beside = f" ({_mean(runs, SHOWN[attack]):.0%})" if attack in SHOWN else ""
    return f"{_mean(runs, 'accuracy'):.3f}{star}{beside}"


def _worst(found: Mapping[str, Runs], beside: Runs) -> str:
    """The attack that costs most in a seed, in points; of those that do not look honest."""
    strong = {attack: runs for attack, runs in found.items() if attack not in LOOKS_HONEST}
    if not all(map(all, [beside, *strong.values()])):
        return "-"
    losses = {
        attack: max(o["accuracy"] - r.get("accuracy", 0) for o, r in zip(beside, runs, strict=True))
        for attack, runs in strong.items()
    }
    worst = max(losses, key=lambda attack: losses[attack])
    return f"{-100 * losses[worst]:+.1f} ({worst})"


def _attacked(
    results: Results, seeds: int, rounds: int, defence: str, who: int | str, attack: str
) -> Runs:
    """The runs of an attack by the first devices, by the largest or by the smallest."""
    return [
        results.of(
            f"{attack}, {who}, {defence}, seed {seed}",
            lambda s=seed: played(
                settings(s, rounds, DEFENCES[defence], "Dirichlet(0.5)"),
                ATTACKS[attack],
                range(who) if isinstance(who, int) else who,
            ),
        )
        for seed in range(seeds)
    ]


def _honest(results: Results, seeds: int, rounds: int, name: str) -> Runs:
    return [
        results.of(
            f"honest, Dirichlet(0.5), {name}, seed {seed}",
            lambda s=seed: played(settings(s, rounds, DEFENCES[name], "Dirichlet(0.5)")),
        )
        for seed in range(seeds)
    ]


def _mean(runs: Sequence[dict[str, Any]], name: str) -> float:
    return float(np.mean([run[name] for run in runs]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/attacks.json"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--hostile", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--defences", nargs="+", default=[*DEFENCES], choices=[*DEFENCES])
    parser.add_argument("--stored", action="store_true", help="run nothing")
    parser.add_argument("--only", default="", help="run only what has a name like this (regex)")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="files of other runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(arguments.json, arguments.stored, arguments.only)
    if arguments.merge:
        results.merge(arguments.merge)
    print("\n".join(honest_table(results, arguments.seeds, arguments.rounds)), flush=True)
    by_place = place_table(results, arguments.seeds, arguments.rounds)
    print("\n" + "\n".join(by_place), flush=True)
    for count in arguments.hostile:
        rows = attack_table(results, arguments.seeds, arguments.rounds, count, arguments.defences)
        print("\n" + "\n".join(rows), flush=True)


if __name__ == "__main__":
    main()
