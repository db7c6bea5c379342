"""Names that version 0.1 documented still work, each with a warning that says the new one."""

import importlib
import warnings
from dataclasses import replace

import numpy as np
import pytest

from fedtiny import aliases
from fedtiny.config import Config, FleetConfig, RobustnessConfig, resolve
from fedtiny.devices.node import Work
from fedtiny.federation.messages import bn_statistics
from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.verbs import BnStatistics, Verb, typed
from fedtiny.methods.small_model import SmallModel
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

SPEC = ParamSpec({"a.weight": (2, 3)}, {"a.bias": (2,)}, (("a.weight",),), (), "a", "a")
KEPT = {"a.weight": [0, 4]}
MASK = Mask(SPEC, KEPT)
THETA = Theta(MASK, np.zeros(4, np.float32))
SERVER = Server(Config(), None, THETA)


def named(full):
    """What a full name stands for."""
    home, _, name = full.rpartition(".")
    return getattr(importlib.import_module(home), name)


@pytest.mark.parametrize(("old", "new"), aliases.NAMES.items())
def test_a_name_that_a_module_had(old, new):
    with pytest.warns(DeprecationWarning, match=" is now ") as told:
        assert named(old) is named(new)
    assert {str(one.message) for one in told} == {f"{old} is now {new}"}
    assert {one.filename for one in told} == {__file__}


@pytest.mark.parametrize(("old", "new"), aliases.MODULES.items())
def test_a_module_by_its_old_name(old, new):
    renamed = {name.rpartition(".")[2] for name in aliases.NAMES.values()}
    module = importlib.import_module(new)
    same = [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "").startswith(new) and name not in renamed
    ]
    for name in same:
        with pytest.warns(DeprecationWarning, match=rf"^{old}\.{name} is now {new}\.{name}$"):
            assert named(f"{old}.{name}") is getattr(module, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        named(f"{old}.nothing")


def test_statements_of_version_0_1():
    code = (
        "from fedtiny.federation.door import Door, Outcome, Traffic\n"
        "from fedtiny.devices.shard import Shard\n"
        "from fedtiny.models.anatomy import Anatomy\n"
        "import fedtiny.federation.door\n"
        "found = fedtiny.federation.door.Door\n"
    )
    space = {}
    with pytest.warns(DeprecationWarning, match=" is now "):
        exec(code, space)
    assert space["found"] is space["Door"] is named("fedtiny.federation.transport.Transport")


@pytest.mark.parametrize("module", sorted({name.rpartition(".")[0] for name in aliases.NAMES}))
def test_what_no_version_had_is_no_attribute(module):
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = importlib.import_module(module).nothing


@pytest.mark.parametrize(
    ("owner", "old", "new"),
    [
        (SERVER, "anatomy", "param_spec"),
        (SERVER, "door", "transport"),
        (MASK, "anatomy", "param_spec"),
        (THETA, "anatomy", "param_spec"),
        (Config(), "trust", "robustness"),
        (resolve(Config()), "trust", "robustness"),
        (FleetConfig(straggler_rate=0.25), "late_rate", "straggler_rate"),
        (RobustnessConfig(max_samples=7), "most_samples", "max_samples"),
        (BnStatistics(3, 1, "square"), "moment", "second_moment"),
    ],
)
def test_an_attribute_that_an_object_had(owner, old, new):
    with pytest.warns(DeprecationWarning, match=rf"\.{old} is now \w+\.{new}$") as told:
        assert getattr(owner, old) is getattr(owner, new)
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (FleetConfig, {"late_rate": 0.25}, {"straggler_rate": 0.25}),
        (RobustnessConfig, {"most_samples": 7}, {"max_samples": 7}),
        (
            Config,
            {"trust": RobustnessConfig(mean="median")},
            {"robustness": RobustnessConfig(mean="median")},
        ),
        (
            bn_statistics,
            {"batch_size": 8, "moment": "square"},
            {"batch_size": 8, "second_moment": "square"},
        ),
        (
            Mask,
            {"anatomy": SPEC, "kept": {"a.weight": [0]}},
            {"param_spec": SPEC, "kept": {"a.weight": [0]}},
        ),
    ],
)
def test_an_option_that_a_class_took(kind, old, new):
    with pytest.warns(DeprecationWarning, match=" is now "):
        assert kind(**old) == kind(**new)


def test_settings_can_be_replaced_by_their_old_names():
    config = Config(robustness=RobustnessConfig(trim=0.2))
    with pytest.warns(DeprecationWarning, match=r"Config\.trust is now Config\.robustness"):
        changed = replace(config, trust=RobustnessConfig(trim=0.3))
    assert changed == Config(robustness=RobustnessConfig(trim=0.3))


@pytest.mark.parametrize("base", [Method, SmallModel])
def test_a_hook_that_a_plug_in_overrides(base):
    def settle(self, config, parameters):
        return replace(super(plug_in, self).settle(config, parameters), rounds=3)

    with pytest.warns(DeprecationWarning, match=r"PlugIn\.settle is now PlugIn\.resolve"):
        plug_in = type("PlugIn", (base,), {"settle": settle})
    config = Config(method="plug_in", rounds=10)
    found = plug_in(config).resolve(config, lambda: 1000)
    assert found.rounds == 3
    assert found.model == ("small" if base is SmallModel else config.model)


def test_a_hook_by_its_new_name_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plug_in = type("PlugIn", (Method,), {"resolve": lambda self, config, parameters: config})
    assert plug_in.resolve is not Method.resolve


def test_a_verb_built_by_its_old_name_is_the_new_one():
    verb = typed(Verb("swap", {"counts": {"conv.weight": 3}}))
    assert (verb.name, verb.options["counts"]) == ("prune_and_grow", {"conv.weight": 3})


def test_an_error_that_comes_again_is_not_retried():
    with pytest.warns(DeprecationWarning, match="StartAnewError"):
        from fedtiny.errors import StartAnewError
    assert not StartAnewError("it would come again").retryable


def test_the_key_of_draws_is_found_by_its_old_name_too():
    work = Work(engine=None, request=None, shard=None, rng_key="key", samples=1)
    with pytest.warns(DeprecationWarning, match="Work.moment"):
        assert work.moment == "key"
