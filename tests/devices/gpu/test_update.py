"""One vector with its optimizer's state in place moves as PyTorch's own optimizers move it."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from fedtiny.devices.engine import Adam, Rule, Sgd
from fedtiny.devices.gpu.image_store import Images
from fedtiny.devices.gpu.step import Kind, Step, Update
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

from ..tiny import TinyNet, lab, random_mask, seeded
from .rig import CPU, network_of, noise, put

OURS = ("decay_norms", "proximal_mu", "freeze_bn")
RULES = {
    "adam": Adam(1e-3),
    "adam without decay": Adam(0.01, weight_decay=0.0),
    "adam with much decay": Adam(1e-3, weight_decay=0.1),
    "sgd": Sgd(0.05),
    "sgd without momentum": Sgd(0.05, momentum=0.0),
    "sgd without decay": Sgd(0.01, weight_decay=0.0),
}


def gradients(steps, size=200, seed=0):
    """Gradients of very different sizes, some of them zero."""
    draw = torch.Generator().manual_seed(seed)
    scale = 10 ** torch.linspace(-6, 1, size)
    scale[::7] = 0
    return [torch.randn(size, generator=draw) * scale for _ in range(steps)]


def start(size=200):
    return torch.randn(size, generator=torch.Generator().manual_seed(9))


def torch_s_own(rule, vector, given):
    parameter = vector.clone().requires_grad_()
    kind = torch.optim.Adam if isinstance(rule, Adam) else torch.optim.SGD
    optimizer = kind([parameter], **{k: v for k, v in asdict(rule).items() if k not in OURS})
    for gradient in given:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def take(update, vector, given):
    """A step for each of the given gradients."""
    for gradient in given:
        update.advance()
        update(vector, gradient)


@pytest.mark.parametrize("name", RULES)
def test_twenty_steps_are_those_of_pytorch(name):
    rule, vector = RULES[name], start()
    expected = torch_s_own(rule, vector, gradients(20))
    update = Update(rule, vector)
    take(update, vector, gradients(20))
    torch.testing.assert_close(vector, expected, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("steps", [1, 20])
def test_the_way_moved_is_pytorch_s_to_a_millionth(name, steps):
    rule, vector = RULES[name], torch.zeros(200)
    expected = torch_s_own(rule, vector, gradients(steps))
    update = Update(rule, vector)
    take(update, vector, gradients(steps))
    assert (vector - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("name", RULES)
def test_after_a_reset_it_starts_afresh_where_it_is(name):
    rule, vector = RULES[name], start()
    update = Update(rule, vector)
    take(update, vector, gradients(20, seed=1))
    state = [tensor.data_ptr() for tensor in (update.first, update.second, update.steps)]
    update.reset()
    expected = torch_s_own(rule, vector, gradients(20))
    take(update, vector, gradients(20))
    torch.testing.assert_close(vector, expected, rtol=1e-6, atol=2e-6)
    assert [t.data_ptr() for t in (update.first, update.second, update.steps)] == state


@pytest.mark.parametrize("name", RULES)
def test_a_zero_without_gradient_never_moves(name):
    vector = start()
    vector[::2] = 0
    update = Update(RULES[name], vector)
    given = gradients(20)
    for gradient in given:
        gradient[::2] = 0
    take(update, vector, given)
    assert not vector[::2].any()
    assert vector[1::2].all()


def test_the_vector_stays_where_it_is():
    vector = start()
    place, update = vector.data_ptr(), Update(Adam(1e-3), vector)
    take(update, vector, gradients(1))
    assert vector.data_ptr() == place
    assert update.steps.item() == 1


@pytest.mark.parametrize("rule", [Adam(1e-2), Sgd(0.05)], ids=["adam", "sgd"])
def test_a_step_moves_no_pruned_weight_and_no_padding(rule):
    bench, network = lab(), network_of(seeded(TinyNet))
    put(network, noise(random_mask(network.layout.param_spec, 0.7)))
    theta = noise(random_mask(network.layout.param_spec, 0.3))
    put(network, theta)
    step = Step(Kind(4), network, rule, Images(bench.data.train, bench.engine.transform, CPU))
    step.reset(0)
    before = network.vector.clone()
    plan = torch.zeros(6, 4, 6, dtype=torch.int32)
    plan[:, :, 0] = torch.arange(24).view(6, 4)
    step.run(plan)
    end = network.fixed + theta.mask.count
    assert not network.vector[end:].any()
    assert (network.vector[:end] != before[:end]).float().mean() > 0.9
    for layer in theta.mask:
        weight = network.layout.view(layer, network.flat).numpy()
        assert not weight[~theta.mask.array(layer)].any()
        assert weight[theta.mask.array(layer)].all()
    assert not network.flat[network.layout.nowhere]


def trained(rule: Rule, full: bool) -> Theta:
    """What six steps make of a full mask, in the flat buffer's order or by looking places up."""
    bench, network = lab(), network_of(seeded(TinyNet), dtype=torch.bfloat16)
    theta = noise(Mask.full(network.layout.param_spec))
    network._allocate(theta.mask.count, full)
    network.put(network.place(theta))
    step = Step(Kind(4), network, rule, Images(bench.data.train, bench.engine.transform, CPU))
    step.reset(0, received=theta)
    plan = torch.zeros(6, 4, 6, dtype=torch.int32)
    plan[:, :, 0] = torch.arange(24).view(6, 4)
    step.run(plan)
    return network.theta()


@pytest.mark.parametrize(
    "rule",
    [Adam(1e-2), Sgd(0.05, decay_norms=False), Sgd(0.05, proximal_mu=0.1)],
    ids=["adam", "sgd, norms do not decay", "fedprox"],
)
def test_the_order_of_a_full_vector_changes_no_bit(rule):
    found, places = trained(rule, full=True), trained(rule, full=False)
    assert np.array_equal(found.vector, places.vector)
    assert not np.array_equal(found.vector, noise(found.mask).vector)
