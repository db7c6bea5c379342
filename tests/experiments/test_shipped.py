"""The experiments that are shipped: whole, valid at every scale, and without doubles."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fedtiny.config.flat import flat
from fedtiny.cost.network import IMAGES
from fedtiny.experiments.runner import check_config
from fedtiny.experiments.suite import Suite

ROOT = Path(__file__).parents[2]
SUITE = Suite.load()
SCALES = ("smoke", "mini", "paper")
EVERY = [(e, s) for e in SUITE.experiments for s in SCALES]
SOURCES = {
    "table1": "Table 1",
    "density": "Figure 3",
    "ablation": "Figure 4",
    "pool_size": "Figure 5",
    "pool_flops": "Table 2",
    "schedule": "Table 3",
    "noniid": "Figure 6",
    "small_data": "Table 4",
    "small_density": "Table 5",
}


@cache
def places(name, scale):
    (experiment,) = SUITE.find([name])
    return SUITE.places(experiment, SUITE.scale(scale))


def each(scale, trains=True):
    chosen = [e.name for e in SUITE.experiments if e.trains or not trains]
    return [place for name in chosen for place in places(name, scale)]


def test_every_table_and_figure_of_the_experiments_is_there():
    assert {e.name: e.source for e in SUITE.experiments} == SOURCES
    assert [e.number for e in SUITE.experiments] == list(range(1, 10))
    assert list(SUITE.scales) == list(SCALES)


@pytest.mark.parametrize(("experiment", "scale"), EVERY, ids=lambda v: getattr(v, "name", v))
def test_every_run_can_be_made(experiment, scale):
    for place in places(experiment.name, scale):
        shape, classes = IMAGES[place.config.data.name]
        check_config(place.config, shape, classes)
        pruning = place.config.pruning
        assert pruning.delta_r <= pruning.r_stop < place.config.rounds
        assert place.cell(3).config == replace(place.config, seed=3)


@pytest.mark.parametrize("scale", SCALES)
def test_one_name_means_one_config_and_the_other_way_round(scale):
    by_name, by_config = {}, {}
    for place in each(scale, trains=False):
        by_name.setdefault(place.stem, set()).add(place.config)
        by_config.setdefault(place.config, set()).add(place.stem)
    assert {len(configs) for configs in by_name.values()} == {1}
    assert {len(names) for names in by_config.values()} == {1}


def test_the_example_of_an_own_experiment_shares_runs_with_the_paper_s():
    own = Suite.load(ROOT / "examples" / "experiments")
    for scale in SCALES:
        block, entire = own.places(own.experiments[0], own.scale(scale))
        assert block.config in [place.config for place in places("table1", scale)]
        pruning = replace(block.config.pruning, granularity="entire")
        assert entire.config == replace(block.config, pruning=pruning)


@pytest.mark.parametrize(("experiment", "scale"), EVERY, ids=lambda v: getattr(v, "name", v))
def test_no_run_stands_twice_in_an_experiment(experiment, scale):
    found = places(experiment.name, scale)
    assert len({place.stem for place in found}) == len(found)
    axes = [axis.name for axis in experiment.axes]
    assert len({place.where(*axes) for place in found}) == len(found)


@pytest.mark.parametrize(
    ("name", "smoke", "full"),
    [
        ("table1", 44, 44),
        ("density", 36, 144),
        ("ablation", 32, 32),
        ("pool_size", 12, 15),
        ("pool_flops", 3, 3),
        ("schedule", 21, 21),
        ("noniid", 15, 15),
        ("small_data", 4, 16),
        ("small_density", 16, 16),
    ],
)
def test_how_many_runs_there_are(name, smoke, full):
    assert [len(places(name, scale)) for scale in SCALES] == [smoke, full, full]


def test_experiments_share_their_runs():
    shared = "fedtiny-cifar10-resnet18-d0.01"
    holders = [
        e.name for e in SUITE.experiments if shared in {p.stem for p in places(e.name, "mini")}
    ]
    assert holders == ["table1", "density", "ablation", "noniid", "small_data", "small_density"]
    names = {place.stem for place in each("mini")}
    assert len(names) == 244


def test_names_say_what_differs():
    names = {place.stem for place in each("mini")}
    assert "fedavg-cifar10-vgg11-d1" in names
    assert "fedtiny-cifar10-vgg11-d0.001-pool_size=100" in names
    assert "fedtiny-cifar10-vgg11-d0.001" in names, "C = 50, which is the preset"
    assert "fedtiny-cifar10-vgg11-d0.001-pool_size=50" not in names
    assert "synflow-cifar10-resnet18-d0.01-alpha=0.1" in names
    assert "fedtiny-cifar10-resnet18-d0.005-progressive=False-selection.kind=vanilla" in names
    assert "fedtiny-cifar10-vgg11-d0.01-delta_r=2-granularity=layer-order=forward" in names
    assert places("table1", "mini")[0].cell(1).name == "fedtiny-cifar10-resnet18-d0.001-s1"


def test_the_most_telling_runs_come_first():
    first = [place.stem for place in places("table1", "mini")]
    assert first[:3] == [f"fedtiny-cifar10-resnet18-d{d}" for d in ("0.001", "0.01", "0.005")]
    assert [name.partition("-")[0] for name in first[3:16:3]] == [
        *("fl_pqsu", "synflow", "feddst", "prunefl", "fedavg"),
    ]
    assert all("resnet18" in name for name in first[:22])


# Scales


def test_smoke_knows_the_digits_only_and_narrow_networks():
    for place in each("smoke", trains=False):
        config = place.config
        assert (config.data.name, config.rounds, config.simulator) == ("digits", 4, "reference")
        assert (config.model, config.width) in (("resnet18", 16), ("vgg11_small", 8))
        assert config.density in (1.0, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02)
    assert {p.config.density for p in places("table1", "smoke")} == {1.0, 0.1, 0.05, 0.02}


def test_mini_is_a_short_run_on_a_gpu():
    for place in each("mini"):
        config = place.config
        assert (config.rounds, config.train.local_epochs, config.simulator) == (90, 1, "gpu")
        assert (config.eval_every, config.checkpoint_every) == (10, 10)
    config = places("table1", "mini")[0].config
    assert (config.pruning.delta_r, config.pruning.r_stop) == (3, 30)
    assert {p.config.model for p in each("mini")} == {"resnet18", "vgg11"}


def test_paper_is_as_published():
    for place in each("paper"):
        config = place.config
        rounds = 200 if config.data.name == "svhn" else 300
        assert (config.rounds, config.train.local_epochs, config.train.batch_size) == (
            rounds,
            5,
            64,
        )
        assert (config.fleet.devices, config.eval_every, config.simulator) == (10, 5, "auto")
        assert place.config == place.asked
    config = places("table1", "paper")[0].config
    assert (config.pruning.delta_r, config.pruning.r_stop, config.pool_size) == (10, 100, 50)


SCHEDULES = {
    "smoke": "1/2 1/2 1/2 1/2 1/1 1/2 1/1",
    "mini": "2/30 2/30 3/30 3/30 2/16 15/30 8/16",
    "paper": "5/100 5/100 10/100 10/100 5/50 50/100 25/50",
}


@pytest.mark.parametrize("scale", SCALES)
def test_schedules_scale_with_the_rounds(scale):
    at = sorted({p.at["schedule"] for p in places("schedule", scale)}, key=lambda at: at.rank)
    words = ("Layer", "Layer (b)", "Block", "Block (b)", "Block (b)", "Entire", "Entire")
    assert [found.label for found in at] == [
        f"{word} {times}" for word, times in zip(words, SCHEDULES[scale].split(), strict=True)
    ]
    usual = [p for p in places("schedule", scale) if p.at["schedule"].value == "block_backward"]
    assert {p.stem for p in usual} <= {p.stem for p in places("table1", scale)}


def test_pools_lie_around_the_best_size():
    found = {}
    for place in places("pool_size", "paper"):
        found.setdefault(place.config.density, set()).add(place.config.pool_size)
    assert found == {
        0.01: {2, 5, 10, 25, 50},
        0.005: {4, 10, 20, 50, 100},
        0.001: {20, 50, 100, 250, 500},
    }
    assert {p.config.pool_size for p in places("pool_flops", "paper")} == {10, 20, 100}


def test_the_ablation_switches_one_module_at_a_time():
    kinds = {
        place.at["modules"].value: (place.config.selection.kind, place.config.pruning.progressive)
        for place in places("ablation", "mini")
    }
    assert kinds == {
        "vanilla selection": ("vanilla", False),
        "adaptive BN selection": ("adaptive_bn", False),
        "vanilla + progressive": ("vanilla", True),
        "FedTiny (both)": ("adaptive_bn", True),
    }


def test_a_scale_changes_nothing_that_it_does_not_name():
    """Settings of a mini run differ from the paper's only in what scales.toml says."""
    allowed = {"rounds", "simulator", "eval_every", "checkpoint_every"}
    allowed |= {"train.local_epochs", "pruning.delta_r", "pruning.r_stop"}
    for place in each("mini"):
        ours, theirs = flat(place.config), flat(place.asked)
        assert {key for key in ours if ours[key] != theirs[key]} <= allowed
