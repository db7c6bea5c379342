"""What fedtiny adds to the same federated work written as a plain PyTorch loop.

FedAvg on the digits, the 16-wide ResNet18, ten devices. A round of fedtiny (messages, bytes
counted, averaging, evaluation, metrics line, checkpoint) and a round of the plain loop (copy the
weights, train, add up, divide, evaluate) alternate; the ratio is the median over the pairs. So does
a round of fedtiny without bounds among devices, for what these cost (docs/robustness.md). Seconds
are those of CPU, so that other work on the machine does not show.

    python benchmarks/simulator_overhead.py [--pairs 9] [--threads 1] [--json PATH]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from fedtiny.config import Config, RobustnessConfig
from fedtiny.federation.rounds import prepare
from fedtiny.runs import metrics
from fedtiny.runs.acceptance import accepted_round
from fedtiny.runs.assembly import Assembly, assemble
from fedtiny.runs.checkpoint import save_checkpoint
from fedtiny.runs.folder import RunFolder


class PlainLoop:
    """Federated averaging as one would write it in an afternoon, on the same data and model."""

    def __init__(self, assembly: Assembly) -> None:
        self.config = assembly.config
        self.model = assembly.model
        data = assembly.data
        mean, std = (torch.tensor(v)[:, None, None] for v in (data.mean, data.std))
        self.images = (torch.from_numpy(data.train.images) / 255 - mean) / std
        self.labels = torch.from_numpy(data.train.labels)
        self.test_images = (torch.from_numpy(data.test.images) / 255 - mean) / std
        self.test_labels = torch.from_numpy(data.test.labels)
        self.devices = [torch.from_numpy(own) for own in assembly.split.devices.devices]
        state = self.model.state_dict()
        self.weights = {k: v.clone() for k, v in state.items() if v.is_floating_point()}

    def play_round(self) -> None:
        samples = sum(len(own) for own in self.devices)
        total = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        for own in self.devices:
            self.model.load_state_dict(self.weights, strict=False)
            self.train(own)
            state = self.model.state_dict()
            for name, value in total.items():
                value += state[name] * (len(own) / samples)
        self.weights = total
        self.evaluate()

    def train(self, own: torch.Tensor) -> None:
        optimizer = torch.optim.Adam(
            self.model.parameters(), lr=1e-3, weight_decay=1e-4, fused=True
        )
        size = min(self.config.train.batch_size, len(own))
        self.model.train()
        for _ in range(self.config.train.local_epochs):
            shuffled = own[torch.randperm(len(own))]
            for start in range(0, len(own) - size + 1, size):
                batch = shuffled[start : start + size]
                optimizer.zero_grad()
                loss = F.cross_entropy(self.model(self.images[batch]), self.labels[batch])
                loss.backward()
                optimizer.step()

    @torch.no_grad()
    def evaluate(self) -> float:
        self.model.load_state_dict(self.weights, strict=False)
        logits = self.model.eval()(self.test_images)
        return float((logits.argmax(1) == self.test_labels).float().mean())


def fedtiny_round(assembly: Assembly, folder: RunFolder) -> None:
    """A round as `fedtiny run` plays it."""
    started = time.perf_counter()
    metrics.append(folder, accepted_round(assembly, started))
    save_checkpoint(folder, assembly.server)


def ready(config: Config) -> Assembly:
    """A run that is about to play its first round."""
    assembly = assemble(config)
    assembly.pretrain()
    prepare(assembly.server, assembly.method)
    return assembly


def seconds(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = Config(method="fedavg", rounds=1000, workers=1, threads=arguments.threads)
    off = replace(config, robustness=RobustnessConfig(bound=0.0, reject=0.0))
    assembly, unbounded = ready(config), ready(off)
    plain = PlainLoop(assembly)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        run, second = RunFolder(Path(folder)), RunFolder(Path(other))
        pairs = []
        for number in range(-1, arguments.pairs):  # the first pair warms up
            ours = seconds(lambda: fedtiny_round(assembly, run))
            without = seconds(lambda: fedtiny_round(unbounded, second))
            theirs = seconds(plain.play_round)
            if number >= 0:
                pairs.append((ours, without, theirs))
                print(
                    f"pair {number + 1}: fedtiny {ours:.2f} s, without bounds {without:.2f} s, "
                    f"plain loop {theirs:.2f} s"
                )
    ratio = statistics.median(ours / theirs for ours, _, theirs in pairs)
    bounds = statistics.median(ours / without for ours, without, _ in pairs)
    medians = [float(np.median(side)) for side in zip(*pairs, strict=True)]
    print(
        f"median round: fedtiny {medians[0]:.2f} s, without bounds {medians[1]:.2f} s, "
        f"plain loop {medians[2]:.2f} s"
    )
    print(f"overhead ratio: {ratio:.3f} (at most 1.05 is wanted)")
    print(f"with bounds / without: {bounds:.3f} (at most 1.01 is wanted)")
    if arguments.json:
        result = {"ratio": ratio, "bounds": bounds}
        result |= dict(zip(("fedtiny_s", "unbounded_s", "plain_s"), medians, strict=True))
        arguments.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
