"""A network on static buffers computes what the reference model computes, whatever the mask."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedtiny import models
from fedtiny.devices.gpu.layout import Layout
from fedtiny.devices.gpu.network import Network
from fedtiny.errors import ModelError
from fedtiny.models import analyze
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

from ..tiny import SIDE, TinyNet, random_mask, seeded
from .rig import CPU, NETWORKS, SHAPE, masks, network_of, networks, noise, put

few = settings(max_examples=25)
DTYPES = [torch.float32, torch.bfloat16]


def in_the_buffer(network):
    """Every weight that the module reads, and what lies between them."""
    layout, left = network.layout, network.flat.clone()
    weights = {name: layout.view(name, network.flat).float().numpy() for name in layout.weights}
    for name in layout.weights:
        layout.view(name, left).zero_()
    return weights, left


@st.composite
def histories(draw):
    """A network, and the thetas that it is given one after the other."""
    model = draw(networks)
    param_spec = analyze(model, SHAPE)
    given = draw(st.lists(masks(param_spec), min_size=1, max_size=4))
    return model, [noise(mask, seed) for seed, mask in enumerate(given)]


@few
@given(histories(), st.booleans(), st.sampled_from(DTYPES))
def test_what_is_put_in_comes_out_to_the_last_bit(history, channels_last, dtype):
    model, thetas = history
    network = network_of(model, channels_last, dtype)
    for theta in [*thetas, *thetas[::-1]]:
        put(network, theta)
        assert network.theta().version == theta.version
        assert network.mask is theta.mask


@few
@given(histories(), st.booleans())
def test_the_buffer_holds_the_mask_s_weights_and_nothing_of_an_old_mask(history, channels_last):
    model, thetas = history
    network = network_of(model, channels_last)
    for theta in thetas:
        put(network, theta)
        weights, left = in_the_buffer(network)
        for name, values in weights.items():
            assert np.array_equal(values, theta.tensor(name)), name
        assert not left.any()


@few
@given(histories())
def test_every_parameter_and_statistic_of_the_module_is_the_theta_s(history):
    model, thetas = history
    network = network_of(model)
    for theta in thetas:
        put(network, theta)
        state = network.module.state_dict()
        for name, values in theta.tensors().items():
            assert np.array_equal(state[name].numpy(), values), name


@few
@given(histories())
def test_no_tensor_moves_while_there_is_room(history):
    model, thetas = history
    network = network_of(model)
    most = network.layout.param_spec.prunable_count - 1
    network.reserve(most)
    before = addresses(network)
    for theta in (theta for theta in thetas if theta.mask.count <= most):
        assert not network.reserve(theta.mask.count)
        put(network, theta)
        assert addresses(network) == before


def addresses(network):
    """Where everything lies that a captured step reads or writes."""
    named = {"vector": network.vector, "slots": network.slots, "flat": network.flat}
    every = {**named, **network.tensors(), **dict(enumerate(network.keys))}
    return {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in every.items()}


def test_a_bigger_mask_moves_the_vector_and_a_smaller_one_does_not():
    network = network_of(seeded(TinyNet))
    param_spec = network.layout.param_spec
    small, big = (noise(random_mask(param_spec, density)) for density in (0.1, 0.3))
    put(network, small)
    flat = network.flat.data_ptr()
    assert network.capacity == small.mask.count
    assert network.reserve(big.mask.count)
    room = network.capacity
    assert room == 4 * small.mask.count > big.mask.count
    network.put(network.place(big))
    assert network.theta().version == big.version
    assert not network.reserve(small.mask.count)
    network.put(network.place(small))
    assert network.theta().version == small.version
    assert network.capacity == room
    assert network.flat.data_ptr() == flat


def test_a_full_mask_has_the_order_of_the_flat_buffer_and_leaves_it_again():
    network = network_of(seeded(TinyNet))
    param_spec = network.layout.param_spec
    full, some = noise(Mask.full(param_spec)), noise(random_mask(param_spec, 0.3))
    put(network, full)
    assert network.full
    assert torch.equal(network.vector[network.layout.own_size :], network.flat)
    assert network.theta().version == full.version
    network.put(network.place(some))  # a candidate is measured where a full model was
    assert network.theta().version == some.version
    weights, left = in_the_buffer(network)
    assert all(np.array_equal(values, some.tensor(name)) for name, values in weights.items())
    assert not left.any()
    put(network, some)
    assert not network.full
    assert network.theta().version == some.version


def test_padding_is_zero_and_goes_nowhere():
    network = network_of(seeded(TinyNet))
    param_spec = network.layout.param_spec
    put(network, noise(random_mask(param_spec, 0.6)))
    small = noise(random_mask(param_spec, 0.1, seed=1))
    put(network, small)
    end = network.fixed + small.mask.count
    assert not network.vector[end:].any()
    assert (network.slots[end - network.layout.own_size :] == network.layout.nowhere).all()


def test_the_same_mask_with_other_values_replaces_every_value():
    network = network_of(seeded(TinyNet))
    mask = random_mask(network.layout.param_spec)
    for seed in range(3):
        theta = noise(mask, seed)
        put(network, theta)
        assert np.array_equal(
            in_the_buffer(network)[0]["conv1.weight"], theta.tensor("conv1.weight")
        )
        assert network.theta().version == theta.version


def test_values_that_are_no_numbers_and_both_zeros_come_back_as_they_were():
    network = network_of(seeded(TinyNet))
    mask = random_mask(network.layout.param_spec)
    theta = noise(mask)
    vector = theta.vector.copy()
    vector[:6] = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42]
    theta = Theta(mask, vector)
    put(network, theta)
    assert network.theta().vector.tobytes() == vector.tobytes()
    clean = noise(mask, 1)
    put(network, clean)
    assert np.isfinite(network.flat.numpy()).all()


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_the_module_computes_what_the_reference_model_computes(kind, training, channels_last):
    model = seeded(NETWORKS[kind])
    network = network_of(model, channels_last)
    for seed in range(2):
        theta = noise(random_mask(network.layout.param_spec, 0.4, seed), seed)
        put(network, theta)
        reference = loaded(model, theta).train(training)
        inputs = torch.randn(5, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            expected, found = reference(inputs), network.module.train(training)(inputs)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        state = reference.state_dict()
        for name, tensor in network.statistics.items():
            torch.testing.assert_close(tensor, state[name], rtol=1e-5, atol=1e-5)


def loaded(model, theta):
    reference = deepcopy(model)
    tensors = {name: torch.from_numpy(values.copy()) for name, values in theta.tensors().items()}
    reference.load_state_dict(tensors, strict=False)
    return reference


def test_a_resnet_computes_what_the_reference_model_computes():
    model = models.build("resnet18", (3, 8, 8), 10, width=4)
    param_spec = analyze(model, (3, 8, 8))
    network = Network(model, Layout.of(model, param_spec, True), CPU, torch.float32)
    theta = noise(random_mask(param_spec, 0.1))
    put(network, theta)
    inputs = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = loaded(model, theta).train()(inputs), network.module.train()(inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_reduced_precision_is_near_and_spoils_no_value():
    model = seeded(TinyNet)
    network = network_of(model, dtype=torch.bfloat16)
    theta = noise(random_mask(network.layout.param_spec))
    put(network, theta)
    inputs = torch.randn(16, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), network.computing() as module:
        found = module.eval()(inputs).float()
        expected = loaded(model, theta).eval()(inputs)
    assert network.flat.dtype == torch.bfloat16
    assert (found - expected).norm() < 0.05 * expected.norm()
    assert network.theta().version == theta.version


def test_a_theta_that_was_put_in_is_not_touched_by_what_happens_to_the_network():
    network = network_of(seeded(TinyNet))
    theta = noise(random_mask(network.layout.param_spec))
    before = theta.vector.copy()
    put(network, theta)
    taken = network.theta()
    network.vector.zero_()
    measure(network, torch.zeros_like(measured(network)))
    assert np.array_equal(theta.vector, before)
    assert np.array_equal(taken.vector, before)


def test_the_model_it_is_made_of_stays_as_it_is():
    model = seeded(TinyNet, 0.5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    network = network_of(model)
    put(network, noise(random_mask(network.layout.param_spec)))
    network.module.train()(torch.randn(4, 1, SIDE, SIDE))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert type(model.dropout) is nn.Dropout


def test_places_are_kept_for_the_same_mask_alone():
    network = network_of(seeded(TinyNet))
    one, other = (random_mask(network.layout.param_spec, seed=seed) for seed in range(2))
    first = network.place(noise(one))
    assert network.place(noise(one, 1), first).slots is first.slots
    assert network.place(noise(other), first).slots is not first.slots


def test_own_parameters_are_read_from_the_trained_vector_itself():
    network = network_of(seeded(NETWORKS["own"]))
    put(network, noise(Mask.full(network.layout.param_spec)))
    own = network.layout.own_size
    network.vector[:own] = 7.0
    assert (network.module.gain == 7).all()
    assert network.module.offset == 7


def measured(network):
    return network.measured([*network.layout.statistics])


def measure(network, values):
    network.measure(values, [*network.layout.statistics])


def test_statistics_can_be_measured_and_set():
    network = network_of(seeded(TinyNet))
    theta = noise(random_mask(network.layout.param_spec))
    put(network, theta)
    expected = np.concatenate([theta.tensor(name).ravel() for name in network.layout.statistics])
    assert np.array_equal(measured(network).numpy(), expected)
    others = torch.arange(len(expected), dtype=torch.float32)
    measure(network, others)
    assert torch.equal(measured(network), others)
    assert network.module.bn0.running_mean.tolist() == [0, 1, 2, 3]
    found = network.theta()
    assert np.array_equal(found.vector[: found.mask.count], theta.vector[: theta.mask.count])


def test_some_statistics_can_be_set_in_any_order_and_the_others_stay():
    network = network_of(seeded(TinyNet))
    put(network, noise(random_mask(network.layout.param_spec)))
    before = network.module.bn1.running_mean.clone()
    network.measure(torch.arange(12.0), ["bn1.running_var", "bn0.running_mean"])
    assert network.module.bn1.running_var.tolist() == [*range(8)]
    assert network.module.bn0.running_mean.tolist() == [8, 9, 10, 11]
    assert torch.equal(network.module.bn1.running_mean, before)


def test_a_network_without_statistics_has_nothing_to_measure():
    network = network_of(seeded(NETWORKS["plain"]))
    theta = noise(random_mask(network.layout.param_spec))
    put(network, theta)
    assert len(measured(network)) == 0
    measure(network, measured(network))
    assert network.theta().version == theta.version


class Shared(nn.Module):
    """A parameter with two names."""

    def __init__(self):
        super().__init__()
        self.stem, self.one = nn.Linear(SIDE * SIDE, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)
        self.gain = nn.Parameter(torch.ones(4))
        self.again = self.gain

    def forward(self, x):
        return self.head(self.again * self.one(self.gain * self.stem(x.flatten(1))))


def test_a_parameter_with_two_names_is_refused_clearly():
    with pytest.raises(ModelError, match=r"'gain' and 'again' are one parameter.*reference"):
        network_of(Shared())
