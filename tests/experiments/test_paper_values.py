"""The paper's values: every printed number, and which run it is of."""

import tomllib

import pytest

from fedtiny.errors import ConfigError
from fedtiny.experiments.suite import load_paper, printed, shipped_folder

from .test_shipped import SUITE, places

DOCUMENT = tomllib.loads((shipped_folder() / "paper.toml").read_text(encoding="utf-8"))
PRINTED = DOCUMENT["printed"]


def value(twin, quantity="accuracy", source="Table 1"):
    return printed(SUITE.paper, twin, quantity, source)


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ("Table 1", 2 * (1 + 3 * 7)),
        ("Table 3", 7 * 3),
        ("Table 4", 4 * 4),
        ("Table 5", 4 * 4),
        ("Table 2", 3),
    ],
)
def test_every_row_is_there(source, rows):
    assert len(PRINTED[source]["rows"]) == rows


@pytest.mark.parametrize(
    "name", ["table1", "schedule", "small_data", "small_density", "pool_flops"]
)
def test_every_cell_of_a_table_has_its_printed_value(name):
    (experiment,) = SUITE.find([name])
    for place in places(name, "mini"):
        for quantity in experiment.table.values:
            found = value(place.twin, quantity, experiment.source)
            assert found is not None, place.twin
            assert found.source == experiment.source


@pytest.mark.parametrize(
    ("twin", "quantity", "text"),
    [
        ("fedavg-cifar10-resnet18-d1", "accuracy", "0.9048"),
        ("fedavg-cifar10-vgg11-d1", "memory_mb", "1033.33"),
        ("fedtiny-cifar10-resnet18-d0.01", "accuracy", "0.8523"),
        ("fedtiny-cifar10-resnet18-d0.001", "accuracy", "0.6311"),
        ("fedtiny-cifar10-vgg11-d0.001", "accuracy", "0.5944"),
        ("snip-cifar10-resnet18-d0.005", "accuracy", "0.2711"),
        ("snip-cifar10-resnet18-d0.005", "flops_ratio", "0.009x"),
        ("prunefl-cifar10-vgg11-d0.001", "flops_ratio", "0.339x"),
        ("feddst-cifar10-vgg11-d0.01", "accuracy", "0.6067"),
        ("lotteryfl-cifar10-vgg11-d0.005", "accuracy", "0.4376"),
        ("synflow-cifar10-resnet18-d0.01", "memory_mb", "2.75"),
        ("snip-cifar10-vgg11-d0.005", "memory_mb", "12.00"),
        ("small_model-svhn-resnet18-d0.01", "accuracy", "0.8395"),
        ("fedtiny-cifar100-resnet18-d0.01", "accuracy", "0.4865"),
        ("small_model-cifar10-resnet18-d0.003", "accuracy", "0.6921"),
        ("fedtiny-cifar10-vgg11-d0.001-pool_size=100", "selection_flops", "3.42E11"),
        ("fedtiny-cifar10-vgg11-d0.005-pool_size=20", "flops_training", "4.92E11"),
        ("fedtiny-cifar10-vgg11-d0.005-pool_size=20", "selection_share", "20%"),
        (
            "fedtiny-cifar10-vgg11-d0.001-delta_r=5-granularity=layer-order=forward",
            "accuracy",
            "0.4470",
        ),
        (
            "fedtiny-cifar10-vgg11-d0.001-delta_r=25-granularity=entire-r_stop=50",
            "accuracy",
            "0.5944",
        ),
    ],
)
def test_what_the_paper_prints(twin, quantity, text):
    assert value(twin, quantity).text == text


def test_where_the_paper_prints_two_values_each_table_shows_its_own():
    twin = "fedtiny-cifar10-vgg11-d0.001"
    assert value(twin, source="Table 3").number == 0.6311
    assert value(twin, source="Table 1").number == 0.5944
    assert value(twin, source="Figure 4").source == "Table 1"
    told = [found["what"] for found in DOCUMENT["inconsistent"] if found["where"] == "Table 3"]
    assert "0.6311" in told[0]
    assert "0.5944" in told[0]


def test_a_table_and_its_repetition_agree():
    """Table 4 and 2 print again what Table 1 has; only the schedule table does not."""
    twice = {
        key: {found.number for found in values}
        for key, values in SUITE.paper.items()
        if len(values) > 1
    }
    differing = {twin for (twin, _), numbers in twice.items() if len(numbers) > 1}
    assert len(twice) > 10
    assert differing == {"fedtiny-cifar10-vgg11-d0.001"}


def test_figures_show_what_tables_print_of_the_same_runs():
    at_half = [place for place in places("noniid", "mini") if place.config.fleet.alpha == 0.5]
    assert [value(place.twin).text for place in at_half] == ["0.8523", "0.8034", "0.8262"]
    assert value("fedtiny-cifar10-resnet18-d0.01-alpha=0.1") is None
    both = [p for p in places("ablation", "mini") if p.at["modules"].value == "FedTiny (both)"]
    assert sum(value(place.twin) is not None for place in both) == 6


def test_the_claims_follow_from_the_table():
    ours, best = (value(f"{m}-cifar10-resnet18-d0.01").number for m in ("fedtiny", "prunefl"))
    assert ours - best == pytest.approx(DOCUMENT["claims"]["accuracy_gain"])


def test_a_row_that_does_not_fit_is_named(tmp_path):
    path = tmp_path / "paper.toml"
    path.write_text('[printed.x]\ncolumns = ["method", "accuracy"]\nrows = [["snip"]]\n')
    with pytest.raises(ConfigError, match=r"paper\.toml: x: .*does not have 2 columns"):
        load_paper(path, SUITE.scales["paper"])
