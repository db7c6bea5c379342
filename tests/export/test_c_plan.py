"""Values that live at the same time never share memory; others do."""

import pytest
from hypothesis import given

from fedtiny.export.c_plan import is_in_place, plan
from fedtiny.export.c_program import program

from .c_networks import networks
from .nets import SHIPPED, shipped, tiny_model


def planned(model):
    made = program(model.net.graph)
    return made, plan(made)


def extent(tensor):
    """The floats that a tensor's pixels lie in."""
    first = tensor.start + tensor.origin
    channels, rows, columns = tensor.shape
    last = (channels - 1) * tensor.plane + (rows - 1) * tensor.pitch + columns - 1
    return range(first, first + last + 1)


def overlap(one, other):
    a, b = extent(one), extent(other)
    return a.start < b.stop and b.start < a.stop


def assert_apart(made, found):
    """What a step gives lies where nothing lies that is still needed."""
    last = made.last_reads()
    for number, step in enumerate(made.steps):
        given_tensor = found.tensors[step.gives]
        for value, tensor in found.tensors.items():
            born = next(i for i, s in enumerate(made.steps) if s.gives == value)
            alive = born < number and last[value] > number
            read = value in step.reads and value not in step.may_overwrite
            if (alive or read) and not (is_in_place(step, found) and value in step.reads):
                assert not overlap(given_tensor, tensor), (step, value)
        assert extent(given_tensor).stop <= found.arena


@given(networks())
def test_no_value_is_lost_before_its_time(model):
    assert_apart(*planned(model))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_networks(name):
    made, found = planned(tiny_model(shipped(name, 0.1)))
    assert_apart(made, found)
    together = sum(len(extent(tensor)) for tensor in set(found.tensors.values()))
    assert found.arena < 0.6 * together


def test_a_block_of_resnet_needs_two_planes_of_memory():
    _, found = planned(tiny_model(shipped("resnet18", 1.0)))
    width, side = 8, 16
    one = width * (side + 1) * (side + 1)
    assert found.arena < 2.3 * one


def test_sums_and_relus_join_the_convolution_before_them():
    made, _ = planned(tiny_model(shipped("resnet18", 1.0)))
    actions = [step.action for step in made.steps]
    assert set(actions) == {"load", "convolve", "split", "adaptive_pool", "flatten", "connect"}
    assert actions.count("split") == 3  # two convolutions read each
