"""How many rounds are repeated in runs whose devices are all honest, by partition.

Every method on the digits with the small network, density 0.2, ten devices; some seeds. With a
high rate of learning a model is up and down from round to round.

    python benchmarks/false_alarms.py [--methods fedtiny ...] [--seeds 3] [--rounds 16]
                                      [--width 16] [--lr 0.1] [--samples 120] [--deviations 3]
"""

import argparse
import time
from collections import Counter
from dataclasses import replace

import torch

from fedtiny import methods
from fedtiny.config import Config, FleetConfig
from fedtiny.federation.rounds import is_over, prepare
from fedtiny.runs import acceptance
from fedtiny.runs.assembly import assemble

HONEST = Config(model="small", density=0.2, workers=1, threads=1, simulator="reference")
PARTITIONS = {
    "iid": FleetConfig(devices=10, partition="iid"),
    "Dirichlet(0.5)": FleetConfig(devices=10, partition="dirichlet", alpha=0.5),
    "Dirichlet(0.1)": FleetConfig(devices=10, partition="dirichlet", alpha=0.1),
}
NAMES = [method.name for method in methods.BUILT_IN]


def counts(config: Config) -> Counter[str]:
    """Count the rounds of a run, and those that are repeated by what the reason is about."""
    assembly = assemble(config)
    assembly.pretrain()
    prepare(assembly.server, assembly.method)
    found: Counter[str] = Counter()
    while not is_over(assembly.server, assembly.config.rounds):
        record = acceptance.accepted_round(assembly, time.perf_counter())
        found["round"] += 1
        if "rejected" in record:
            found["loss" if "loss" in record["rejected"]["why"] else "accuracy"] += 1
    assembly.server.transport.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--samples", type=int, help="of all devices and the public set")
    parser.add_argument("--deviations", type=float, default=acceptance.DEVIATIONS)
    arguments = parser.parse_args()
    acceptance.DEVIATIONS = arguments.deviations
    torch.set_num_threads(1)
    print("| partition | method | rounds | repeated by loss | by accuracy |\n|---|---|---|---|---|")
    for partition, fleet in PARTITIONS.items():
        total: Counter[str] = Counter()
        for method in arguments.methods:
            found: Counter[str] = Counter()
            for seed in range(arguments.seeds):
                config = replace(HONEST, method=method, fleet=fleet, seed=seed)
                train = replace(config.train, lr=arguments.lr)
                data = replace(config.data, limit_train=arguments.samples)
                sizes = {"rounds": arguments.rounds, "width": arguments.width}
                found += counts(replace(config, train=train, data=data, **sizes))
            print(_row(partition, method, found), flush=True)
            total += found
        print(_row(partition, "all", total), flush=True)


def _row(partition: str, method: str, found: Counter[str]) -> str:
    cells = (found[name] for name in ("round", "loss", "accuracy"))
    return f"| {partition} | {method} | {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
