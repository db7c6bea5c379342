"""The tables of the pages are made of the committed result files, line by line."""

import json
import re
from functools import partial
from statistics import fmean

import pytest

from fedtiny.drawing.files import standalone
from fedtiny.experiments import curves, pareto, table
from fedtiny.experiments.suite import Suite
from fedtiny.experiments.sweep import Sweep

from .markdown import ROOT

RESULTS = ROOT / "results"
UNDEFENDED, DEFENDED = RESULTS / "earlier" / "undefended", RESULTS / "earlier" / "defended"
EVERY = sorted(RESULTS.rglob("*.json"))
DIGITS, RECIPES = RESULTS / "digits" / "digits.json", RESULTS / "heldout" / "recipes.json"
ON_OTHER_PAGES = {DIGITS: "methods.md", RECIPES: "training.md"}
WHOLE = (
    *(RESULTS / "mini" / "table1.json", RECIPES),
    *sorted((UNDEFENDED / "mini").glob("[ag]*.json")),
)
"""Files whose tables stand there with the rows that have not been run."""
FULL = tuple(path for path in EVERY if path.parent.name == "paper")
SHORT_TABLE1 = [path / "mini" / "table1.json" for path in (RESULTS, UNDEFENDED)]
ELSEWHERE = {
    "granularity": ROOT / "examples" / "experiments",
    **{path.stem: path.parent for path in sorted((ROOT / "experiments").glob("*/*.toml"))},
}
"""Folders of experiments that are not the paper's; of one name in two, the fair one."""
OF_EARLIER = {path.stem: path.parent for path in (ROOT / "experiments" / "budgets").glob("*.toml")}
TOLD_WITH_CODE = ("fedtiny-cifar10-resnet18-d0.001", "fl_pqsu-cifar10-resnet18-d0.001")
PAGE = (ROOT / "docs" / "results.md").read_text()


def rows(text):
    """The rows of tables, without the one that aligns the columns."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line.startswith("| ") and not line.startswith("| :--")]


def by_regime(text):
    """The rows of tables, each with the regime that is named before it."""
    regime, found = None, []
    for line in text.splitlines():
        named = re.findall(r"[Rr]egime `(\w+)`", line)
        regime = named[-1] if named else regime
        found += [(regime, row) for row in rows(line)]
    return found


def results(path, out, name=None):
    """What the command shows of a result file."""
    name = name or path.stem
    earlier = OF_EARLIER if path.is_relative_to(RESULTS / "earlier") else {}
    suite = Suite.load((ELSEWHERE | earlier).get(name))
    scale = suite.scale(path.parent.name)
    sweep = Sweep(suite, scale, suite.find([name]), out, result_files=(path,))
    return sweep.results(sweep.experiments[0])


def made(path, out, name=None):
    """The rows of a file's table that stand on the page, each with the regime of the file."""
    found = results(path, out, name)
    own = [row for row in rows(table.page(found)) if row.count(" - ") < 2 or path in WHOLE]
    return [(found.regime, row) for row in own if not left_out(row)]


def left_out(row):
    """Whether the page does without a row: of VGG11 one density was run."""
    return "VGG11" in row and "| 0.001 |" not in row


TABLES = [*((path, None) for path in EVERY), (DEFENDED / "mini" / "permille.json", "flow_ablation")]


@pytest.mark.parametrize(("path", "name"), TABLES, ids=lambda value: getattr(value, "stem", value))
def test_the_tables_are_those_that_the_command_makes(tmp_path, path, name):
    """Each stands in one piece under the name of its regime."""
    text = (ROOT / "docs" / ON_OTHER_PAGES.get(path, "results.md")).read_text()
    wanted, page = made(path, tmp_path, name), by_regime(text)
    assert any("0." in row for _, row in wanted)
    first = [at for at, row in enumerate(page) if row == wanted[0]]
    assert wanted in [page[at : at + len(wanted)] for at in first]


def test_no_other_row_stands_on_the_page(tmp_path):
    here = [(path, name) for path, name in TABLES if path not in ON_OTHER_PAGES]
    every = [row for path, name in here for row in made(path, tmp_path, name)]
    assert {*by_regime(PAGE)} <= {*every}


def test_every_result_at_the_paper_s_scale_has_a_curve_to_its_end():
    for cell in (cell for file in FULL for cell in json.loads(file.read_text())["cells"]):
        assert cell["curve"][-1] == [300, cell["numbers"]["accuracy"]]


@pytest.mark.parametrize(
    ("figure", "file", "draw"),
    [
        ("paper_scale", UNDEFENDED / "paper" / "table1.json", curves.draw),
        (
            "paper_scale_bytes",
            UNDEFENDED / "paper" / "table1.json",
            partial(curves.draw, over=curves.BY_BYTES),
        ),
        ("pareto", RESULTS / "mini" / "table1.json", pareto.draw),
        ("pareto_permille", DEFENDED / "mini" / "permille.json", pareto.draw),
        ("pareto_percent", DEFENDED / "mini" / "percent.json", pareto.draw),
    ],
)
def test_the_figures_are_what_the_command_draws(tmp_path, figure, file, draw):
    """If not: give the commands on the page, and copy the figures. Rules of color may differ."""
    drawn = standalone(draw(results(file, tmp_path)), "")
    committed = (ROOT / "docs" / "figures" / f"{figure}.svg").read_text()
    assert committed.partition("</style>")[2] == drawn.partition("</style>")[2]


def test_curves_are_told_as_measured():
    document = json.loads((UNDEFENDED / "paper" / "table1.json").read_text())
    cells = {cell["name"]: cell for cell in document["cells"]}
    for density in ("0.01", "0.001"):
        curve = cells[f"fedtiny-cifar10-resnet18-d{density}-s0"]["curve"]
        assert [done for done, _ in curve] == [10, 50, 100, 200, 300]
        assert ", ".join(f"{accuracy:.3f}" for _, accuracy in curve) in PAGE


@pytest.mark.parametrize("path", EVERY, ids=lambda path: str(path.relative_to(RESULTS)))
def test_every_result_has_its_command_and_hardware(path):
    for machine in json.loads(path.read_text())["machines"]:
        assert machine["command"].startswith("fedtiny r")
        assert machine["gpu"] == ([] if path == DIGITS else ["NVIDIA H200"])
        assert machine["torch"]


def test_what_the_page_compares_was_made_by_code_that_can_be_found():
    documents = [json.loads(path.read_text()) for path in SHORT_TABLE1]
    told = [
        document["machines"][machine]["code"]
        for document in documents
        for cell in document["cells"]
        if cell["name"].startswith(TOLD_WITH_CODE)
        for machine in cell["machines"]
    ]
    assert len(told) >= 4
    for code in told:
        assert f"{code}, among them FedTiny and FL-PQSU at 0.001" in PAGE


@pytest.mark.parametrize("method", ["fedtiny", "fl_pqsu", "synflow", "feddst", "fedavg"])
def test_single_seeds_are_told_as_measured(method):
    cells = [c for path in SHORT_TABLE1 for c in json.loads(path.read_text())["cells"]]
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
    _, *told = rows(README.partition("next to the paper's, and cost:")[2].partition("![")[0])
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
    found = results(DEFENDED / "mini" / f"{name}.json", out)
    places = [place for place in found.places if place.config.data.name == data]
    return {
        place.at["run"].label: [run.numbers["accuracy"] for run in found.found.get(place.stem, ())]
        for place in places
    }


def by_seed(path, **settings):
    """The accuracy of each seed among the cells with these settings, dots written as `__`."""
    wanted = {name.replace("__", "."): value for name, value in settings.items()}
    return {
        cell["seed"]: cell["numbers"]["accuracy"]
        for cell in json.loads(path.read_text())["cells"]
        if wanted.items() <= cell["settings"].items()
    }


@pytest.mark.parametrize("page", ["README.md", "docs/faq.md"])
def test_when_not_to_prune_follows_the_table(page):
    """Both sides have one recipe, and uniform budgets."""
    shown = " ".join((ROOT / page).read_text().split())
    for recipe in ("paper", "momentum"):
        small, tiny = (
            fmean(by_seed(DIGITS, recipe=recipe, pruning__budgets="uniform", method=name).values())
            for name in ("small_model", "fedtiny")
        )
        assert f"{small:.3f} against {tiny:.3f} with `--recipe {recipe}`" in shown


def test_differences_of_25_steps_of_flow_are_those_of_pairs():
    """In the order of the page: each pair, then the means."""
    page = (ROOT / "docs" / "decisions.md").read_text()
    (shown,) = re.findall(r"^- \*\*100 steps.*?(?=^- )", page, re.M | re.S)
    pairs = []
    for recipe in ("momentum", "paper"):
        for density in (0.001, 0.01):
            own = partial(by_seed, RECIPES, method="fedtiny_flow", recipe=recipe, density=density)
            few, usual = own(pruning__iterations=25), own(pruning__iterations=100)
            pairs.append([few[seed] - usual[seed] for seed in sorted(few.keys() & usual.keys())])
    wanted = [*(pair for some in pairs for pair in some), *map(fmean, pairs)]
    points = re.findall(r"(?<![\d.])-?\d\.\d(?!\d)", shown)
    assert points == [f"{100 * difference:.1f}" for difference in wanted]


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
