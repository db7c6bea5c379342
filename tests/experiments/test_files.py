"""What is wrong in a file is told in one sentence, with the file and the nearest right word."""

import pytest

from fedtiny import extras
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.experiments import experiment, scale
from fedtiny.experiments.suite import Suite, printed, shipped_folder

from ..docs.markdown import ROOT, blocks
from .own import FIRST, SCALES, SECOND, write_suite

# Experiments


@pytest.fixture
def read(tmp_path):
    def parse(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return experiment.load(path)

    return parse


def test_an_experiment_is_what_its_file_says(read):
    found = read(FIRST)
    assert (found.name, found.number, found.source) == ("mine", 1, "Table 1")
    assert [axis.name for axis in found.axes] == ["density", "method"]
    assert found.base == {"model": "resnet18", "data.name": "cifar10"}
    assert found.trains
    assert found.table.columns == ()


def test_the_order_nests_axes_and_puts_values_first(read):
    chosen = [tuple(c.name for c in one.values()) for one in read(FIRST).combinations()]
    assert chosen[:3] == [("fedtiny", "0.005"), ("fedtiny", "0.01"), ("fedavg", "0.005")]
    assert len(chosen) == 6


def test_the_page_s_example_trains_on_the_paper_s_data(read, paper_suite):
    (example,) = [b for b in blocks(ROOT / "docs" / "reproduce.md") if b.language == "toml"]
    for scale_name, data in (("mini", "cifar10"), ("smoke", "digits")):
        places = paper_suite.places(read(example.text), paper_suite.scale(scale_name))
        assert {place.config.data.name for place in places} == {data}


def test_named_variants_are_settings_with_a_label(read):
    (axis,) = read(SECOND).axes
    assert axis.setting is None
    assert [choice.name for choice in axis.choices] == ["vanilla", "both"]
    assert axis.choices[0].settings == {"selection.kind": "vanilla"}
    assert axis.choices[1].settings == {}
    assert axis.choices[1].label == "both, to round {r_stop}"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("number = 1", "", "lacks 'number', which must be a number"),
        ("number = 1", "number = 1\ntitel = 3", "unknown name 'titel' .*did you mean 'title'"),
        ("[table]", "[tabel]", "unknown name 'tabel' .*did you mean 'table'"),
        ("density = [0.01, 0.005]", "density = []", "axis 'density' has no value"),
        ("density = [0.01, 0.005]", "density = 0.01", "axis 'density' must be a list or a table"),
        (
            'rows = ["density"',
            'rows = ["densty"',
            "rows': unknown name 'densty' .*mean 'density'",
        ),
        ('"accuracy", "flops', '"acuracy", "flops', "unknown name 'acuracy' .*mean 'accuracy'"),
        ('kind = "lines"', 'kind = "pie"', "'figure.kind': unknown name 'pie' .*lines, bars"),
        ('x = "density"', "", "'figure' lacks 'x', which must be text"),
        ('series = "method"', 'series = "model"', "'figure.series': unknown name 'model'"),
        ('["fedtiny"]', '["fedtany"]', "'order.method': unknown name 'fedtany' .*mean 'fedtiny'"),
        ("[order]", "[order]\nmodel = [1]", "'order': unknown name 'model'"),
        ("[base]", "[base]\n[base]", "Cannot declare"),
        ('rows = ["density", "method"]', 'rows = ["density"]', "'table' must name every axis once"),
        ('rows = ["density", "method"]', 'rows = ["density"]\ncolumns = ["method"]', "one value"),
        ('["accuracy", "flops_ratio"]', '["flops_ratio"]', "'table.best_of' needs accuracy"),
        ("number = 1", "number = 1\ntrains = false", "without training there is no accuracy"),
        ('series = "method"', "", "'figure' must name every axis that has several values"),
        ('x = "density"\nseries = "method"', 'x = "method"\npanels = "density"', "needs 'series'"),
        ('x = "density"\nseries = "method"', 'x = "method"\nseries = "density"', "needs numbers"),
    ],
)
def test_what_is_wrong_in_an_experiment_is_named(read, old, new, complaint):
    with pytest.raises(ConfigError, match=rf"mine\.toml.*{complaint}"):
        read(FIRST.replace(old, new, 1))


def test_a_setting_that_does_not_exist_is_named_with_the_experiment(tmp_path):
    folder = write_suite(tmp_path)
    text = FIRST.replace('model = "resnet18"', 'modell = "resnet18"', 1)
    (folder / "first.toml").write_text(text)
    suite = Suite.load(folder)
    with pytest.raises(ConfigError, match=r"'first' at tiny: unknown key 'modell'.*'model'"):
        suite.places(suite.find(["first"])[0], suite.scale("tiny"))


def test_a_label_that_names_no_setting_is_refused(tmp_path):
    folder = write_suite(tmp_path)
    (folder / "second.toml").write_text(SECOND.replace("{r_stop}", "{r_stopp}"))
    suite = Suite.load(folder)
    with pytest.raises(ConfigError, match=r"the label .*r_stopp"):
        suite.places(suite.find(["second"])[0], suite.scale("tiny"))


# Scales


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("rounds = 3", "round = 3", "scale 'tiny': unknown key 'round'; did you mean 'rounds'"),
        ("rounds = 3", "rounds = 0", "scale 'tiny': --rounds must be at least 1"),
        ("[tiny.instead]", "[tiny.insted]", "unknown name 'insted' .*did you mean 'instead'"),
        ('density = { "0.01" = 0.3', 'density = 1 #{ "0.01"', "'instead.density' must be a table"),
    ],
)
def test_what_is_wrong_in_a_scale_is_named(tmp_path, old, new, complaint):
    path = tmp_path / "scales.toml"
    path.write_text(SCALES.replace(old, new, 1))
    with pytest.raises(ConfigError, match=rf"scales\.toml.*{complaint}"):
        scale.load(path)


def test_a_scale_translates_what_the_paper_has(suite):
    tiny = suite.scale("tiny")
    config = tiny.config({"density": 0.01, "data.name": "svhn", "model": "resnet18"})
    assert (config.density, config.data.name, config.model) == (0.3, "digits", "small")
    assert tiny.config({"density": 0.02}).density == 0.02
    assert tiny.config({"density": 0.01, "method": "fedavg"}).density == 1


def test_a_pool_may_be_given_as_a_multiple_of_the_best_one(suite):
    tiny = suite.scale("tiny")
    sizes = {"1 C*": 2, "5 C*": 10, "0.2 C*": 1}
    for size, number in sizes.items():
        config = tiny.config({"density": 0.05, "selection.pool_size": size})
        assert config.pool_size == number
    with pytest.raises(ConfigError, match=r"'selection.pool_size' must be a number or, say"):
        tiny.config({"density": 0.05, "selection.pool_size": "many C*"})


def test_a_scale_that_is_not_there(suite):
    with pytest.raises(ConfigError, match=r"no scale 'tiiny' .*did you mean 'tiny'"):
        suite.scale("tiiny")


# The suite


def test_an_own_suite_has_the_papers_scales_and_values_beside_its_own(suite):
    assert set(suite.scales) == {"tiny", "rare", "smoke", "mini", "paper"}
    assert printed(suite.paper, "fedtiny-cifar10-resnet18-d0.01", "accuracy", "x").number == 0.8523


def test_an_experiment_is_found_by_name_and_by_its_place_in_the_paper(paper_suite):
    for name in ("schedule", "Table 3", "table3"):
        assert [e.name for e in paper_suite.find([name])] == ["schedule"]
    assert len(paper_suite.find(["all"])) == 9
    assert len(paper_suite.find(["table1", "all", "table1"])) == 9
    with pytest.raises(ConfigError, match=r"no experiment 'tabel1' .*did you mean 'table1'"):
        paper_suite.find(["tabel1"])


def test_a_folder_without_experiments(tmp_path):
    with pytest.raises(ConfigError, match="there are no experiments in"):
        Suite.load(tmp_path)


def test_where_the_experiments_are(monkeypatch, tmp_path):
    assert (shipped_folder() / "table1.toml").is_file()
    installed, checkout = tmp_path / "installed", tmp_path / "checkout"
    monkeypatch.setattr(extras, "ROOTS", (installed, checkout))
    with pytest.raises(FedTinyError, match=f"'experiments' .* expected it in {installed}"):
        shipped_folder()
    for root in (checkout, installed):
        (root / "experiments").mkdir(parents=True)
        (root / "experiments" / "scales.toml").touch()
        assert shipped_folder() == root / "experiments"
