"""The GPU simulator beside ordinary PyTorch loops, on the same federated work.

ResNet18, batches of 64, ten devices, Dirichlet 0.5, masks on: one round of fedtiny (its messages,
augmentation, unequal devices and averaging included) and the same local steps in plain eager
loops, fp32 with TF32 and bf16 autocast. Without CIFAR-10 the images are noise of its size, which
takes the same time.

    python benchmarks/gpu_simulator.py [--epochs 5] [--rounds 3] [--eager-steps 300] [--json PATH]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from fedtiny.config import Config, from_dict
from fedtiny.data import DataSet, from_arrays, load
from fedtiny.errors import FedTinyError
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
        """Local steps, device after device, with averaging in between; at least so many."""
        done, total = 0, None
        start = {name: value.clone() for name, value in self.model.state_dict().items()}
        while done < steps:
            for own in self.devices:
                self.model.load_state_dict(start)
                done += self.train(own, min(steps - done, len(own) // BATCH))
                state = self.model.state_dict()
                share = {n: v * len(own) for n, v in state.items() if v.is_floating_point()}
                total = share if total is None else {n: total[n] + v for n, v in share.items()}
                if done >= steps:
                    break
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


def config(epochs: int, density: float) -> Config:
    return from_dict(
        {
            "method": "fl_pqsu",
            "model": "resnet18",
            "width": 64,
            "density": density,
            "rounds": PAPER_ROUNDS,
            "simulator": "gpu",
            "train": {"local_epochs": epochs, "batch_size": BATCH},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=PAPER_EPOCHS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--eager-steps", type=int, default=300)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU")
    data = images()
    started = time.perf_counter()
    assembly = assemble(config(arguments.epochs, arguments.density), data=data)
    assembly.pretrain()
    prepare(assembly.server, assembly.method)
    next(assembly.crew.answers(_questions(assembly)))  # opens the lanes: compile and capture
    startup = time.perf_counter() - started
    shards = assembly.split.devices.devices
    steps = arguments.epochs * sum(len(own) // BATCH for own in shards)
    play = lambda: play_round(assembly.server, assembly.method)  # noqa: E731
    play()
    busy = time.process_time()
    rounds = [timed(play) for _ in range(arguments.rounds)]
    busy = (time.process_time() - busy) / (steps * arguments.rounds) * 1e3
    account = assembly.crew.account()
    assembly.server.door.close()
    ours = statistics.median(rounds) / steps * 1e3
    eager = {
        "fp32 (TF32)": eager_ms(assembly, arguments.eager_steps, autocast=False),
        "bf16 autocast": eager_ms(assembly, arguments.eager_steps, autocast=True),
    }
    paper_minutes = statistics.median(rounds) / arguments.epochs * PAPER_EPOCHS * PAPER_ROUNDS / 60
    result = {
        "ms_a_step": ours,
        "eager_ms_a_step": eager,
        "ratio": min(eager.values()) / ours,
        "startup_s": startup,
        "rounds_s": rounds,
        "steps_a_round": steps,
        "host_ms_a_step": busy,
        "paper_run_minutes": paper_minutes,
        "data": data.name,
        "density": arguments.density,
        "local_epochs": arguments.epochs,
        "torch": torch.__version__,
        "python": platform.python_version(),
        **account,
    }
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def _questions(assembly: Assembly) -> list:
    from fedtiny.devices.crew import Job
    from fedtiny.federation.messages import Request, evaluate

    request = Request("evaluate", "fl_pqsu", 0, (evaluate(),), assembly.server.theta)
    return [Job(assembly.test[0], request)]


def show(result: dict) -> None:
    for name, ms in result["eager_ms_a_step"].items():
        print(f"eager loop, {name}: {ms:.2f} ms a device step")
    print(
        f"fedtiny: {result['ms_a_step']:.3f} ms a device step, end to end (at most 1.4 is wanted)"
    )
    print(f"ratio to the better eager loop: {result['ratio']:.2f} (at least 5 is wanted)")
    print(f"start-up: {result['startup_s']:.1f} s (under 40 is wanted)")
    print(f"a paper run, 300 rounds x 5 epochs: {result['paper_run_minutes']:.1f} minutes")
    print(
        f"host: {result['host_ms_a_step']:.3f} ms of CPU time a step; {result['cards'][0]}, "
        f"{result['lanes']} lanes, {result['gpu_memory'] / 1e9:.1f} GB"
    )


if __name__ == "__main__":
    main()
