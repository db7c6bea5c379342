"""The largest gradients found on the GPU are those of the reference buffer, ties and all."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtiny.devices.torch_takers import DeviceTop, HostTop
from fedtiny.sparse.top import TopBuffer

from .rig import CPU

few = settings(max_examples=100)
# few values, so that there are ties; both zeros, subnormals, and what is no number
VALUES = np.array(
    [0, -0.0, 1, -1, 2, -2, 0.5, 1e-42, 3e38, np.inf, -np.inf, np.nan], dtype=np.float32
)


@st.composite
def layers(draw, values=VALUES):
    """A layer's gradient, what of it is kept, where it is cut into slabs, and how many to find."""
    size = draw(st.integers(1, 40))
    noise = np.random.default_rng(draw(st.integers(0, 10**6)))
    if draw(st.booleans()):
        gradient = noise.choice(values, size)
    else:
        gradient = noise.normal(size=size).astype(np.float32)
    density = draw(st.sampled_from([0.0, 0.2, 0.9, 1.0]))
    kept = np.flatnonzero(noise.random(size) < density).astype(np.int32)
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), max_size=5))) if size > 1 else []
    return gradient, kept, [0, *cuts, size], draw(st.integers(0, 50))


def found(top, gradient, cuts):
    for start, stop in pairwise(cuts):
        top.take(start, torch.from_numpy(gradient[start:stop].copy()))
    return top.result()


def same(one, other):
    return (
        one.size == other.size
        and one.indices.tolist() == other.indices.tolist()
        and one.indices.dtype == other.indices.dtype
        and one.values.dtype == other.values.dtype
        and one.values.tobytes() == other.values.tobytes()
    )


@few
@given(layers())
def test_it_finds_what_the_reference_finds_to_the_last_bit(layer):
    gradient, kept, cuts, count = layer
    ours = found(DeviceTop(len(gradient), count, kept, CPU), gradient, cuts)
    theirs = found(HostTop(len(gradient), count, kept), gradient, cuts)
    assert same(ours, theirs)


@few
@given(layers())
def test_it_finds_what_a_buffer_finds_that_sees_all_pruned_weights_at_once(layer):
    gradient, kept, cuts, count = layer
    pruned = np.setdiff1d(np.arange(len(gradient), dtype=np.int32), kept)
    buffer = TopBuffer(len(gradient), count)
    buffer.push(pruned, gradient[pruned])
    ours = found(DeviceTop(len(gradient), count, kept, CPU), gradient, cuts)
    assert same(ours, buffer.result())


@few
@given(layers())
def test_it_never_finds_a_kept_weight_nor_more_than_it_should(layer):
    gradient, kept, cuts, count = layer
    top = found(DeviceTop(len(gradient), count, kept, CPU), gradient, cuts)
    assert not np.isin(top.indices, kept).any()
    assert len(top) == min(count, len(gradient) - len(kept))


def test_ties_go_to_the_lower_position_within_a_slab_and_between_slabs():
    gradient = np.array([1, -2, 2, 1, -2, 2], np.float32)
    nothing = np.empty(0, np.int32)
    for cuts in ([0, 6], [0, 2, 4, 6], [0, 1, 2, 3, 4, 5, 6]):
        top = found(DeviceTop(6, 3, nothing, CPU), gradient, cuts)
        assert top.indices.tolist() == [1, 2, 4]


@pytest.mark.parametrize("shape", [(2, 3, 2, 2), (4, 6), (24,)])
def test_a_slab_may_have_any_shape_and_any_order_in_memory(shape):
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    turned = gradient.clone()
    if len(shape) == 4:
        turned = gradient.contiguous(memory_format=torch.channels_last)
    nothing = np.empty(0, np.int32)
    tops = [DeviceTop(24, 5, nothing, CPU) for _ in range(2)]
    for top, slab in zip(tops, (gradient, turned), strict=True):
        top.take(0, slab)
    assert same(tops[0].result(), tops[1].result())
