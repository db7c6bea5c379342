"""Values that live at the same time never share memory; others do."""

import pytest
from hypothesis import given

from fedtiny.export.c_plan import copied, is_in_place, plan
from fedtiny.export.c_program import program
from fedtiny.graph.node import Kind

from ..graph.building import Builder
from .c_networks import networks
from .c_operations import model_of_branches
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
    """What a step gives lies where nothing lies that is still needed.

    A concat gives what its parts have written there already.
    """
    last = made.last_reads()
    born = {step.gives: number for number, step in enumerate(made.steps)}
    for number, step in enumerate(made.steps):
        written = found.tensors[step.gives]
        assert extent(written).stop <= found.arena
        if step.action == "concatenate":
            continue
        for value in born:
            alive = born[value] < number and last[value] > number
            read = value in step.reads and value not in step.may_overwrite
            if (alive or read) and not (is_in_place(step, found) and value in step.reads):
                assert not overlap(written, found.tensors[value]), (step, value)
            if step.scratch is not None and (alive or value in (*step.reads, step.gives)):
                assert not overlap(found.tensors[step.scratch], found.tensors[value])


@given(networks())
def test_no_value_is_lost_before_its_time(model):
    assert_apart(*planned(model))


@pytest.mark.parametrize("seed", range(20))
def test_nor_is_one_of_any_operation(seed):
    assert_apart(*planned(model_of_branches(seed)))


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


def placed(net):
    """The tensor of every node, and the calls by what they give."""
    made = program(net.graph)
    found = plan(made)
    return found, {step.gives: step for step in made.steps}


def test_a_depthwise_convolution_writes_over_the_planes_that_it_reads():
    net = Builder((2, 9, 9))
    first = net.convolution("first", 0, 4, kernel=(3, 3))
    window = {"kernel": (3, 3), "padding": (1, 1)}
    second = net.convolution("second", first, 4, groups=4, **window)
    net.linear("head", net.flatten(second), 3)
    found, _ = placed(net)
    assert found.tensors[first] == found.tensors[second]


def test_a_depthwise_convolution_with_a_stride_copies_one_plane_at_a_time():
    net = Builder((8, 10, 10))
    window = {"kernel": (3, 3), "padding": (1, 1), "stride": (2, 2)}
    net.linear("head", net.flatten(net.convolution("conv", 0, 8, groups=8, **window)), 3)
    found, steps = placed(net)
    assert [step.action for step in steps.values()][1] == "convolve_planes"
    image, one_plane, out, overread = 800, 4 * 6 * 6, 200, 64
    assert found.arena == image + one_plane + out + overread


def test_what_is_joined_is_written_where_the_whole_lies():
    net = Builder((1, 6, 6))
    squeezed = net.relu(net.convolution("squeeze", 0, 2, kernel=(1, 1)))
    left = net.relu(net.convolution("left", squeezed, 3, kernel=(1, 1)))
    right = net.relu(net.convolution("right", squeezed, 4, kernel=(3, 3), padding=(1, 1)))
    joined = net.node(Kind.CONCAT, left, right)
    after = net.convolution("after", joined, 2, kernel=(3, 3), padding=(1, 1))
    net.linear("head", net.flatten(after), 3)
    found, steps = placed(net)
    assert is_in_place(steps[joined], found)
    parts, whole = [found.tensors[v] for v in (left, right)], found.tensors[joined]
    assert [part.origin - whole.origin for part in parts] == [0, 3 * whole.plane]
    assert whole.plane == 7 * 7  # a row and a column of zeros for the convolution that reads it


def test_one_of_two_joined_twice_is_copied():
    net = Builder((1, 4, 4))
    first = net.relu(net.convolution("first", 0, 3, kernel=(1, 1)))
    joined = net.node(Kind.CONCAT, first, first)
    net.linear("head", net.flatten(joined), 3)
    found, steps = placed(net)
    ((read, at),) = copied(steps[joined], found)
    assert (read, at) == (found.tensors[first], 3 * 16)


def test_a_part_that_is_read_again_is_not_written_over_while_the_whole_lives():
    net = Builder((1, 4, 4))
    first = net.relu(net.convolution("first", 0, 3, kernel=(1, 1)))
    second = net.relu(net.convolution("second", 0, 3, kernel=(1, 1)))
    joined = net.node(Kind.CONCAT, first, second)
    grown = net.node(Kind.SILU, first)  # the last to read it
    all_of_it = net.node(Kind.CONCAT, joined, grown)
    net.linear("head", net.flatten(all_of_it), 3)
    found, _ = placed(net)
    assert not overlap(found.tensors[grown], found.tensors[joined])
