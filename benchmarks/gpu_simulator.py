"""The GPU simulator beside ordinary PyTorch loops, on the same federated work.

ResNet18, batches of 64, ten devices, Dirichlet 0.5, masks on: rounds of fedtiny (messages,
augmentation, unequal devices and averaging included) and such local steps in plain eager loops,
device after device, fp32 with TF32 and bf16 autocast. Without CIFAR-10 the images are noise of
its size, which takes the same time.

    python benchmarks/gpu_simulator.py [--epochs 5] [--rounds 20] [--eager-steps 300] [--json PATH]
    python benchmarks/gpu_simulator.py --kernels sparse --densities 0.01 0.001 --lanes 2
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from fedtiny.config import Config, from_dict
from fedtiny.data import DataSet, from_arrays, load
from fedtiny.devices.executors import Task
from fedtiny.errors import FedTinyError
from fedtiny.experiments.finished import this_machine
from fedtiny.federation.messages import Request, evaluate
from fedtiny.federation.rounds import play_round, prepare
from fedtiny.runs.assembly import Assembly, assemble

BATCH = 64
PAPER_ROUNDS, PAPER_EPOCHS = 300, 5


def images() -> DataSet:
    """CIFAR-10 where it is at hand, else noise of its size."""
    try:
        return load("cifar10", None)
    except FedTinyError:
        draw = np.random.default_rng(0)
        labels = draw.integers(0, 10, 60_000)
        noise = draw.integers(0, 256, (60_000, 3, 32, 32), dtype=np.uint8)
        train, test = slice(50_000), slice(50_000, None)
        return from_arrays(
            (noise[train], labels[train]), (noise[test], labels[test]), name="noise", flips=True
        )


class EagerLoop:
    """Federated averaging under masks, as one would write it for a GPU: data there, batched
    augmentation, fused Adam."""

    def __init__(self, assembly: Assembly, autocast: bool) -> None:
        self.autocast = autocast
        self.device = torch.device("cuda")
        self.model = assembly.model.to(self.device).train()
        if autocast:
            self.model = self.model.to(memory_format=torch.channels_last)
        data, theta = assembly.data, assembly.server.theta
        self.images = torch.from_numpy(data.train.images).to(self.device)
        self.labels = torch.from_numpy(data.train.labels).to(self.device)
        self.mean, self.std = (
            torch.tensor(v, device=self.device)[:, None, None] for v in (data.mean, data.std)
        )
        self.masks = {
            name: torch.from_numpy(theta.mask.array(name)).to(self.device).float()
            for name in theta.mask
        }
        self.devices = [torch.from_numpy(own) for own in assembly.split.devices.devices]

    def run(self, steps: int) -> int:
        """So many local steps, device after device, and the mean once all devices had a turn."""
        done, start = 0, {n: value.clone() for n, value in self.model.state_dict().items()}
        while done < steps:
            total = {n: torch.zeros_like(v, dtype=torch.float32) for n, v in start.items()}
            samples = 0
            for own in self.devices:
                self.model.load_state_dict(start)
                done += self.train(own, min(steps - done, len(own) // BATCH))
                samples += len(own)
                for name, value in self.model.state_dict().items():
                    total[name].add_(value, alpha=len(own))
                if done >= steps:
                    break
            start = {n: (v / samples).to(start[n].dtype) for n, v in total.items()}
        self.model.load_state_dict(start)
        return done

    def train(self, own: torch.Tensor, steps: int) -> int:
        optimizer = torch.optim.Adam(
            self.model.parameters(), lr=1e-3, weight_decay=1e-4, fused=True
        )
        order = own[torch.randperm(len(own))].to(self.device)
        named = dict(self.model.named_parameters())
        masked, masks = [named[name] for name in self.masks], list(self.masks.values())
        for step in range(steps):
            batch = order[step * BATCH : (step + 1) * BATCH]
            inputs = self.augmented(self.images[batch])
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.autocast):
                loss = F.cross_entropy(self.model(inputs), self.labels[batch])
            loss.backward()
            torch._foreach_mul_([weight.grad for weight in masked], masks)
            optimizer.step()
        return steps

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        n, _, height, width = images.shape
        padded = F.pad(images, (4, 4, 4, 4)).permute(0, 2, 3, 1)
        corner = torch.randint(0, 9, (2, n, 1), device=self.device)
        rows = corner[0] + torch.arange(height, device=self.device)
        across = torch.arange(width, device=self.device)
        mirrored = torch.rand(n, 1, device=self.device) < 0.5
        columns = corner[1] + torch.where(mirrored, width - 1 - across, across)
        which = torch.arange(n, device=self.device)[:, None, None]
        cropped = padded[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        normal = (cropped.float() / 255 - self.mean) / self.std
        layout = torch.channels_last if self.autocast else torch.contiguous_format
        return normal.contiguous(memory_format=layout)


def timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def eager_ms(assembly: Assembly, steps: int, autocast: bool) -> float:
    """Milliseconds a step of an eager loop."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True
    loop = EagerLoop(assembly, autocast)
    loop.run(30)
    return timed(lambda: loop.run(steps)) / steps * 1e3


def config(arguments: argparse.Namespace, kernels: str, density: float) -> Config:
    return from_dict(
        {
            "method": "fl_pqsu",
            "model": arguments.model,
            "width": 64,
            "density": density,
            "rounds": PAPER_ROUNDS,
            "simulator": "gpu",
            "train": {"local_epochs": arguments.epochs, "batch_size": BATCH},
            "gpu": {
                "kernels": kernels,
                "lanes": arguments.lanes,
                "compile": not arguments.no_compile,
                "graphs": not arguments.no_graphs,
                "deterministic": not arguments.no_deterministic,
            },
        }
    )


def ready(arguments: argparse.Namespace, kernels: str, density: float, data: DataSet) -> Assembly:
    """A run whose first round is over: pretrained, pruned, compiled and recorded."""
    assembly = assemble(config(arguments, kernels, density), data=data)
    assembly.pretrain()
    prepare(assembly.server, assembly.method)
    request = Request("evaluate", "fl_pqsu", 0, (evaluate(),), assembly.server.theta)
    next(assembly.executor.answers([Task(assembly.test[0], request)]))
    play_round(assembly.server, assembly.method)
    return assembly


def rounds_of(arguments: argparse.Namespace, assembly: Assembly) -> dict[str, Any]:
    """How long rounds take, by the clock and by the host's."""
    steps = arguments.epochs * sum(len(own) // BATCH for own in assembly.split.devices.devices)
    busy = time.process_time()
    rounds = [
        timed(lambda: play_round(assembly.server, assembly.method)) for _ in range(arguments.rounds)
    ]
    busy = (time.process_time() - busy) / (steps * arguments.rounds) * 1e3
    median = statistics.median(rounds)
    return {
        "ms_a_step": median / steps * 1e3,
        "paper_run_minutes": median / arguments.epochs * PAPER_EPOCHS * PAPER_ROUNDS / 60,
        "host_ms_a_step": busy,
        "steps_a_round": steps,
        "rounds_s": rounds,
    }


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Both loops and ours, with all that says where and how."""
    rows, data = [], images()
    for kernels in arguments.kernels:
        for density in arguments.densities if kernels == "sparse" else arguments.densities[:1]:
            started = time.perf_counter()
            assembly = ready(arguments, kernels, density, data)
            startup = time.perf_counter() - started
            found = rounds_of(arguments, assembly)
            account = assembly.executor.account()
            assembly.server.transport.close()
            row = {"kernels": kernels, "density": density, "startup_s": startup}
            rows.append(row | found | account)
            show(rows[-1])
    eager = {}
    if arguments.eager_steps:
        eager["fp32 (TF32)"] = eager_ms(assembly, arguments.eager_steps, autocast=False)
        eager["bf16 autocast"] = eager_ms(assembly, arguments.eager_steps, autocast=True)
    for name, ms in eager.items():
        print(f"eager loop, {name}: {ms:.2f} ms a device step")
    return {
        "rows": rows,
        "eager_ms_a_step": eager,
        "model": arguments.model,
        "data": data.name,
        "local_epochs": arguments.epochs,
        **this_machine(shlex.join(["python", *sys.argv])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--kernels", nargs="+", default=["sparse", "dense"])
    parser.add_argument("--densities", type=float, nargs="+", default=[0.01, 0.001])
    parser.add_argument("--epochs", type=int, default=PAPER_EPOCHS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--eager-steps", type=int, default=300)
    parser.add_argument("--lanes", type=int)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--no-deterministic", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU")
    result = measured(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def show(row: dict[str, Any]) -> None:
    streams = row.get("streams", row["lanes"])
    print(
        f"{row['kernels']} kernels, density {row['density']:g}: {row['ms_a_step']:.3f} ms a device "
        f"step, end to end; a paper run, 300 rounds x 5 epochs: {row['paper_run_minutes']:.1f} "
        f"minutes; start-up {row['startup_s']:.1f} s; host {row['host_ms_a_step']:.3f} ms of CPU "
        f"time a step; {streams} streams, {row['gpu_memory'] / 1e9:.1f} GB",
        flush=True,
    )


if __name__ == "__main__":
    main()
