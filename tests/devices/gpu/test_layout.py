"""Every value of a theta has one place in the buffers, and the network reads it there."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedtiny import models
from fedtiny.devices.gpu.layout import ALIGNED, Layout
from fedtiny.models import analyze
from fedtiny.sparse.mask import Mask

from ..tiny import TinyNet, seeded
from .rig import NETWORKS, SHAPE, masks, networks

few = settings(max_examples=30)


@st.composite
def layouts(draw):
    model = draw(networks)
    return Layout.of(model, analyze(model, SHAPE), draw(st.booleans()))


@st.composite
def masked(draw):
    layout = draw(layouts())
    return layout, draw(masks(layout.param_spec))


@few
@given(masked())
def test_kept_weights_have_distinct_places_each_within_its_own_layer(given):
    layout, mask = given
    slots = layout.kept_slots(mask)
    ends = np.cumsum(list(mask.counts.values()))
    for name, places in zip(mask, np.split(slots, ends[:-1]), strict=True):
        start = layout.offsets[name]
        assert len(places) == mask.kept(name)
        assert ((places >= start) & (places < start + mask.param_spec.sizes[name])).all()
    taken = np.concatenate([slots, layout.dense_slots])
    assert len(np.unique(taken)) == len(taken)
    assert layout.nowhere not in taken


@few
@given(layouts())
def test_a_full_mask_fills_every_place_but_the_gaps(layout):
    taken = np.concatenate([layout.kept_slots(Mask.full(layout.param_spec)), layout.dense_slots])
    assert len(taken) + sum(layout.gaps()) == layout.slots


@few
@given(masked())
def test_a_layer_s_view_has_each_kept_weight_where_the_mask_says(given):
    layout, mask = given
    flat = torch.arange(layout.slots)
    ends = np.cumsum(list(mask.counts.values()))
    for name, places in zip(mask, np.split(layout.kept_slots(mask), ends[:-1]), strict=True):
        weight = layout.view(name, flat)
        assert tuple(weight.shape) == layout.weights[name]
        assert weight.numpy().reshape(-1)[mask.indices(name)].tolist() == places.tolist()


@few
@given(layouts())
def test_dense_weights_lie_where_their_views_look_for_them(layout):
    flat = torch.arange(layout.slots)
    dense = [name for name in layout.weights if name in layout.param_spec.dense]
    seen = torch.cat([layout.view(name, flat).reshape(-1) for name in dense])
    assert seen.tolist() == layout.dense_slots.tolist()


@few
@given(layouts())
def test_flattening_is_the_way_back_from_a_view(layout):
    flat = torch.arange(layout.slots)
    for name, start in layout.offsets.items():
        weight = layout.view(name, flat)
        there = layout.flattened(name, weight)
        assert torch.equal(there, flat[start : start + weight.numel()])
        assert torch.equal(layout.flattened(name, weight.contiguous()), there)


@few
@given(layouts())
def test_pieces_and_gaps_one_after_the_other_are_the_whole_buffer(layout):
    flat = torch.rand(layout.slots)
    pieces, end = [], 0
    for (name, shape), gap in zip(layout.weights.items(), layout.gaps(), strict=True):
        assert layout.offsets[name] == end
        assert end % ALIGNED == 0
        assert gap >= 0
        pieces += [layout.flattened(name, layout.view(name, flat)), torch.zeros(gap)]
        end += np.prod(shape, dtype=int) + gap
    assert end == layout.slots
    assert gap >= 1, "the last gap holds the place that no weight uses"
    joined = torch.cat(pieces)
    taken = torch.from_numpy(layout.kept_slots(Mask.full(layout.param_spec)))
    assert torch.equal(joined[taken], flat[taken])
    assert not joined[layout.nowhere]


@few
@given(layouts())
def test_every_dense_value_is_trained_or_measured_and_none_twice(layout):
    trained, measured = layout.dense_order
    every = np.sort(np.concatenate([trained, measured]))
    assert every.tolist() == list(range(layout.param_spec.dense_count))
    assert len(measured) == sum(np.prod(s, dtype=int) for s in layout.statistics.values())
    assert len(trained) == layout.own_size + len(layout.dense_slots)


@few
@given(layouts())
def test_dense_values_come_in_the_order_of_the_buffers(layout):
    sizes = layout.param_spec.dense_sizes
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()])[:-1], strict=True))
    dense = [name for name in layout.weights if name in layout.param_spec.dense]
    trained, measured = layout.dense_order
    for order, names in ((trained, [*layout.own, *dense]), (measured, [*layout.statistics])):
        expected = [starts[name] + i for name in names for i in range(sizes[name])]
        assert order.tolist() == expected


@few
@given(networks, st.booleans())
def test_every_tensor_of_a_model_has_one_kind_of_place(model, channels_last):
    param_spec = analyze(model, SHAPE)
    layout = Layout.of(model, param_spec, channels_last)
    kinds = [*layout.weights, *layout.own, *layout.statistics]
    assert sorted(kinds) == sorted([*param_spec.prunable, *param_spec.dense])
    parameters = {name for name, _ in model.named_parameters()}
    assert parameters == {*layout.weights, *layout.own}
    assert {"gain", "offset"} <= layout.own.keys()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_view_shares_the_buffer_s_memory(name):
    model = NETWORKS[name]()
    layout = Layout.of(model, analyze(model, SHAPE), True)
    flat = torch.zeros(layout.slots)
    for weight in layout.weights:
        layout.view(weight, flat).fill_(1.0)
    assert int(flat.sum()) == layout.slots - sum(layout.gaps())


def test_convolutions_lie_as_tensor_cores_want_them_where_that_is_asked_for():
    model = models.build("resnet18", (3, 8, 8), 10, width=4)
    param_spec = analyze(model, (3, 8, 8))
    for channels_last in (True, False):
        layout = Layout.of(model, param_spec, channels_last)
        weight = layout.view("layer2.0.conv2.weight", torch.zeros(layout.slots))
        kind = torch.channels_last if channels_last else torch.contiguous_format
        assert weight.is_contiguous(memory_format=kind)
        assert weight.is_contiguous() != channels_last


class AllPrunable(nn.Module):
    """No weight is dense: the first layer and the last are pruned too, and there is no bias."""

    prunable_layers = ("a", "b", "c")

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.c = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x.flatten(1))))))


def test_a_model_may_have_no_dense_weight():
    model = AllPrunable()
    layout = Layout.of(model, analyze(model, SHAPE), True)
    assert len(layout.dense_slots) == 0
    assert [len(order) for order in layout.dense_order] == [0, 0]


def test_a_model_without_own_parameters_or_statistics_has_a_layout_too():
    model = NETWORKS["smooth"]()
    layout = Layout.of(model, analyze(model, SHAPE), True)
    assert (layout.own_size, dict(layout.statistics)) == (0, {})
    assert len(layout.dense_order[1]) == 0


def test_the_layout_of_a_tiny_network_by_hand():
    model = seeded(TinyNet)
    layout = Layout.of(model, analyze(model, SHAPE), True)
    assert [*layout.offsets.values()][:4] == [0, 320, 896, 960]
    mask = Mask(
        layout.param_spec, {"conv1.weight": [0, 10], "conv2.weight": [], "hidden.weight": [3]}
    )
    first, second, third = layout.kept_slots(mask)
    assert first == 0
    assert second == (0 * 9 + 1) * 4 + 1  # filter 0, second pixel, second channel of four
    assert third == 896 + 3
