"""The page of results is made of the committed result files, line by line."""

import json
from functools import partial
from statistics import fmean

import pytest

from fedtiny.drawing.files import standalone
from fedtiny.experiments import curves, pareto, table
from fedtiny.experiments.suite import Suite
from fedtiny.experiments.sweep import Sweep

from .markdown import ROOT

PAPER_S, OWN = ("table1", "ablation"), ("granularity",)
FILES = {name: ROOT / "results" / "mini" / f"{name}.json" for name in (*PAPER_S, *OWN)}
FULL = ROOT / "results" / "paper" / "table1.json"
BUDGETS = {
    scale: {name: ROOT / "results" / scale / f"{name}.json" for name in names}
    for scale, names in {
        "paper": ("percent", "permille"),
        "mini": ("percent", "permille", "vgg11", "data_sets"),
    }.items()
}
TOLD_WITH_CODE = ("fedtiny-cifar10-resnet18-d0.001", "fl_pqsu-cifar10-resnet18-d0.001")
PAGE = (ROOT / "docs" / "results.md").read_text()


def rows(text):
    """The rows of tables, without the one that aligns the columns."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line.startswith("| ") and not line.startswith("| :--")]


def left_out(row):
    """Whether the page does without a row: of VGG11 one density was run."""
    return "VGG11" in row and "| 0.001 |" not in row


def made(names, folder, out, scale="mini", files=None):
    """The rows of the tables that the command makes from the files."""
    files = files or tuple(FILES[name] for name in names)
    found = results(names, folder, out, scale, files)
    return [row for results in found for row in rows(table.page(results))]


def results(names, folder, out, scale, files):
    """What the command shows of the files."""
    suite = Suite.load(folder)
    sweep = Sweep(suite, suite.scale(scale), suite.find(names), out, result_files=files)
    return [sweep.results(experiment) for experiment in sweep.experiments]


def test_every_file_is_shown():
    assert sorted((ROOT / "results").rglob("*.json")) == sorted(
        [*FILES.values(), FULL, *(file for files in BUDGETS.values() for file in files.values())]
    )


def at_full_scale(out):
    """The rows of Table 1 and of two budgets that have a result at the paper's own scale."""
    found = made(["table1"], None, out, "paper", (FULL,)) + within_budgets("paper", out)
    return [row for row in found if "| - |" not in row]


def within_budgets(scale, out):
    """The rows of two budgets that have a result at a scale."""
    folder = ROOT / "experiments" / "budgets"
    found = [
        row
        for name, file in BUDGETS[scale].items()
        for row in made([name], folder, out, scale, (file,))
    ]
    if scale == "mini":
        files = (BUDGETS["mini"]["permille"], FILES["table1"])
        found += made(["flow_ablation"], folder, out, scale, files)
    return [row for row in found if {*row.strip("| ").split(" | ")[1:]} != {"-"}]


def test_what_was_run_at_the_paper_s_scale_is_shown(tmp_path):
    found = at_full_scale(tmp_path)
    assert any("| FedTiny |" in row for row in found)
    assert {*found} <= {*rows(PAGE)}


def test_every_result_at_the_paper_s_scale_has_a_curve_to_its_end():
    for cell in (
        cell
        for file in (FULL, *BUDGETS["paper"].values())
        for cell in json.loads(file.read_text())["cells"]
    ):
        assert cell["curve"][-1] == [300, cell["numbers"]["accuracy"]]


@pytest.mark.parametrize(
    ("figure", "file", "scale", "draw"),
    [
        ("paper_scale.svg", FULL, "paper", curves.draw),
        ("paper_scale_bytes.svg", FULL, "paper", partial(curves.draw, over=curves.BY_BYTES)),
        ("pareto.svg", FILES["table1"], "mini", pareto.draw),
    ],
)
def test_the_figures_are_what_the_command_draws(tmp_path, figure, file, scale, draw):
    """If not: give the commands on the page, and copy the figures. Rules of color may differ."""
    (found,) = results(["table1"], None, tmp_path, scale, (file,))
    drawn = standalone(draw(found), "")
    committed = (ROOT / "docs" / "figures" / figure).read_text()
    assert committed.partition("</style>")[2] == drawn.partition("</style>")[2]


@pytest.mark.parametrize("name", ["permille", "percent"])
def test_the_figures_of_budgets_are_what_the_command_draws(tmp_path, name):
    folder, file = ROOT / "experiments" / "budgets", BUDGETS["mini"][name]
    (found,) = results([name], folder, tmp_path, "mini", (file,))
    drawn = standalone(pareto.draw(found), "")
    committed = (ROOT / "docs" / "figures" / f"pareto_{name}.svg").read_text()
    assert committed.partition("</style>")[2] == drawn.partition("</style>")[2]


def test_curves_are_told_as_measured():
    cells = {cell["name"]: cell for cell in json.loads(FULL.read_text())["cells"]}
    for density in ("0.01", "0.001"):
        curve = cells[f"fedtiny-cifar10-resnet18-d{density}-s0"]["curve"]
        assert [done for done, _ in curve] == [10, 50, 100, 200, 300]
        assert ", ".join(f"{accuracy:.3f}" for _, accuracy in curve) in PAGE


@pytest.mark.parametrize(
    ("names", "folder"), [(PAPER_S, None), (OWN, ROOT / "examples" / "experiments")]
)
def test_the_tables_are_those_that_the_command_makes(tmp_path, names, folder):
    wanted = [row for row in made(names, folder, tmp_path) if not left_out(row)]
    assert any("0." in row for row in wanted)
    short = PAGE.partition("## Short schedule")[2]
    assert [row for row in rows(short) if row in wanted] == wanted
    assert {*within_budgets("mini", tmp_path)} <= {*rows(short)}


def test_no_other_row_stands_on_the_page(tmp_path):
    every = made(PAPER_S, None, tmp_path) + made(OWN, ROOT / "examples/experiments", tmp_path)
    every += at_full_scale(tmp_path) + within_budgets("mini", tmp_path)
    assert {*rows(PAGE)} <= {*every}


@pytest.mark.parametrize("name", FILES)
def test_every_result_has_its_command_hardware_and_settings(name):
    document = json.loads(FILES[name].read_text())
    for machine in document["machines"]:
        assert machine["command"].startswith("fedtiny reproduce ")
        assert machine["gpu"] == ["NVIDIA H200"]
        assert machine["torch"]
    for cell in document["cells"]:
        assert {"rounds", "fleet.alpha", "train.optimizer"} <= cell["settings"].keys()


def test_what_the_page_compares_was_made_by_code_that_can_be_found():
    document = json.loads(FILES["table1"].read_text())
    told = [cell for cell in document["cells"] if cell["name"].startswith(TOLD_WITH_CODE)]
    assert len(told) == 4
    for machine in (document["machines"][m] for cell in told for m in cell["machines"]):
        assert f"{machine['code']}, among them FedTiny and FL-PQSU at 0.001" in PAGE


@pytest.mark.parametrize("method", ["fedtiny", "fl_pqsu", "synflow", "feddst", "fedavg"])
def test_single_seeds_are_told_as_measured(method):
    cells = json.loads(FILES["table1"].read_text())["cells"]
    density = "1" if method == "fedavg" else "0.001"
    stem = f"{method}-cifar10-resnet18-d{density}-s"
    own = [cell for cell in cells if cell["name"].startswith(stem)]
    first, second = (f"{cell['numbers']['accuracy']:.4f}" for cell in own)
    assert f"{first} and {second}" in PAGE.replace("\n", " ")


README = (ROOT / "README.md").read_text()
METHODS = {"FedTiny": "fedtiny", "SynFlow": "synflow", "FedDST": "feddst"}


def size(count):
    """Bytes in three digits, as the README has them."""
    return f"{count / 1e6:.2f} MB" if count > 1e6 else f"{count / 1e3:.0f} kB"


def test_the_readme_s_table_is_measured_without_defenses():
    """Of the paper's scale and seed 0; bytes are those of rounds and of selection."""
    cells = {
        cell["name"]: cell
        for path in sorted((ROOT / "results").rglob("table1.json"))
        for document in [json.loads(path.read_text())]
        if document["scale"] == "paper"
        for cell in document["cells"]
    }
    _, *told = rows(README.partition("measured with this code:")[2].partition("![")[0])
    assert len(told) == 4
    for row in told:
        method, density, accuracy, paper, flops, moved = row.strip("| ").split(" | ")
        cell = cells[f"{METHODS[method]}-cifar10-resnet18-d{density}-s0"]
        settings, numbers = cell["settings"], cell["numbers"]
        assert not settings.get("robustness.bound")
        assert not settings.get("robustness.reject")
        assert settings["train.optimizer"] == "adam"
        assert settings["pruning.gradient_epsilon"] == 0.01
        assert accuracy == f"{numbers['accuracy']:.3f}"
        assert flops.removesuffix(" of dense") == f"{numbers['flops_ratio']:.1%}"
        each_round = numbers["bytes_round"] + numbers["selection_bytes"] / settings["rounds"]
        assert moved == size(each_round)
        start = f"| ResNet18 | {density} | {method} | {numbers['accuracy']:.4f} | "
        (line,) = (line for line in rows(PAGE) if line.startswith(start))
        assert paper == f"{float(line.removeprefix(start).split()[0]):.3f}"


def accuracies(name, data, out):
    """The accuracies of each run on a data set, over seeds."""
    folder, file = ROOT / "experiments" / "budgets", BUDGETS["mini"][name]
    (found,) = results([name], folder, out, "mini", (file,))
    places = [place for place in found.places if place.config.data.name == data]
    return {
        place.at["run"].label: [run.numbers["accuracy"] for run in found.found.get(place.stem, ())]
        for place in places
    }


WORTH = {
    "SynFlow's cut instead of FedTiny, uniform budgets": ("FedTiny, uniform", "SynFlow, uniform"),
    "the same, ERK budgets": ("FedTiny, ERK", "SynFlow, ERK"),
    "rescaling, uniform budgets": ("SynFlow, uniform", "FedTiny-Flow, uniform"),
    "rescaling, ERK budgets": ("SynFlow, ERK", "FedTiny-Flow, ERK"),
    "budgets by flow instead of ERK, for at most ERK's operations": (
        *("FedTiny-Flow, ERK", "FedTiny-Flow, {erk}"),
    ),
    "more operations: budgets by flow, 1.1 times FedTiny's to 3 times": (
        *("FedTiny-Flow, 1.1x", "FedTiny-Flow, 3x"),
    ),
    "the recipe instead of Adam and plain averaging, seed 0, 3 times the operations": (
        *("FedTiny-Flow, 3x, Adam", "FedTiny-Flow, 3x"),
    ),
}
"""Parts of `fedtiny_flow` on the page of methods: the runs without and with each."""


def test_what_each_part_of_flow_is_worth_is_measured(tmp_path):
    page = (ROOT / "docs" / "methods.md").read_text()
    _, *told = rows(page.partition("## What fedtiny_flow is")[2].partition("\n## ")[0])
    assert [row.strip("| ").split(" | ")[0] for row in told] == list(WORTH)
    for name, place, seeds, erk in (("permille", 1, 3, "1.35x"), ("percent", 2, 2, "2.1x")):
        known = accuracies(name, "cifar10", tmp_path / name)
        for row in told:
            part, *values = row.strip("| ").split(" | ")
            runs = [known.get(run.format(erk=erk), [])[:seeds] for run in WORTH[part]]
            if values[place - 1] == "not run":
                assert not runs[0]
                continue
            for value, own in zip(values[place - 1].split(" to "), runs, strict=True):
                mean = own[0] if "seed 0" in part else fmean(own)
                assert float(value) == pytest.approx(mean, abs=0.0005 + 1e-9)
