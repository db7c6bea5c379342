"""A suite of our own whose runs take a quarter of a second."""

from pathlib import Path

from rich.console import Console

from fedtiny.experiments.runner import Clock, Runner
from fedtiny.experiments.suite import Suite
from fedtiny.experiments.sweep import Sweep

QUIET = Console(quiet=True)
SCALES = """
[tiny]
title = "a quarter of a second"
[tiny.config]
model = "small"
width = 2
rounds = 3
workers = 1
threads = 1
simulator = "reference"
data = { limit_train = 120, limit_test = 40 }
fleet = { devices = 3 }
train = { local_epochs = 1 }
selection = { pool_size = 2 }
pruning = { delta_r = 1, r_stop = 2 }
[tiny.instead]
density = { "0.01" = 0.3, "0.005" = 0.25 }
"data.name" = { cifar10 = "digits", svhn = "digits" }
model = { resnet18 = "small" }
[rare]
title = "with a checkpoint every second round"
[rare.config]
model = "small"
width = 2
rounds = 5
checkpoint_every = 2
workers = 1
threads = 1
data = { limit_train = 120, limit_test = 40 }
fleet = { devices = 3 }
train = { local_epochs = 1 }
[rare.instead]
density = { "0.01" = 0.3, "0.005" = 0.25 }
"data.name" = { cifar10 = "digits", svhn = "digits" }
model = { resnet18 = "small" }
"""
FIRST = """
number = 1
title = "Methods by density"
source = "Table 1"
[base]
model = "resnet18"
data.name = "cifar10"
[axes]
density = [0.01, 0.005]
method = ["fedavg", "fl_pqsu", "fedtiny"]
[order]
method = ["fedtiny"]
density = [0.005, 0.01]
[table]
rows = ["density", "method"]
values = ["accuracy", "flops_ratio"]
best_of = "method"
[figure]
kind = "lines"
x = "density"
series = "method"
y = ["accuracy"]
"""
SECOND = """
number = 2
title = "Modules"
source = "Figure 4"
notes = ["A note of its own."]
[base]
model = "resnet18"
data.name = "cifar10"
density = 0.01
method = "fedtiny"
[axes.modules]
"vanilla" = { selection.kind = "vanilla" }
"both" = { label = "both, to round {r_stop}" }
[table]
rows = ["modules"]
values = ["accuracy"]
best_of = "modules"
[figure]
kind = "bars"
x = "modules"
y = ["accuracy"]
"""


def write_suite(folder: Path) -> Path:
    """Write the files of the suite."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"scales": SCALES, "first": FIRST, "second": SECOND}
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


def sweep(suite: Suite, out: Path, names=("first",), scale="tiny", **named) -> Sweep:
    """An order for the tiny suite."""
    return Sweep(suite, suite.scale(scale), suite.find(names), out, **named)


def make(order: Sweep, minutes=None, cells=None, keep_models=True):
    """Carry an order out, in silence."""
    cells = order.cells() if cells is None else cells
    runner = Runner(
        order.cells_folder, QUIET, Clock(minutes), "fedtiny reproduce", keep_models=keep_models
    )
    return runner.run(cells)
