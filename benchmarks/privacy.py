"""What differential privacy costs: accuracy by epsilon, for a dense network and for sparse ones.

LeNet-5 (or another network) on the digits, 100 devices of about 14 images each (iid), every device
asked in a round with chance 0.1 (Poisson sampling), 40 rounds of 5 local epochs of SGD, delta
1 / 100^1.1. The network is
pretrained on the 50 images of the public one-shot set. The sparse ones are pruned by SNIP on the
same images, so the mask costs no privacy. "none" is the same run without privacy. Each cell is the
mean accuracy on the test set over the seeds. What the noise will be is printed first, by the cost
model. Results are kept in the JSON file.

    python benchmarks/privacy.py [--json benchmarks/results/privacy.json] [--seeds 2] [--rounds 40]
                                 [--clips 0.1 0.3] [--epsilons 2 4 8] [--models lenet5]
                                 [--networks "dense FedAvg" "density 0.05" "density 0.01"]
"""

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from fedtiny import cost
from fedtiny.config import Config, from_dict
from fedtiny.runs import runner
from fedtiny.runs.reporter import Silent

NETWORKS = {
    "dense FedAvg": {"method": "fedavg", "density": 1.0},
    "density 0.05": {"method": "snip", "density": 0.05},
    "density 0.01": {"method": "snip", "density": 0.01},
}
Cell = dict[str, Any]


def config_of(model: str, network: str, seed: int, rounds: int, privacy: dict[str, Any]) -> Config:
    """The run of one cell."""
    return from_dict(
        {
            **NETWORKS[network],
            "model": model,
            "rounds": rounds,
            "seed": seed,
            "eval_every": rounds,
            "workers": 1,
            "simulator": "reference",
            "fleet": {"devices": 100, "fraction": 0.1, "partition": "iid"},
            "train": {"optimizer": "sgd", "local_epochs": 5, "pretrain_epochs": 50},
            "privacy": privacy,
        }
    )


def measured(
    model: str, network: str, seed: int, rounds: int, clip: float | None, epsilon: float
) -> Cell:
    """Accuracy of one run, with what privacy took."""
    privacy = {} if clip is None else {"epsilon": epsilon, "clip": clip}
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        config = config_of(model, network, seed, rounds, privacy)
        found = runner.run(config, out=path, reporter=Silent())
        result = json.loads((path / "result.json").read_text())
    return {
        "model": model,
        "network": network,
        "clip": clip,
        "epsilon": epsilon if clip else None,
        "seed": seed,
        "accuracy": found.accuracy,
        "kept_weights": result["kept_weights"],
        "privacy": result.get("privacy"),
        "processor_seconds": round(time.process_time() - started, 1),
    }


def table(cells: list[Cell], epsilons: list[float]) -> str:
    """Accuracy by network and clip, in Markdown."""
    heads = ["model", "network", "clip", *(f"epsilon {e:g}" for e in epsilons), "none"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    clips = sorted({cell["clip"] for cell in cells if cell["clip"]})
    kinds = dict.fromkeys((cell["model"], cell["network"]) for cell in cells)
    for kind, clip in itertools.product(kinds, clips):
        shown = [_mean(cells, *kind, clip, epsilon) for epsilon in epsilons]
        row = [*kind, f"{clip:g}", *shown, _mean(cells, *kind, None, None)]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _mean(cells: list[Cell], *wanted: str | float | None) -> str:
    by = ("model", "network", "clip", "epsilon")
    found = [cell["accuracy"] for cell in cells if tuple(cell[name] for name in by) == wanted]
    return f"{sum(found) / len(found):.3f}" if found else "-"


def main() -> None:
    """Measure every cell, print the table, keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/privacy.json"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clips", type=float, nargs="+", default=[0.1, 0.3])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 4.0, 8.0])
    parser.add_argument("--models", nargs="+", default=["lenet5"])
    parser.add_argument("--networks", nargs="+", default=[*NETWORKS], choices=NETWORKS)
    asked = parser.parse_args()
    private = [*itertools.product(asked.clips, asked.epsilons)]
    cells = []
    for epsilon in asked.epsilons:
        told = config_of(asked.models[0], asked.networks[0], 0, asked.rounds, {"epsilon": epsilon})
        planned = cost.summary(told, shape=(1, 8, 8), classes=10, samples=14)["privacy"]
        print(
            f"epsilon {epsilon:g}: noise multiplier {planned['noise_multiplier']:.3f}, delta "
            f"{planned['delta']:.2g}, {planned['releases']} releases",
            flush=True,
        )
    kinds = itertools.product(range(asked.seeds), asked.models, asked.networks)
    for seed, model, network in kinds:
        for clip, epsilon in [(None, 0.0), *private]:
            cells.append(measured(model, network, seed, asked.rounds, clip, epsilon))
            print(cells[-1], flush=True)
    print(table(cells, asked.epsilons))
    text = json.dumps({"rounds": asked.rounds, "seeds": asked.seeds, "cells": cells}, indent=1)
    asked.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
