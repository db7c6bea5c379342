"""The GPU simulator's sparse kernels: a training step by density and by number of devices.

Batches of 64 random images, random masks of one density in every layer, bf16 words. A step is all
that a device does for a batch: fetching and augmenting, forward, backward, optimizer. Beside it
stands, by kind of kernel, the time that the bytes which it must move would take at the bandwidth
of a copy, measured in the same run.

    python benchmarks/sparse_kernels.py [--model resnet18] [--densities 0.01 0.001] [--json PATH]
"""

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtiny import models
from fedtiny.data import ImageSet
from fedtiny.data.transforms import Preparation
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import Adam, RngKey
from fedtiny.devices.gpu.image_store import Images
from fedtiny.devices.gpu.kernels import CapturedGraph
from fedtiny.devices.gpu.sparse.launches import Launch
from fedtiny.devices.gpu.sparse.network import SparseNetwork
from fedtiny.devices.gpu.sparse.plan import Plan
from fedtiny.devices.gpu.sparse.trainer import Trainer, Training
from fedtiny.experiments.finished import this_machine
from fedtiny.models.networks import BUILDERS
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

BATCH, STEPS = 64, 4
SHAPE = (3, 32, 32)
DEVICES = 10
ACTIVE = (10, 7, 4, 2, 1)
CLASSES = 10
COPIED = 1 << 28  # bytes


def elapsed(stream: torch.cuda.Stream, work: Callable[[], object], times: int) -> float:
    """Milliseconds of one call, the median of three times so many."""
    found = []
    for _ in range(3):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record(stream)
        for _ in range(times):
            work()
        after.record(stream)
        after.synchronize()
        found.append(before.elapsed_time(after) / times)
    return statistics.median(found)


def bandwidth(stream: torch.cuda.Stream) -> float:
    """Bytes a second that a copy reads and writes."""
    source = torch.zeros(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPIED / (elapsed(stream, lambda: target.copy_(source), 10) / 1e3)


class Case:
    """A network of one density, ready to train."""

    def __init__(self, model: str, width: int, density: float, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        draw, device = np.random.default_rng(0), torch.device("cuda", 0)
        torch.manual_seed(0)
        network = BUILDERS[model](SHAPE[0], CLASSES, width)
        graph = models.traced(network, SHAPE)
        spec = models.analyze(network, SHAPE, graph)
        properties = torch.cuda.get_device_properties(device)
        plan = Plan(graph, spec, BATCH, "bf16", properties.shared_memory_per_block_optin)
        kept = {
            name: np.sort(draw.choice(size, max(1, int(size * density)), replace=False))
            for name, size in spec.sizes.items()
        }
        state = {name: value.numpy() for name, value in network.state_dict().items()}
        self.theta = Theta.from_tensors(state, Mask(spec, kept))
        images = draw.integers(0, 256, (DEVICES * STEPS * BATCH, *SHAPE), dtype=np.uint8)
        labels = draw.integers(0, CLASSES, len(images))
        data = ImageSet(images, labels, tuple(map(str, range(CLASSES))))
        preparation = Preparation((0.5,) * 3, (0.25,) * 3, 4, True)
        self.network = SparseNetwork(plan, DEVICES, device, adam=True)
        self.trainer = Trainer(self.network, Images(data, preparation, device), stream, True)
        own = np.array_split(np.arange(len(images)), DEVICES)
        self.trainings = [
            Training(DeviceData(d, data, part, part[:2]), RngKey(0, 0, d), 1)
            for d, part in enumerate(own)
        ]
        self.trainer.train(self.theta, self.trainings, Adam())

    def step_ms(self, active: int) -> float:
        """Milliseconds of a step of so many devices."""
        step = self.trainer._step(active)
        return elapsed(self.stream, lambda: (self.network.next.zero_(), step(1)), 8)

    def kernels(self) -> dict[str, dict[str, float]]:
        """By kind of kernel: launches, microseconds in all, and bytes that it must move."""
        found: dict[str, dict[str, float]] = {}
        network = self.network
        for launch in (*network.there, *network.back, *network.updates):
            call = self.trainer._bound(launch, DEVICES)
            graph = CapturedGraph(lambda call=call: [call() for _ in range(8)], self.stream, 1)
            row = found.setdefault(launch.kernel, {"launches": 0, "us": 0.0, "bytes": 0})
            row["launches"] += 1
            row["us"] += elapsed(self.stream, graph, 1) / 8 * 1e3
            row["bytes"] += moved(launch)
        return found


def moved(launch: Launch) -> int:
    """Bytes of activations and gradients that a launch must read and write, each once."""
    args, words = launch.args, 0
    if launch.kernel in ("convolve", "gradients"):
        area, result = args.height * args.width, args.out_height * args.out_width
        words = args.channels * area * (2 if args.g1 else 1)
        words += args.out_channels * result * bool(args.out)
        if launch.kernel == "gradients":
            others = [v.stored for v in (args.input, args.norm1, args.norm2) if v.stored]
            words += args.out_channels * result * (len(set(others)) + bool(args.more))
    elif launch.kernel in ("added", "combined"):
        words = args.channels * args.height * args.width * 3
    return 4 * words * getattr(args, "images", 0) * DEVICES


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    stream = torch.cuda.Stream()
    rows = []
    with torch.cuda.stream(stream):
        speed = bandwidth(stream)
        for density in arguments.densities:
            case = Case(arguments.model, arguments.width, density, stream)
            steps = {active: case.step_ms(active) for active in ACTIVE}
            row = {"density": density, "ms_a_device_step": {a: t / a for a, t in steps.items()}}
            if density in arguments.detailed:
                row["kernels"] = case.kernels()
                for kind in row["kernels"].values():
                    kind["floor_us"] = kind.pop("bytes") / speed * 1e6
            rows.append(row)
            show(row)
            del case
            torch.cuda.empty_cache()
    command = shlex.join(["python", *sys.argv])
    return {
        "model": arguments.model,
        "width": arguments.width,
        "batch": BATCH,
        "devices": DEVICES,
        "copy_bytes_a_second": speed,
        "rows": rows,
        **this_machine(command),
    }


def show(row: dict[str, Any]) -> None:
    each = ", ".join(f"{a}: {ms:.3f}" for a, ms in row["ms_a_device_step"].items())
    print(f"density {row['density']:g}: ms a device step by devices: {each}", flush=True)
    for kind, part in row.get("kernels", {}).items():
        print(f"  {kind}: {part['us']:.0f} us in {part['launches']} (floor {part['floor_us']:.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=sorted(BUILDERS), default="resnet18")
    parser.add_argument("--width", type=int, default=64)
    densities = [0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2]
    parser.add_argument("--densities", type=float, nargs="+", default=densities)
    parser.add_argument("--detailed", type=float, nargs="*", default=[0.01, 0.001])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU")
    result = measured(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
