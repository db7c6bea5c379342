"""The network of FedMef: standardized weights, and few activations kept."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from fedtiny import models
from fedtiny.models.analysis import profile
from fedtiny.models.ns_conv import BitReLU, NSConv2d, standardized, standardized_gradients


def test_a_filter_by_hand():
    """Weights 1, 2, 0, 5: mean 2, variance 3.5, fan-in 4, so over sqrt(14); 0 is pruned."""
    weight = torch.tensor([1.0, 2.0, 0.0, 5.0]).view(1, 4, 1, 1)
    found = standardized(weight, torch.full((1, 1, 1, 1), 2.0)).flatten()
    expected = 2 * np.array([-1, 0, 0, 3]) / np.sqrt(14)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_filter_of_tiny_weights_is_not_blown_up():
    """1e-3 and 3e-3 have variance 1e-6; times 2 it is below 1e-4, whose root is 0.01."""
    found = standardized(torch.tensor([[[[1e-3]], [[3e-3]]]]), torch.ones(1, 1, 1, 1)).flatten()
    np.testing.assert_allclose(found, [-0.1, 0.1], rtol=1e-5)


@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_gradients_are_those_of_the_formula(size):
    torch.manual_seed(0)
    weight = (size * torch.randn(3, 2, 3, 3) * (torch.rand(3, 2, 3, 3) < 0.5)).requires_grad_()
    gain = torch.rand(3, 1, 1, 1).requires_grad_()
    gradient = torch.randn(3, 2, 3, 3)
    var, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    scale = (var * 18).clamp(min=1e-4).rsqrt() * gain
    used = (weight - mean) * scale * (weight != 0)
    expected = torch.autograd.grad(used, (weight, gain), gradient)
    found = standardized_gradients(weight.detach(), gain.detach(), gradient)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def convolved(x, layer):
    """Output, and gradients of input, weight, gain and bias for the sum of squares."""
    x = x.clone().requires_grad_()
    out = layer(x)
    out.square().sum().backward()
    return out, [x.grad, *(p.grad.clone() for p in (layer.weight, layer.gain, layer.bias))]


def test_forward_and_input_gradient_are_exact_and_the_weights_see_the_largest_activations():
    torch.manual_seed(1)
    layer, x = NSConv2d(2, 3, 3, stride=2), torch.randn(2, 2, 5, 5)
    out, (of_input, of_weight, of_gain, of_bias) = convolved(x, layer)
    used = standardized(layer.weight, layer.gain).detach()
    torch.testing.assert_close(out, F.conv2d(x, used, layer.bias, 2, 1))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), out)

    gradient = 2 * out.detach()
    largest = x.abs().flatten().topk(30).values.min()  # of 100 values
    pruned = torch.where(x.abs() >= largest, x, 0.0)
    exact = torch.nn.grad.conv2d_input(x.shape, used, gradient, 2, 1)
    torch.testing.assert_close(of_input, exact)
    on_pruned = torch.nn.grad.conv2d_weight(pruned, used.shape, gradient, 2, 1)
    expected = standardized_gradients(layer.weight.detach(), layer.gain.detach(), on_pruned)
    torch.testing.assert_close((of_weight, of_gain), expected)
    torch.testing.assert_close(of_bias, gradient.sum(dim=(0, 2, 3)))


def test_relu_s_gradient_needs_one_bit_a_value():
    x = torch.randn(3, 7, requires_grad=True)
    (found,) = torch.autograd.grad(BitReLU()(x).square().sum(), x)
    torch.testing.assert_close(found, 2 * F.relu(x.detach()))
    torch.testing.assert_close(BitReLU()(x), F.relu(x))


def test_a_grown_weight_moves_at_the_first_step_and_is_used_at_the_second():
    torch.manual_seed(2)
    layer = NSConv2d(2, 2, 3)
    with torch.no_grad():
        layer.weight[0, 0, 0, 0] = 0
    assert standardized(layer.weight, layer.gain)[0, 0, 0, 0] == 0
    layer(torch.randn(2, 2, 5, 5)).square().sum().backward()
    assert layer.weight.grad[0, 0, 0, 0] != 0


def test_it_keeps_a_fifth_of_the_activations_of_resnet18():
    shape = (3, 32, 32)
    with torch.device("meta"):
        plain, ours = (models.build(name, shape, 10, width=8) for name in NAMES)
    bytes_of = [profile(model, shape).activation_bytes for model in (plain, ours)]
    assert bytes_of[1] < 0.21 * bytes_of[0]
    assert profile(plain, shape).parameters == profile(ours, shape).parameters


NAMES = ("resnet18", "resnet18_ns")


def test_it_has_no_norm_and_the_same_prunable_layers():
    shape = (1, 8, 8)
    plain, ours = (models.analyze(models.build(name, shape, 10, width=4), shape) for name in NAMES)
    assert ours.norms == ()
    assert sorted(ours.sizes.values()) == sorted(plain.sizes.values())
    assert len(ours.blocks) == 5
