"""The paper's cost figures beside those of `fedtiny cost`.

`python -m tests.paper.figures`, run from the repository, prints the tables of docs/cost.md.
"""

import contextlib
import io
import json
import tomllib
from functools import cache
from pathlib import Path

from fedtiny.cli.cost import command

PUBLISHED = tomllib.loads((Path(__file__).parent / "table1.toml").read_text(encoding="utf-8"))
MODELS = ("resnet18", "vgg11")
DENSITIES = (0.01, 0.005, 0.001)
MB = 1e6


@cache
def ours(model):
    """What `fedtiny cost --model MODEL --density 0.01 0.005 0.001 --json` gives, by row."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        command(["--model", model, "--density", *map(str, DENSITIES), "--json"])
    rows = json.loads(printed.getvalue())["rows"]
    return {(row["density"], row["method"]): row for row in rows}


def markdown():
    """Every figure, ours beside the paper's."""
    return "\n".join([*_table1(), "", *_selection()])


def _table1():
    yield "| model | density | method | FLOPs ratio | paper | memory, MB | paper |"
    yield "|---|---|---|---|---|---|---|"
    for model in MODELS:
        published = PUBLISHED[model]
        dense = ours(model)[0.01, "fedavg"]
        yield (
            f"| {model} | 1 | fedavg | 1 ({_scientific(dense['flops_round'])}) "
            f"| 1 ({_scientific(published['dense_flops'])}) "
            f"| {dense['memory_paper'] / MB:.2f} | {published['dense_memory_mb']:.2f} |"
        )
        for density, method, ratio, memory in published["rows"]:
            row = ours(model)[density, method]
            yield (
                f"| {model} | {density:g} | {method} | {row['flops_ratio']:.4f} | {ratio} "
                f"| {row['memory_paper'] / MB:.2f} | {memory:.2f} |"
            )


def _selection():
    yield "| VGG11 density | C | selection FLOPs | paper | training FLOPs a round | paper |"
    yield "|---|---|---|---|---|---|"
    for said in PUBLISHED["vgg11"]["selection"]:
        row = ours("vgg11")[said["density"], "fedtiny"]
        yield (
            f"| {said['density']:g} | {row['pool_size']} "
            f"| {_scientific(row['selection_flops'])} | {_scientific(said['flops'])} "
            f"| {_scientific(row['flops_training'])} | {_scientific(said['training_flops'])} |"
        )


def _scientific(value):
    return f"{value:.2E}".replace("E+", "E")


if __name__ == "__main__":
    print(markdown())
