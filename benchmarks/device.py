"""What a training step costs a device: dense PyTorch, masked PyTorch and the native backend.

All contenders take turns in one run, so that what else the machine does hits them alike; a
speed-up is the median over the rounds of the ratio against the faster of the two dense layouts.
Masked PyTorch costs the same at any density and is measured at the first. Memory is the peak
resident size of a separate process each, in which nothing else is loaded; beside it stands what
the paper counts (parameters, gradients and optimizer state).

    python benchmarks/device.py [--model resnet18] [--density 0.05 0.01 0.001] [--batch 64]
        [--threads 2] [--rounds 7] [--no-memory] [--json PATH]
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtiny.native.description import Description
from fedtiny.native.library import library
from fedtiny.native.model import NativeModel
from fedtiny.native.options import Options, Rates

SHAPE, CLASSES = (3, 32, 32), 10
LAYOUTS = ("dense", "dense channels-last")
STORAGES: dict[str, dict[str, Any]] = {
    "native": {},
    "native half": {"storage": "float16"},
    "native half, recompute": {"storage": "float16", "recompute": True},
    "native, dead channels removed": {"remove_dead": True},
}
Step = Callable[[], object]


@dataclass
class Task:
    """All that a contender needs to know, in a form that a fresh process can read."""

    model: str
    width: int | None
    batch: int
    threads: int
    description: list[dict[str, Any]]
    sizes: dict[str, int]
    tensors: dict[str, int]

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Task":
        from fedtiny import models
        from fedtiny.native.translate import describe

        network = models.build(arguments.model, SHAPE, CLASSES, width=arguments.width)
        anatomy = models.dissect(network, SHAPE)
        return cls(
            model=arguments.model,
            width=arguments.width,
            batch=arguments.batch,
            threads=arguments.threads,
            description=describe(network, SHAPE).to_plain(),
            sizes=dict(anatomy.sizes),
            tensors=dict(anatomy.dense_sizes),
        )

    def mask(self, density: float) -> dict[str, np.ndarray]:
        """A random mask of the same density in every layer."""
        draw = np.random.default_rng(0)
        return {
            name: np.sort(draw.choice(size, max(1, round(size * density)), replace=False)).astype(
                np.int32
            )
            for name, size in self.sizes.items()
        }

    def images(self) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(1)
        images = draw.standard_normal((self.batch, *SHAPE), dtype=np.float32)
        return images, draw.integers(0, CLASSES, self.batch)


def torch_step(task: Task, layout: str, density: float | None = None) -> Step:
    """SGD with momentum on a dense network, under a mask if a density is given."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    from fedtiny import models

    torch.set_num_threads(task.threads)
    network = models.build(task.model, SHAPE, CLASSES, width=task.width)
    arrays = task.images()
    images, labels = torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1])
    if layout.endswith("channels-last"):
        network = network.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    masks = []
    parameters = dict(network.named_parameters())
    for name, kept in (task.mask(density) if density else {}).items():
        mask = torch.zeros(task.sizes[name])
        mask[torch.from_numpy(kept.astype(np.int64))] = 1
        mask = (
            mask.view_as(parameters[name]).to(memory_format=torch.channels_last)
            if (layout.endswith("channels-last") and parameters[name].ndim == 4)
            else mask.view_as(parameters[name])
        )
        masks.append((parameters[name], mask))
        parameters[name].data.mul_(mask)
    sgd = torch.optim.SGD(
        network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True
    )

    def step() -> None:
        sgd.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        for parameter, mask in masks:
            assert parameter.grad is not None
            parameter.grad.mul_(mask)
        sgd.step()

    return step


def native_model(task: Task, density: float, **options: Any) -> NativeModel:
    """The network in native code with random weights."""
    model = NativeModel(Description.from_plain(task.description))
    kept = task.mask(density)
    chosen = Options(batch=task.batch, threads=task.threads, optimizer="sgd", **options)
    model.prepare(chosen, kept)
    draw = np.random.default_rng(2)
    for name, positions in kept.items():
        model.set(name, draw.standard_normal(len(positions)) * 0.05)
    for name, size in task.tensors.items():
        last = name.rpartition(".")[2]
        if name in model.layers:
            model.set(name, draw.standard_normal(size) * 0.05)
        else:
            model.set(name, np.full(size, float(last in ("weight", "running_var"))))
    model.start(Rates(lr=0.01, momentum=0.9, decay=5e-4))
    return model


def native_step(task: Task, density: float, **options: Any) -> Step:
    """SGD with momentum on the kept weights."""
    model, (images, labels) = native_model(task, density, **options), task.images()
    return lambda: model.train(images, labels)


def interleaved(steps: Mapping[str, Step], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each step of each contender, over rounds in which each does one."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def resident_bytes(task: Task, name: str, density: float | None) -> int:
    """Peak resident size of a process that does nothing but a few training steps."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.json"
        path.write_text(json.dumps([asdict(task), name, density]), encoding="utf-8")
        command = [sys.executable, __file__, "--alone", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


def run_alone(path: Path) -> None:
    """What a separate process does: three steps, then it tells its peak resident size."""
    record, name, density = json.loads(path.read_text(encoding="utf-8"))
    task = Task(**record)
    if name in STORAGES:
        step = native_step(task, density, **STORAGES[name])
    else:
        step = torch_step(task, name.removeprefix("masked "), density)
    for _ in range(3):
        step()
    sys.stdout.write(str(peak_resident_bytes()))


def peak_resident_bytes() -> int:
    """Of this process alone: what `getrusage` tells is at least that of its parent."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measured_rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each contender and density."""
    task = Task.of(arguments)
    steps: dict[str, Step] = {layout: torch_step(task, layout) for layout in LAYOUTS}
    first = arguments.density[0]
    steps[f"masked {first:g}"] = torch_step(task, LAYOUTS[1], first)
    for density in arguments.density:
        for name, options in STORAGES.items():
            steps[f"{name} {density:g}"] = native_step(task, density, **options)
    times = interleaved(steps, arguments.rounds)
    middle = {name: statistics.median(spent) for name, spent in times.items()}
    dense = times[min(LAYOUTS, key=middle.__getitem__)]
    rows: list[dict[str, Any]] = []
    for name, spent in times.items():
        contender, _, last = name.rpartition(" ") if name not in LAYOUTS else (name, "", "1")
        speedup = statistics.median(d / s for d, s in zip(dense, spent, strict=True))
        rows.append(
            {
                "contender": contender,
                "density": float(last),
                "ms": middle[name],
                "speedup": speedup,
            }
        )
    if arguments.memory:
        _add_memory(task, rows)
    return rows


def _add_memory(task: Task, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        name = f"masked {LAYOUTS[1]}" if row["contender"] == "masked" else row["contender"]
        density = None if name in LAYOUTS else row["density"]
        row["resident"] = resident_bytes(task, name, density)
        row["parameters"] = _paper_bytes(task, name, density)
    leanest = min(row["resident"] for row in rows if row["contender"] in LAYOUTS)
    for row in rows:
        row["memory_ratio"] = leanest / row["resident"]


def _paper_bytes(task: Task, name: str, density: float | None) -> int:
    """Parameters, gradients and momentum: what the paper counts."""
    if name in STORAGES and density is not None:
        return native_model(task, density, **STORAGES[name]).taken.parameters
    trained = sum(s for n, s in task.tensors.items() if "running" not in n)
    return 12 * (sum(task.sizes.values()) + trained)


def shown(row: Mapping[str, Any]) -> str:
    """A row as a line of text."""
    line = f"{row['contender']:32}{row['density']:>8g}{row['ms']:>9.1f} ms"
    line += f"{row['speedup']:>8.1f}x"
    if "resident" in row:
        line += f"{row['resident'] / 1e6:>8.0f} MB resident ({1 / row['memory_ratio']:.0%})"
        line += f"{row['parameters'] / 1e6:>8.1f} MB parameters"
    return line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--width", type=int)
    parser.add_argument("--density", type=float, nargs="+", default=[0.05, 0.01, 0.001])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        run_alone(arguments.alone)
        return
    rows = measured_rows(arguments)
    sys.stdout.write(f"{arguments.model}, batch {arguments.batch}, {library().instructions}\n")
    sys.stdout.write("".join(f"{shown(row)}\n" for row in rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
