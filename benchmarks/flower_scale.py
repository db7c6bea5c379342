"""Time and memory of the server in a round over Flower, as the number of nodes grows.

The server, its door, its spool and its reducer are the real ones, behind the grid in one process;
nodes answer at once with a model of the right size instead of training, and the time that they take
is not counted. ResNet18 at density 0.01, FedTiny: round 1 adjusts the mask, round 2 is a plain one.
Each number of nodes has a process of its own, whose peak resident memory is told.

    python benchmarks/flower_scale.py [--nodes 10 100 1000] [--density 0.01] [--json PATH]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtiny import methods, models
from fedtiny.config import Config, FleetConfig, resolve
from fedtiny.data.draws import Preparation
from fedtiny.devices.link import Receiver
from fedtiny.federation.messages import Reply
from fedtiny.federation.rounds import play_round
from fedtiny.federation.server import Server
from fedtiny.federation.wire import encode_reply
from fedtiny.flower.door import FlowerDoor
from fedtiny.flower.in_process import InProcessGrid
from fedtiny.flower.kit import Kit
from fedtiny.flower.messages import DONE, Answer, Arrival, Question
from fedtiny.flower.reception import Reception
from fedtiny.flower.roster import Roster
from fedtiny.flower.settings import FlowerSettings
from fedtiny.models import Anatomy
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.words import size
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.densities import uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

SHAPE, CLASSES = (3, 32, 32), tuple("0123456789")


class TimedGrid(InProcessGrid):
    """A grid that knows how long its nodes took."""

    seconds = 0.0

    def answer(self, message: Message) -> Message:
        started = time.perf_counter()
        try:
            return super().answer(message)
        finally:
            self.seconds += time.perf_counter() - started


def quick_nodes(anatomy: Anatomy) -> ClientApp:
    """Nodes that answer with the theta they were sent and random top gradients."""
    app, receiver = ClientApp(), Receiver()

    @app.query("join")
    def join(message: Message, context: Context) -> Message:
        arrival = Arrival(f"node {context.node_id}", 100, context.node_id - 1)
        return Message(arrival.records(), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        question = Question.read(message.content)
        request = receiver.receive(question.request, anatomy)
        draw = np.random.default_rng(question.device)
        gradients = {}
        for verb in request.program:
            for layer, count in verb.options.get("counts", {}).items():
                own = np.sort(draw.choice(anatomy.sizes[layer], count, replace=False))
                values = draw.standard_normal(count).astype(np.float32)
                gradients[layer] = SparseVector(anatomy.sizes[layer], own.astype(np.int32), values)
        reply = Reply(question.device, 100, request.theta, gradients, {}, {"loss": 1.0})
        data = encode_reply(reply, request.theta.mask)
        return Message(Answer(DONE, reply=data).records(), reply_to=message)

    return app


def measure(nodes: int, density: float) -> dict[str, Any]:
    """Two rounds with so many nodes, in this process."""
    config = resolve(Config(density=density, fleet=FleetConfig(devices=nodes)))
    config = replace(config, pruning=replace(config.pruning, delta_r=10, r_stop=100))
    network = models.build("resnet18", SHAPE, len(CLASSES))
    anatomy = models.dissect(network, SHAPE)
    tensors = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    dense = Theta.from_tensors(tensors, Mask.full(anatomy))
    theta = prune_by_magnitude(dense, np.array(uniform(anatomy, density)))
    del network, tensors, dense
    preparation = Preparation((0.5,) * 3, (0.25,) * 3)
    kit = Kit(config, True, SHAPE, CLASSES, preparation, anatomy, None)
    grid = TimedGrid(quick_nodes(anatomy), {number + 1: {} for number in range(nodes)})
    with tempfile.TemporaryDirectory() as folder:
        reception = Reception(grid, kit, Roster(nodes), FlowerSettings(), lambda line: None)
        reception.present(wanted=nodes, least=nodes)
        door = FlowerDoor(reception, RunFolder(Path(folder)))
        server = Server(config, door, theta, coarse_pruned=True)
        adjusting, plain = (timed_round(server, grid) for _ in range(2))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"nodes": nodes, "adjusting": adjusting, "plain": plain, "peak_bytes": peak}


def timed_round(server: Server, grid: TimedGrid) -> dict[str, float]:
    """One round, without the time that nodes took."""
    started, before = time.perf_counter(), grid.seconds
    result = play_round(server, methods.create(server.config))
    seconds = time.perf_counter() - started - (grid.seconds - before)
    assert len(result.outcome.answered) == len(server.door.devices)
    traffic = result.outcome.traffic
    return {"seconds": seconds, "bytes_down": traffic.down, "bytes_up": traffic.up}


def alone(nodes: int, density: float) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--alone", str(nodes), "--density", str(density)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 300, 1000])
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(measure(arguments.alone, arguments.density)))
        return
    print("nodes  adjusting: s     up     plain: s     up     peak memory of the server")
    rows = []
    for nodes in arguments.nodes:
        row = alone(nodes, arguments.density)
        rows.append(row)
        cells = [f"{row[r]['seconds']:9.2f} {size(row[r]['bytes_up']):>8}" for r in ROUNDS]
        print(f"{nodes:5d}  {'    '.join(cells)}     {size(row['peak_bytes'])}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


ROUNDS = ("adjusting", "plain")

if __name__ == "__main__":
    main()
