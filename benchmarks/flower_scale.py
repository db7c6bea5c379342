"""Time and memory of the server in a round over Flower, as the number of nodes grows.

The server, its transport, spool and reducer are the real ones, behind the grid in one process;
nodes answer at once with a model of the right size instead of training, and the time that they take
is not counted. Time is the server's CPU time. ResNet18 at density 0.01, FedTiny: a plain round, in
which nodes hold the mask already, and one that adjusts the largest block. Top gradients are at
random places, so that no two nodes agree: the worst case. Each line is a process of its own, whose
peak resident memory is told.

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

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtiny import methods, models
from fedtiny.config import Config, FleetConfig, resolve_run
from fedtiny.data.transforms import Preparation
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.node import Receiver
from fedtiny.federation.messages import Reply
from fedtiny.federation.rounds import play_round
from fedtiny.federation.server import Server
from fedtiny.federation.wire import encode_reply
from fedtiny.flower.messages import DONE, Answer, Arrival, Question
from fedtiny.flower.node_registry import NodeRegistry
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.flower.settings import FlowerSettings
from fedtiny.flower.transport import FlowerTransport
from fedtiny.models import ParamSpec
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.formatting import size
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.densities import uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))
from in_process import InProcessGrid

SHAPE, CLASSES = (3, 32, 32), tuple("0123456789")


class TimedGrid(InProcessGrid):
    """A grid that knows how much time its nodes took."""

    seconds = 0.0

    def answer(self, message: Message) -> Message:
        started = time.process_time()
        try:
            return super().answer(message)
        finally:
            self.seconds += time.process_time() - started


def quick_nodes(param_spec: ParamSpec) -> ClientApp:
    """Nodes that answer with the theta they got, a little larger, and random top gradients."""
    app, receiver = ClientApp(), Receiver()

    @app.query("join")
    def join(message: Message, context: Context) -> Message:
        arrival = Arrival(f"node {context.node_id}", 100, context.node_id - 1)
        return Message(arrival.records(), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        question = Question.read(message.content)
        request = receiver.receive(question.request, param_spec)
        draw = np.random.default_rng(question.device)
        gradients = {}
        for verb in request.program:
            for layer, count in verb.options.get("counts", {}).items():
                every = np.arange(param_spec.sizes[layer])
                pruned = np.setdiff1d(every, request.theta.mask.indices(layer))
                own = np.sort(draw.choice(pruned, count, replace=False))
                values = draw.standard_normal(count).astype(np.float32)
                gradients[layer] = SparseVector(
                    param_spec.sizes[layer], own.astype(np.int32), values
                )
        trained = request.theta.vector * np.float32(1 + 0.01 * draw.random())
        theta = Theta(request.theta.mask, trained)
        answered = (request.round, request.id)
        reply = Reply(question.device, 100, theta, gradients, {}, {"loss": 1.0}, *answered)
        data = encode_reply(reply, request.theta.mask)
        return Message(Answer(DONE, reply=data).records(), reply_to=message)

    return app


def measure(nodes: int, density: float, adjusting: bool) -> dict[str, float]:
    """A round with so many nodes, in this process."""
    config = resolve_run(Config(density=density, fleet=FleetConfig(devices=nodes)))
    config = replace(config, pruning=replace(config.pruning, progressive=adjusting, r_stop=100))
    theta = first_theta(density)
    preparation = Preparation((0.5,) * 3, (0.25,) * 3)
    device = DeviceSpec(config, theta.param_spec, preparation)
    spec = NodeSpec(device, True, SHAPE, CLASSES)
    grid = TimedGrid(quick_nodes(theta.param_spec), {number + 1: {} for number in range(nodes)})
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        registry = NodeRegistry(grid, spec, FlowerSettings(), run, lambda line: None)
        registry.present(expected=nodes, least=nodes)
        transport = FlowerTransport(registry)
        server = Server(config, transport, theta, coarse_pruned=True)
        if not adjusting:
            timed_round(server, grid)  # brings the mask
        found = timed_round(server, grid)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**found, "peak_bytes": peak}


def first_theta(density: float) -> Theta:
    """A fresh ResNet18, pruned by magnitude."""
    network = models.build("resnet18", SHAPE, len(CLASSES))
    param_spec = models.analyze(network, SHAPE)
    tensors = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    dense = Theta.from_tensors(tensors, Mask.full(param_spec))
    return prune_by_magnitude(dense, np.array(uniform(param_spec, density)))


def timed_round(server: Server, grid: TimedGrid) -> dict[str, float]:
    """One round, without the time that its nodes took."""
    started, before = time.process_time(), grid.seconds
    result = play_round(server, methods.create(server.config))
    seconds = time.process_time() - started - (grid.seconds - before)
    assert len(result.outcome.answered) == len(server.transport.devices)
    traffic = result.outcome.traffic
    return {"seconds": seconds, "bytes_down": traffic.down, "bytes_up": traffic.up}


def alone(nodes: int, density: float, kind: str) -> dict[str, float]:
    """The same in a process of its own."""
    order = ["--alone", str(nodes), "--density", str(density), "--kind", kind]
    command = [sys.executable, __file__, *order]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def cells(row: dict[str, float]) -> str:
    sizes = [f"{size(row[name]):>8}" for name in ("bytes_down", "bytes_up", "peak_bytes")]
    return f"{row['seconds']:7.2f}  {'  '.join(sizes)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 300, 1000])
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.alone:
        found = measure(arguments.alone, arguments.density, arguments.kind == "adjusting")
        print(json.dumps(found))
        return
    print("nodes  round        CPU s      down        up      peak")
    rows = []
    for nodes in arguments.nodes:
        for kind in ("plain", "adjusting"):
            row = alone(nodes, arguments.density, kind)
            rows.append({"nodes": nodes, "round": kind, **row})
            print(f"{nodes:5d}  {kind:9}  {cells(row)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
