"""Extrusion as an option of methods that drop by magnitude: marks, drops, refusals."""

import pytest

import fedtiny
from fedtiny import methods
from fedtiny.cost import memory
from fedtiny.errors import ConfigError
from fedtiny.federation.messages import train
from fedtiny.federation.rounds import play_round
from fedtiny.federation.server import Server
from fedtiny.runs.reporter import Silent

from ..cost.tiny import workload
from ..devices.tiny import settings
from ..federation.fakes import FakeTransport
from ..runs import tiny
from .test_fedmef import MASK, RECEIVED, grown

HOW = {"delta_r": 2, "r_stop": 4, "granularity": "entire"}


def server_of(method, answer=None, **pruning):
    config = settings(method=method, density=9 / 16, pruning=HOW | pruning)
    server = Server(config, FakeTransport(1, answer), RECEIVED, coarse_pruned=True)
    return server, methods.create(config)


@pytest.mark.parametrize("method", ["fedtiny", "set"])
def test_devices_extrude_in_adjusting_rounds_if_asked(method):
    server, own = server_of(method, extrude=True)
    assert own.train_locally(server) == (train(1, extrude={"a": 2}),)
    server.round = 1
    assert own.train_locally(server) == (train(1),)
    server, own = server_of(method)
    assert own.train_locally(server) == (train(1),)


@pytest.mark.parametrize(
    ("extrude", "dropped"),
    [(True, [1, 3]), (False, [2, 4])],  # smallest as received; smallest of what came back
)
@pytest.mark.parametrize("method", ["fedtiny", "set"])
def test_what_was_marked_is_dropped_whatever_it_has_become(method, extrude, dropped):
    server, own = server_of(method, grown([8, 10]), extrude=extrude)
    change = play_round(server, own).changes["a"]
    assert change.dropped.tolist() == dropped
    assert len(change.grown) == 2
    assert server.theta.mask.counts == MASK.counts
    assert "extruded" not in server.memory, "nothing to keep after the round"


def test_no_more_are_dropped_than_can_be_grown():
    """Of the marked ones, which came back as 9 and 9, the first."""
    server, own = server_of("fedtiny", grown([10]), extrude=True)
    assert play_round(server, own).changes["a"].dropped.tolist() == [1]
    assert server.theta.mask.counts == MASK.counts


@pytest.mark.parametrize(
    "other", [{"drop": "after_training"}, {"redistribute": True}, {"reclaim": True}]
)
def test_two_ways_to_choose_what_is_dropped_are_refused(other):
    config = settings(method="fedtiny", pruning=HOW | other | {"extrude": True})
    with pytest.raises(ConfigError, match="choose what is dropped in two ways; leave one out"):
        methods.create(config).check(MASK.param_spec)


def test_marks_count_in_a_device_s_memory():
    """O(a): a position for each weight that will be dropped."""
    plain, extruding = (
        memory.device(workload("set", pruning={"extrude": extrude})) for extrude in (False, True)
    )
    assert extruding == plain | {"extruded": 4 * (48 + 1)}


def quick(**changes):
    pruning = {"extrude": True, "delta_r": 1, "r_stop": 2, "granularity": "entire"}
    return tiny.tiny(rounds=3, pruning=pruning, density=0.2, **changes)


def test_a_run_is_the_same_after_a_stop(tmp_path):
    config = quick()
    result = tiny.train(config, tmp_path / "whole")
    assert result.config.device_backend == "torch", "native devices cannot extrude"
    stopped = tiny.stop(config, tmp_path / "stopped", 1)
    fedtiny.resume(stopped, reporter=Silent())
    assert tiny.essence(stopped) == tiny.essence(tmp_path / "whole")


def test_native_devices_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot extrude weights \(--pruning.extrude\); use"):
        tiny.train(quick(device_backend="native"), tmp_path / "run")
