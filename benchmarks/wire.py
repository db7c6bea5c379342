"""Bytes of whole rounds of sparse training beside dense FedAvg's, as counted on the wire.

ResNet18 on CIFAR-10's shape. FedTiny itself selects, trains and adjusts, up to r_stop, and every
message is encoded, counted and decoded (`--fleet.wire encode`). Only the devices' arithmetic is
left out: they answer with untrained values and random gradients, as nothing but sizes matters here.
Each round is held against the cost model, which must give the same bytes. Fails where it does not,
or where a round is dearer than it may be.

    python benchmarks/wire.py [--density 0.01] [--json PATH]
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtiny import methods
from fedtiny.config import Config, DataConfig, FleetConfig, resolve
from fedtiny.cost import Workload, traffic
from fedtiny.data import from_arrays
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.executors import Task
from fedtiny.devices.simulator import Simulator
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.method import Method
from fedtiny.federation.reply_spec import expected
from fedtiny.federation.rounds import play_round, prepare
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Traffic
from fedtiny.federation.wire.indices import coded_size
from fedtiny.models import analyze, build
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

SHAPE, CLASSES, SAMPLES = (3, 32, 32), 10, 5_000
MOST = {"plain": 0.015, "plain, new mask": 0.015, "adjusting": 0.02}  # of dense FedAvg's bytes


class Untrained:
    """An executor whose devices answer what was asked, with values of no meaning."""

    def __init__(self) -> None:
        self.last: Reply | None = None

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply]:
        for task in tasks:
            self.last = self._reply(task.request, task.shard)
            yield self.last

    def _reply(self, request: Request, shard: DeviceData) -> Reply:
        parts = expected(request)
        draw = np.random.default_rng(request.round)
        selecting = request.action == "select"
        return Reply(
            shard.device,
            len(shard.development if selecting else shard),
            shrunk(request.theta) if parts.theta else None,
            {
                layer: random_gradients(request.theta.mask, layer, count, draw)
                for layer, count in parts.gradients.items()
            },
            {name: draw.random(shape, np.float32) for name, shape in parts.arrays.items()},
            dict.fromkeys(parts.metrics, traffic.TYPICAL_LOSS),
            request.round,
            request.id,
        )

    def account(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


def shrunk(theta: Theta) -> Theta:
    """Other values, as if the device had trained."""
    return Theta(theta.mask, theta.vector * np.float32(0.999))


def random_gradients(mask: Mask, layer: str, count: int, draw: np.random.Generator) -> SparseVector:
    """Gradients at random pruned positions."""
    pruned = np.flatnonzero(~mask.array(layer).reshape(-1))
    chosen = np.sort(draw.choice(pruned, count, replace=False)).astype(np.int32)
    return SparseVector(mask.param_spec.sizes[layer], chosen, draw.random(count, np.float32))


@dataclass(frozen=True)
class Round:
    """One round of one device."""

    kind: str
    counted: Traffic
    predicted: Traffic


def rounds_of(method: str, density: float, count: int | None, width: int | None) -> list[Round]:
    """Rounds of a method as they are counted on the wire; by default up to r_stop."""
    config = resolve(
        Config(
            method=method,
            density=density,
            width=width,
            data=DataConfig(name="cifar10"),
            fleet=FleetConfig(devices=1, wire="encode"),
        )
    )
    server, executor = server_of(config)
    own = methods.create(config)
    prepare(server, own)
    work = Workload.of(config, samples=SAMPLES)
    number = config.pruning.r_stop + 1 if count is None else count
    return [play(server, own, executor, work) for _ in range(number)]


def server_of(config: Config) -> tuple[Server, Untrained]:
    """A server with one device behind its transport."""
    network = build(config.model, SHAPE, CLASSES, width=config.width, seed=config.seed)
    param_spec = analyze(network, SHAPE)
    tensors = {name: value.numpy() for name, value in network.state_dict().items()}
    theta = Theta.from_tensors(tensors, Mask.full(param_spec))
    image = (np.zeros((1, *SHAPE), np.uint8), np.zeros(1, np.int64))
    data = from_arrays(image, image, classes=[str(c) for c in range(CLASSES)])
    shard = DeviceData(0, data.train, np.arange(SAMPLES), np.arange(SAMPLES // 10))
    executor = Untrained()
    return Server(config, Simulator(executor, [shard], config), theta), executor


def play(server: Server, method: Method, executor: Untrained, work: Workload) -> Round:
    """Play a round, and work out what it should have cost."""
    held = server.transport.state()["0"][0] == server.theta.mask.version
    result = play_round(server, method)
    assert executor.last is not None
    positions = {
        layer: coded_size(vector.indices, vector.size)
        for layer, vector in executor.last.gradients.items()
    }
    predicted = traffic.training_round(
        work.under(result.mask),
        result.round,
        new_mask=not held,
        reply_positions=positions,
    )
    kind = "adjusting" if positions else "plain" if held else "plain, new mask"
    return Round(kind, result.outcome.traffic, predicted)


@dataclass(frozen=True)
class Row:
    """The dearest round of a kind, and its share of dense FedAvg's round."""

    kind: str
    rounds: int
    down: int
    up: int
    down_share: float
    up_share: float
    share: float
    most: float

    @property
    def fits(self) -> bool:
        """Whether both directions are as cheap as they must be."""
        return max(self.down_share, self.up_share) <= self.most


def rows_of(sparse: Sequence[Round], dense: Traffic) -> list[Row]:
    """A row for each kind of round."""
    rows = []
    for kind, most in MOST.items():
        found = [round.counted for round in sparse if round.kind == kind]
        down, up = max(t.down for t in found), max(t.up for t in found)
        shares = down / dense.down, up / dense.up, (down + up) / (dense.down + dense.up)
        rows.append(Row(kind, len(found), down, up, *shares, most))
    return rows


def compare_rounds(density: float, width: int | None = None) -> dict[str, Any]:
    """Whole rounds of FedTiny beside one of dense FedAvg, as plain data."""
    sparse = rounds_of("fedtiny", density, None, width)
    dense = rounds_of("fedavg", 1.0, 2, width)
    rows = rows_of(sparse, dense[-1].counted)
    played = (*sparse, *dense)
    return {
        "density": density,
        "dense": asdict(dense[-1].counted),
        "rows": [asdict(row) | {"fits": row.fits} for row in rows],
        "rounds": len(played),
        "as_predicted": sum(round.counted == round.predicted for round in played),
    }


def show(found: dict[str, Any]) -> None:
    """The table of rounds."""
    dense = found["dense"]
    print(f"A round of one device, ResNet18 at density {found['density']:g}, counted on the wire:")
    print(f"{'round':<16}{'of':>4}{'down':>12}{'up':>12}{'down':>8}{'up':>8}{'both':>8}{'most':>7}")
    print(f"{'dense FedAvg':<20}{dense['down']:>12,}{dense['up']:>12,}")
    for row in found["rows"]:
        shares = "".join(f"{row[name]:>8.2%}" for name in ("down_share", "up_share", "share"))
        print(
            f"{row['kind']:<16}{row['rounds']:>4}{row['down']:>12,}{row['up']:>12,}{shares}"
            f"{row['most']:>7.1%}{'' if row['fits'] else '  TOO MUCH'}"
        )
    same, played = found["as_predicted"], found["rounds"]
    print(f"the cost model gives the same bytes in {same} of {played} rounds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = compare_rounds(arguments.density)
    show(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    if not all(row["fits"] for row in found["rows"]):
        sys.exit("a round is dearer than it may be")
    if found["as_predicted"] != found["rounds"]:
        sys.exit("the cost model gives other bytes than the wire")


if __name__ == "__main__":
    main()
