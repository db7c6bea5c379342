"""What a network computes and holds for one image."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedtiny import models
from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph
from fedtiny.models.analysis import profile

from .tiny import SHAPE, tiny_network

CIFAR = (3, 32, 32)


def on_paper(name, width=None, shape=CIFAR):
    with torch.device("meta"):
        return models.build(name, shape, 10, width=width)


def counted_flops(network, shape, batch):
    """FLOPs of a forward and of a backward pass, as PyTorch counts them."""
    with FlopCounterMode(display=False) as forward:
        output = network(torch.zeros(batch, *shape))
    with FlopCounterMode(display=False) as backward:
        output.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def test_the_layers_of_a_tiny_network_by_hand():
    layers = profile(tiny_network(), SHAPE).layers
    assert [layer.weight for layer in layers] == ["0.weight", "3.weight", "5.weight", "6.weight"]
    assert [layer.shape for layer in layers] == [(2, 1, 3, 3), (4, 2, 1, 1), (5, 64), (3, 5)]
    assert [layer.uses for layer in layers] == [16, 16, 1, 1]
    assert [layer.macs for layer in layers] == [288, 128, 320, 15]


def test_the_activations_of_a_tiny_network_by_hand():
    """Kept: the image (16), the convolution's output (32) for batch norm, the output of ReLU (32)
    for itself and the next convolution, the inputs of the two linear layers (64, 5)."""
    found = profile(tiny_network(), SHAPE)
    assert found.activation_bytes == 4 * (16 + 32 + 32 + 64 + 5)
    assert found.fixed_activation_bytes == 4 * 2 * 2  # batch norm's mean and deviation
    assert found.parameters == 18 + 2 + 4 + 8 + 325 + 18


def test_the_activations_of_a_depthwise_network_by_hand():
    """Kept: the image (18), what each activation reads (36 twice) and what the depthwise and the
    linear layer read (36 twice)."""
    layers = (nn.Conv2d(2, 4, 1), nn.SiLU(), nn.Conv2d(4, 4, 3, padding=1, groups=4))
    network = nn.Sequential(*layers, nn.Hardswish(), nn.Flatten(), nn.Linear(36, 3))
    found = profile(network, (2, 3, 3))
    assert found.activation_bytes == 4 * (18 + 4 * 36)
    assert [layer.macs for layer in found.layers] == [8 * 9, 36 * 9, 108]


def test_the_products_of_attention_by_hand():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.last = nn.Linear(6, 18), nn.Linear(24, 3)

        def forward(self, x):
            q, k, v = self.qkv(x).reshape(-1, 4, 3, 2, 3).permute(2, 0, 3, 1, 4).unbind(0)
            shares = (q @ k.transpose(-2, -1)).softmax(-1)
            return self.last((shares @ v).transpose(1, 2).flatten(1))

    found = profile(Attention(), (4, 6))
    assert found.other_macs == 2 * (2 * 4 * 4 * 3)
    assert [layer.macs for layer in found.layers] == [4 * 6 * 18, 72]


def test_a_layer_that_runs_twice_uses_its_weights_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.layer = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            return self.layer(self.layer(self.first(x.flatten(1))))

    first, layer = profile(Twice(), SHAPE).layers
    assert (first.uses, layer.uses) == (1, 2)


@pytest.mark.parametrize(("name", "macs"), [("resnet18", 555_422_720), ("vgg11", 272_343_040)])
def test_the_networks_of_the_paper(name, macs):
    assert profile(on_paper(name), CIFAR).macs == macs


NARROW = {
    **{"resnet18": 8, "vgg11": 4, "vgg11_small": 4, "small": 8, "resnet18_gn": 8},
    **{"squeezenet": 8, "cnn1d": 8, "lenet5": 6, "mlp": 16},
}
"""Not those with depthwise layers: PyTorch counts the gradient of their weights for all pairs of
channels, and not for those that there are."""


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("batch", [2, 3])
def test_flops_are_those_that_pytorch_counts_but_for_the_gradient_of_the_images(name, batch):
    shape = models.STANDARD[models.kind(name).dimensions]
    network = models.build(name, shape, 10, width=NARROW[name])
    found = profile(network, shape)
    forward, backward = counted_flops(network, shape, batch)
    assert 2 * batch * found.macs == forward
    assert 2 * batch * (2 * found.macs - found.layers[0].macs) == backward


@pytest.mark.parametrize("name", models.KINDS)
def test_forward_flops_of_every_named_network_are_those_that_pytorch_counts(name):
    shape = models.STANDARD[models.kind(name).dimensions]
    network = on_paper(name, shape=shape)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        network.eval()(torch.zeros(1, *shape, device="meta"))
    assert 2 * profile(network, shape).macs == counter.get_total_flops()
    if name != "resnet18_ns":
        assert isinstance(models.traced(network, shape), Graph)


def test_flops_of_the_papers_resnet18_are_those_that_pytorch_counts():
    network = models.build("resnet18", CIFAR, 10)
    found = profile(on_paper("resnet18"), CIFAR)
    forward, backward = counted_flops(network, CIFAR, batch=1)
    assert 2 * found.macs == forward == 1_110_845_440
    assert 2 * (2 * found.macs - found.layers[0].macs) == backward


@given(
    channels=st.sampled_from([2, 4]),
    groups=st.sampled_from([1, 2]),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    kernel=st.integers(1, 4),
)
def test_flops_of_any_convolution_are_those_that_pytorch_counts(
    channels, groups, stride, padding, kernel
):
    network = nn.Sequential(
        nn.Conv2d(2, channels, 1),
        nn.Conv2d(channels, 4, kernel, stride, padding, groups=groups),
    )
    forward, _ = counted_flops(network, (2, 7, 6), batch=2)
    assert 4 * profile(network, (2, 7, 6)).macs == forward


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "small"])
def test_on_the_meta_device_the_profile_is_that_of_real_memory(name):
    real = models.build(name, CIFAR, 10, width=4)
    assert profile(on_paper(name, width=4), CIFAR) == profile(real, CIFAR)


def test_a_profile_leaves_the_network_and_the_random_state_alone():
    network = models.build("vgg11", CIFAR, 10, width=2).eval()
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    profile(network, CIFAR)
    assert not network.training
    assert torch.equal(state, torch.get_rng_state())
    after = network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(module._forward_hooks for module in network.modules())


def test_images_that_do_not_fit_are_told():
    with pytest.raises(ModelError, match="does not take samples of shape"):
        profile(tiny_network(), (3, 4, 4))
