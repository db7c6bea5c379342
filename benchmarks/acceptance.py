"""What the acceptance of a round stops by itself: accuracy under attacks, and rounds repeated.

FedTiny on the digits as in `benchmarks/attacks.py`, Dirichlet(0.5). One and three hostile devices
have a bound of 1000 to keep, so norms are known and nothing is out of bounds; five of ten have the
default bound, which takes an honest majority. Columns: rounds are accepted unseen; they are
measured on the test set, by the same rule without its deviations; on the public set without and
with its deviations, the last of which is the default. A cell has the mean accuracy of the seeds
and the rounds of all seeds that were repeated.

    python benchmarks/acceptance.py [--seeds 3] [--rounds 16] [--attacks x-10 ...] [--json FILE]
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedtiny.federation.rounds import RoundResult
from fedtiny.runs import acceptance
from fedtiny.runs.assembly import Assembly
from fedtiny.sparse.theta import Theta

ALONE = 1000.0
CASES = {1: ALONE, 3: ALONE, 5: 3.0}
"""Bounds by how many of ten devices are hostile."""
ATTACKS = ["x100", "x-10", "x-5", "x-3", "backdoor", "x-1"]
RULES = {
    "none": (False, 0.0),
    "test images": (True, 0.0),
    "public set, no deviations": (False, 0.0),
    "public set": (False, acceptance.DEVIATIONS),
}
"""Whether test images are measured, and standard deviations of a fall that are no chance."""
PLAIN = acceptance.objection


@dataclass
class TestImages:
    """In the place of the server's public set."""

    assembly: Assembly

    def evaluate(self, theta: Theta) -> dict[str, float]:
        return self.assembly.evaluate()


def by_test_images(assembly: Assembly, result: RoundResult) -> str:
    """Say why a round is not accepted, by the test set."""
    server = assembly.server
    public, server.public = server.public, TestImages(assembly)  # type: ignore[assignment]
    try:
        return PLAIN(assembly, result)
    finally:
        server.public = public


def under(rule: str, attack: str, count: int, seed: int, rounds: int) -> dict[str, Any]:
    """A run under an attack, with rounds accepted by a rule."""
    import attacks

    on_test, acceptance.DEVIATIONS = RULES[rule]
    acceptance.objection = by_test_images if on_test else PLAIN
    robustness = {"bound": CASES[count], "reject": 0.0 if rule == "none" else 3.0}
    config = attacks.settings(seed, rounds, robustness, "Dirichlet(0.5)")
    run = attacks.played(config, attacks.ATTACKS[attack], range(count))
    return {"accuracy": run["accuracy"], "rejected": run["rejected"]}


def rows(chosen: list[str], seeds: int, rounds: int, found: dict[str, Any]) -> Iterator[str]:
    """The table; what is not found is run, and added."""
    yield f"| attack | {' | '.join(RULES)} |"
    yield "|---|" + "---|" * len(RULES)
    for count in CASES:
        for attack in chosen:
            cells = []
            for rule in RULES:
                names = [f"{attack}, {count}, {rule}, seed {seed}" for seed in range(seeds)]
                for seed, name in enumerate(names):
                    if name not in found:
                        found[name] = under(rule, attack, count, seed, rounds)
                accuracy = sum(found[name]["accuracy"] for name in names) / seeds
                cells.append(f"{accuracy:.3f} ({sum(found[name]['rejected'] for name in names)})")
            yield f"| {attack}, {count} of 10 | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--attacks", nargs="+", default=ATTACKS, choices=ATTACKS)
    parser.add_argument("--json", type=Path, help="where the runs are kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = arguments.json
    found = json.loads(path.read_text()) if path and path.exists() else {}
    for row in rows(arguments.attacks, arguments.seeds, arguments.rounds, found):
        print(row, flush=True)
        if path:
            path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
