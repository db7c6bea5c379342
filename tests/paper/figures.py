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

VALUES = Path(__file__).parents[2] / "experiments" / "paper.toml"
PAPER = tomllib.loads(VALUES.read_text(encoding="utf-8"))
FORMULA = PAPER["formula"]
MODELS = ("resnet18", "vgg11")
DENSITIES = (0.01, 0.005, 0.001)
MB = 1e6


def printed(source):
    """A table of the paper, row by row, each as a dict."""
    table = PAPER["printed"][source]
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


TABLE1 = printed("Table 1")
SPARSE = [row for row in TABLE1 if row["method"] != "fedavg"]
DENSE = {row["model"]: row for row in TABLE1 if row["method"] == "fedavg"}
SELECTION = [
    said | {"formula": formula}
    for said, formula in zip(printed("Table 2"), FORMULA["selection"], strict=True)
]


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
        dense = ours(model)[1, "fedavg"]
        yield (
            f"| {model} | 1 | fedavg | 1 ({_scientific(dense['flops_round'])}) "
            f"| 1 ({_scientific(FORMULA[model]['dense_flops_printed'])}) "
            f"| {dense['memory_paper'] / MB:.2f} | {DENSE[model]['memory_mb']} |"
        )
        for said in SPARSE:
            if said["model"] == model:
                row = ours(model)[said["density"], said["method"]]
                yield (
                    f"| {model} | {said['density']:g} | {said['method']} "
                    f"| {row['flops_ratio']:.4f} | {said['flops_ratio']} "
                    f"| {row['memory_paper'] / MB:.2f} | {said['memory_mb']} |"
                )


def _selection():
    yield "| VGG11 density | C | selection FLOPs | paper | training FLOPs a round | paper |"
    yield "|---|---|---|---|---|---|"
    for said in SELECTION:
        row = ours("vgg11")[said["density"], "fedtiny"]
        yield (
            f"| {said['density']:g} | {row['pool_size']} "
            f"| {_scientific(row['selection_flops'])} "
            f"| {_scientific(float(said['selection_flops']))} "
            f"| {_scientific(row['flops_training'])} "
            f"| {_scientific(float(said['flops_training']))} |"
        )


def _scientific(value):
    return f"{value:.2E}".replace("E+", "E")


if __name__ == "__main__":
    print(markdown())
