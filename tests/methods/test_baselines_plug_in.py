"""Methods from other packages: the example, the documentation's, and broken ones."""

import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from fedtiny import methods
from fedtiny.cli.main import dispatch
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.runs.reporter import Lines
from fedtiny.runs.runner import run
from fedtiny.sparse.densities import erdos_renyi_kernel

from ..devices.tiny import lab, settings
from ..runs.tiny import FLAGS, tiny, train
from .contract import DENSITY, EXAMPLE, POINTS, ROUNDS, Archive, example_installed, installed

DOCS = EXAMPLE.parents[1] / "docs" / "own_method.md"
HEAD = "from fedtiny.federation.method import Method\n"


@pytest.fixture
def guest(tmp_path):
    """Install a package of one module with this text and entry point, for the length of a test."""

    @contextmanager
    def installed_(text, value="guest:Guest", name="guest"):
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "guest.py").write_text(text)
        with installed(tmp_path / "site", tmp_path / "code", {name: value}):
            yield

    return installed_


@pytest.fixture
def fedtiny(monkeypatch, capsys, tmp_path):
    """The command line: exit code, output and errors."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*arguments):
        capsys.readouterr()
        return dispatch(list(arguments)), *capsys.readouterr()

    return call


# The example


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    with example_installed(tmp_path_factory.mktemp("installed")):
        yield methods.find("erk")


def test_the_example_is_found_by_its_entry_point_and_nothing_else(example):
    assert example.__module__ == "fedtiny_erk"
    assert POINTS == {"fedtiny.methods": {"erk": "fedtiny_erk:ERK"}}
    assert example.name == "erk"
    assert methods.create(settings(method="erk")).__class__ is example


@pytest.mark.usefixtures("example")
def test_the_example_is_listed_with_its_first_line(fedtiny):
    assert methods.names()["erk"].endswith("(ERK).")
    code, out, _ = fedtiny("list", "methods")
    assert code == 0
    assert "erk " in out


@pytest.mark.usefixtures("example")
def test_the_example_keeps_the_largest_weights_at_erk_densities():
    bench = lab(settings(method="erk", density=DENSITY))
    bench.method.coarse_prune(bench.server)
    mask = bench.server.theta.mask
    assert list(mask.counts.values()) == erdos_renyi_kernel(bench.param_spec, DENSITY).tolist()
    assert mask.densities["hidden.weight"] > mask.densities["conv2.weight"]
    for layer in mask:
        size = np.sort(np.abs(bench.start.kept(layer)))[::-1]
        assert np.abs(bench.server.theta.kept(layer)).min() == size[mask.kept(layer) - 1]


@pytest.mark.usefixtures("example")
def test_the_example_is_run_and_compared_like_any_other(fedtiny):
    flags = [*FLAGS, "--rounds", "2", "--methods", "erk", "fl_pqsu", "--density", "0.3"]
    code, out, err = fedtiny("compare", *flags, "--out", "runs")
    assert (code, err) == (0, "")
    assert re.search(r"0\.3 +erk +paper +uniform +0\.", out)


def test_the_example_can_be_built():
    """Every file that its pyproject names is there."""
    text = (EXAMPLE / "pyproject.toml").read_text()
    (named,) = re.findall(r'only-include = \["(.*)"\]', text)
    assert (EXAMPLE / named).is_file()
    assert "fedtiny run --method erk" in (EXAMPLE / "README.md").read_text()


# The documentation's


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    """Runs of the method in the documentation."""
    (text,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    code = tmp_path_factory.mktemp("documented")
    (code / "my_package.py").write_text(text)
    (points,) = re.findall(r'^wanda = "(.*)"$', DOCS.read_text(), re.MULTILINE)
    with installed(code / "site", code, {"wanda": points}):
        yield Archive(code / "runs")


def test_the_documented_method_prunes_to_its_density(documented):
    assert documented("wanda").metrics[-1]["density"] == pytest.approx(DENSITY, rel=0.01)
    assert len(documented("wanda").metrics) == ROUNDS


@pytest.mark.parametrize("way", ["stopped", "two workers", "encoded"])
def test_the_documented_method_keeps_the_contract(documented, way):
    assert documented("wanda", way).bytes == documented("wanda").bytes
    assert documented("wanda", way).metrics == documented("wanda").metrics


@pytest.mark.usefixtures("documented")
def test_the_documented_method_keeps_the_largest_products():
    bench = lab(settings(method="wanda", density=DENSITY))
    bench.method.coarse_prune(bench.server)
    weights = [len(shard.development) for shard in bench.shards]
    powers = []
    for shard in bench.shards:
        bench.engine.load(bench.start)
        images, _ = bench.engine.inputs(bench.data.train, shard.development)
        model = bench.model.eval()
        features = model.bn0(model.stem(images)).relu().detach()  # what reaches conv1
        powers.append(features.square().mean(dim=(0, 2, 3)).numpy())
    strength = np.average(powers, axis=0, weights=weights) ** 0.5
    scores = np.abs(bench.start.tensor("conv1.weight")) * strength[None, :, None, None]
    mask = bench.server.theta.mask
    best = np.argsort(-scores.ravel())[: mask.kept("conv1.weight")]
    assert mask.indices("conv1.weight").tolist() == sorted(best.tolist())


def test_every_hook_is_documented():
    told = set(re.findall(r"^\| `(\w+)\(", DOCS.read_text(), re.MULTILINE))
    own = {name for name in vars(methods.Method) if not name.startswith("_")}
    attributes = {"dense", "reducer", "granularity", "schedule", "pruning_numbers", "device_verbs"}
    attributes |= {"native", "private", "summary", "resolve", "needs_flow", "flow", "rescale"}
    attributes |= {"has_flow_budgets", "has_global_threshold", "global_threshold"}
    attributes |= {"budgets", "layer_counts", "extrudes", "extruded", "without_python"}
    assert told == own - attributes


# What a method remembers


REMEMBERING = f"""
import numpy as np
{HEAD}
class Guest(Method):
    '''Keeps a diary.'''
    name = "guest"
    dense = True

    def coarse_prune(self, server):
        server.memory["rounds"] = []
        server.arrays["sum"] = np.zeros(3)

    def adjust(self, server, outcome):
        server.memory["rounds"].append(server.round)
        server.arrays["sum"] = server.arrays["sum"] + server.theta.vector[:3]
        return {{}}

    def train_locally(self, server):
        assert len(server.memory["rounds"]) == server.round
        return super().train_locally(server)
"""


def test_what_a_method_remembers_survives_a_stop(guest, tmp_path):
    with guest(REMEMBERING):
        ran = Archive(tmp_path / "runs")
        assert ran("guest", "stopped").bytes == ran("guest").bytes
        saved = load_file(ran("guest").path / "checkpoint.safetensors")
        assert saved["method.sum"].dtype == np.float64
        assert saved["method.sum"].all()


# Broken ones


BROKEN = {
    "raises when imported": ("import nowhere_to_be_found", "ModuleNotFoundError", "guest:Guest"),
    "has an error in it": ("def (", "SyntaxError", "guest:Guest"),
    "raises in many lines": ("raise ValueError('one\\ntwo')", "ValueError: one", "guest:Guest"),
    "lacks the class": ("", "AttributeError", "guest:Guest"),
    "is no class": ("Guest = 3", "no subclass of fedtiny.federation.method.Method", "guest:Guest"),
    "is another class": ("class Guest: name = 'guest'", "no subclass of", "guest:Guest"),
    "is a module": ("", "no subclass of", "guest"),
    "is an instance": (
        f"{HEAD}class Plain(Method): name = 'guest'\nGuest = Plain(None)",
        "no subclass of",
        "guest:Guest",
    ),
    "has no name": (
        f"{HEAD}class Guest(Method): pass",
        "has no name: give class Guest",
        "guest:Guest",
    ),
    "has a name that is none": (
        f"{HEAD}class Guest(Method): name = 3",
        "has no name",
        "guest:Guest",
    ),
    "takes our name": (
        f"{HEAD}class Guest(Method): name = 'fedtiny'",
        "is named 'fedtiny', a name that is taken",
        "guest:Guest",
    ),
}
every_broken_one = pytest.mark.parametrize(
    ("text", "reason", "value"), BROKEN.values(), ids=BROKEN.keys()
)


@every_broken_one
def test_a_broken_package_is_named_in_one_sentence(guest, fedtiny, text, reason, value):
    with guest(text, value):
        for asked in (["list", "methods"], ["run", "--method", "guest"]):
            code, out, err = fedtiny(*asked)
            assert (code, out) == (1, "")
            assert err.startswith(f"fedtiny: error: the method 'guest = {value}' of package ")
            assert "'fedtiny-guest'" in err
            assert reason in err
            assert err.count("\n") == 1
    assert list(Path.cwd().iterdir()) == []


@every_broken_one
def test_a_broken_package_does_not_stand_in_the_way_of_ours(guest, text, reason, value):
    with guest(text, value):
        for method in methods.BUILT_IN:
            assert methods.find(method.name) is method
        with pytest.raises(ConfigError):
            methods.names()


def test_two_packages_with_one_name_are_told_apart(guest, tmp_path):
    named = f"{HEAD}class Guest(Method): name = 'twin'"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "second.py").write_text(named)
    other = installed(tmp_path / "elsewhere", tmp_path / "other", {"b": "second:Guest"}, "second")
    with guest(named), other, pytest.raises(ConfigError, match="'twin', a name that is taken"):
        methods.names()


# Those that break the contract


IDLE = f"{HEAD}class Guest(Method):\n    '''Does not prune.'''\n    name = 'guest'\n"
GROWING = f"""
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.densities import uniform
{IDLE}
    def coarse_prune(self, server):
        server.theta = prune_by_magnitude(server.theta, uniform(server.param_spec, 0.1))

    def adjust(self, server, outcome):
        if server.round == 1:
            server.theta = server.theta.remasked(Mask.full(server.param_spec))
        return {{}}
"""


@pytest.mark.parametrize(
    ("text", "when"), [(IDLE, "before the first round"), (GROWING, "after round 2")]
)
def test_a_method_above_its_density_is_named(guest, fedtiny, text, when):
    with guest(text):
        code, _, err = fedtiny("run", *FLAGS, "--method", "guest", "--out", "run")
    assert code == 1
    assert err == (
        f"fedtiny: error: method 'guest' broke its contract: density 1 {when} is above "
        "its limit 0.3\n"
    )


def test_an_unknown_verb_is_named_with_its_method(guest, tmp_path):
    text = f"""
from fedtiny.federation.messages import Verb
{IDLE}
    dense = True
    def score(self, server):
        return (Verb("somersault"),)
"""
    with (
        guest(text),
        pytest.raises(FedTinyError, match="cannot 'somersault', which method 'guest'"),
    ):
        train(tiny(method="guest", rounds=1), tmp_path / "run")


# Where we do not keep what the interface promises


TELLING = f"""
from fedtiny.federation.messages import evaluate
{IDLE}
    dense = True

    def coarse_prune(self, server):
        server.ask("select", (evaluate(),))

    def summary(self, server):
        return SUMMARY
"""


def test_a_method_may_tell_what_it_likes_of_its_choices(guest, tmp_path):
    config = tiny(method="guest", rounds=1)
    with guest(f"SUMMARY = {{'chosen layers': ['conv1']}}\n{TELLING}"):
        run(config, out=tmp_path / "run", reporter=Lines(Console(quiet=True)))


def test_bytes_moved_before_the_first_round_are_written_down(guest, tmp_path):
    with guest(f"SUMMARY = {{}}\n{TELLING}"):
        train(tiny(method="guest", rounds=1), tmp_path / "run")
    assert "bytes_down" in (tmp_path / "run" / "selection.json").read_text()
