"""A training step of depthwise and grouped convolutions: native at several densities, dense torch.

Four convolutions with batch norm and ReLU, and a linear head; batch 64 on one core. In each round
every contender does a step; times are processor time. The speed-up is against the faster of torch's
layouts, the median over the rounds. It fails where a native step is slower.

    python benchmarks/grouped_convolutions.py [--rounds 5] [--only NAME]
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from fedtiny.extras import require
from fedtiny.graph.ir import Graph, Kind, Node
from fedtiny.native.library import Options, Rates
from fedtiny.native.model import NativeModel

BATCH, LAYERS, CLASSES = 64, 4, 10
DENSITIES = (1.0, 0.9, 0.5, 0.1)
LAYOUTS = ("contiguous_format", "channels_last")
Step = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """Convolutions of as many filters as channels; the first has the stride."""

    channels: int
    side: int
    groups: int
    kernel: int = 3
    stride: int = 1

    def window(self, layer: int) -> tuple[int, int, int]:
        """Kernel, stride and padding of a layer."""
        return self.kernel, self.stride if layer == 0 else 1, self.kernel // 2


CASES = {
    "depthwise 96, 32x32": Case(96, 32, 96),
    "depthwise 144, 32x32, stride 2": Case(144, 32, 144, stride=2),
    "depthwise 5x5 96, 16x16": Case(96, 16, 96, kernel=5),
    "depthwise 384, 8x8": Case(384, 8, 384),
    "depthwise 960, 4x4": Case(960, 4, 960),
    "2 groups 64, 16x16": Case(64, 16, 2),
    "4 groups 64, 16x16": Case(64, 16, 4),
    "32 groups 128, 16x16": Case(128, 16, 32),
    "3 groups 1x1 240, 16x16": Case(240, 16, 3, kernel=1),
}


def graph_of(case: Case) -> Graph:
    """The network as native devices take it."""
    nodes = [Node(Kind.INPUT, channels=case.channels, size=(case.side, case.side))]
    for layer in range(LAYERS):
        kernel, stride, padding = case.window(layer)
        window = {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "padding": (padding,) * 2}
        last = len(nodes) - 1
        own = {"channels": case.channels, "groups": case.groups}
        nodes.append(Node(Kind.CONVOLUTION, (last,), f"conv{layer}", **own, **window))
        nodes.append(Node(Kind.BATCH_NORM, (last + 1,), f"norm{layer}"))
        nodes.append(Node(Kind.RELU, (last + 2,)))
    nodes.append(Node(Kind.ADAPTIVE_POOL, (len(nodes) - 1,), size=(1, 1)))
    nodes.append(Node(Kind.FLATTEN, (len(nodes) - 1,)))
    nodes.append(Node(Kind.LINEAR, (len(nodes) - 1,), "head", CLASSES, bias=True))
    return Graph(tuple(nodes))


def native_step(case: Case, density: float, images: np.ndarray, labels: np.ndarray) -> Step:
    """With random kept weights of the convolutions."""
    draw, model = np.random.default_rng(0), NativeModel(graph_of(case))
    kept = {}
    for layer in range(LAYERS if density < 1 else 0):
        name = f"conv{layer}.weight"
        size = model.size(name)
        chosen = draw.choice(size, max(1, int(size * density)), replace=False)
        kept[name] = np.sort(chosen).astype(np.int32)
    model.prepare(Options(batch=BATCH, optimizer="sgd"), kept)
    for name, shape in model.graph.tensors.items():
        size = len(kept[name]) if name in kept else model.size(name)
        is_one = name.endswith((".weight", ".running_var"))
        values = draw.standard_normal(size) * 0.1 if len(shape) > 1 else np.full(size, is_one)
        model.set(name, values)
    model.start(Rates(lr=0.0))
    return lambda: model.train(images, labels)


def torch_step(case: Case, layout: str, images: np.ndarray, labels: np.ndarray) -> Step:
    """Dense."""
    torch = require("torch", extra="torch")
    nn, layers = torch.nn, []
    for layer in range(LAYERS):
        own = {"groups": case.groups, "bias": False}
        layers += [
            nn.Conv2d(case.channels, case.channels, *case.window(layer), **own),
            nn.BatchNorm2d(case.channels),
            nn.ReLU(),
        ]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(case.channels, CLASSES)]
    form = getattr(torch, layout)
    model = nn.Sequential(*layers).to(memory_format=form)
    inputs = torch.from_numpy(images).contiguous(memory_format=form)
    targets = torch.from_numpy(labels)
    rule = torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        rule.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        rule.step()

    return step


def measured(case: Case, rounds: int) -> dict[str | float, list[float]]:
    """Milliseconds of processor time of each contender's steps."""
    draw = np.random.default_rng(1)
    images = draw.standard_normal((BATCH, case.channels, case.side, case.side)).astype(np.float32)
    labels = draw.integers(0, CLASSES, BATCH)
    steps: dict[str | float, Step] = {
        **{density: native_step(case, density, images, labels) for density in DENSITIES},
        **{layout: torch_step(case, layout, images, labels) for layout in LAYOUTS},
    }
    times: dict[str | float, list[float]] = {who: [] for who in steps}
    for turn in range(rounds + 1):
        for who, step in steps.items():
            start = time.process_time()
            step()
            if turn:  # the first is for warming up
                times[who].append(1e3 * (time.process_time() - start))
    return times


def main() -> int:
    """Measure and print; whether a native step was slower."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=CASES)
    asked = parser.parse_args()
    require("torch", extra="torch").set_num_threads(1)
    slower = 0
    for name in [asked.only] if asked.only else CASES:
        times = measured(CASES[name], asked.rounds)
        dense = min((times[layout] for layout in LAYOUTS), key=median)
        ratios = {
            density: median(d / s for d, s in zip(dense, times[density], strict=True))
            for density in DENSITIES
        }
        shown = ", ".join(f"{density:g} {ratio:.1f}x" for density, ratio in ratios.items())
        print(f"{name}: torch {median(dense):.0f} ms; native at density {shown}")
        slower += min(ratios.values()) < 1
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
