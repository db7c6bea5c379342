"""Each operation, over random shapes, in every backend: what torch computes."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fedtiny.export import onnx_forms, packed
from fedtiny.export.numpy_model import NumpyModel
from fedtiny.graph.node import Kind
from fedtiny.graph.passes import for_inference
from fedtiny.models.analysis import profile

from .dense import (
    assert_near,
    by_numpy,
    by_onnx,
    by_torch,
    images_of,
    lowered,
    packed_network,
    shaken,
    tiny,
)
from .drawn import OPERATIONS

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
NETWORKS = pytest.mark.parametrize("operation", OPERATIONS)


@st.composite
def networks(draw, operation):
    """The operation, then a linear layer over all that it gives."""
    torch.manual_seed(draw(st.integers(0, 99)))
    module, shape = draw(OPERATIONS[operation])
    shaken(module)
    with torch.no_grad():
        count = module(torch.zeros(2, *shape))[0].numel()
    return nn.Sequential(module, nn.Flatten(), nn.Linear(count, 3)).eval(), shape


@NETWORKS
@settings(max_examples=10)
@given(data=st.data())
def test_numpy_computes_it(operation, data):
    network, shape = data.draw(networks(operation))
    images = images_of(shape)
    found = by_numpy(lowered(network, shape), images)
    assert_near(found, by_torch(network, images), 1e-6)


@NETWORKS
@settings(max_examples=6)
@given(data=st.data())
def test_its_torch_form_has_the_same_gradients(operation, data):
    network, shape = data.draw(networks(operation))
    net = lowered(network, shape)
    first, second = copy.deepcopy(network).double(), packed_network(net).double()
    read = [torch.from_numpy(images_of(shape)).requires_grad_() for _ in (first, second)]
    outputs = [model(x) for model, x in zip((first, second), read, strict=True)]
    assert_near(outputs[1].detach().numpy(), outputs[0].detach().numpy(), 1e-9)
    for out in outputs:
        (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
    assert_near(read[1].grad.numpy(), read[0].grad.numpy(), 1e-9)
    found, expected = ([p.grad for p in model.parameters()] for model in (second, first))
    assert sum(g.numel() for g in found) == sum(g.numel() for g in expected)
    assert sum(g.abs().sum() for g in found).isclose(sum(g.abs().sum() for g in expected))


@NETWORKS
@settings(max_examples=4)
@given(data=st.data())
def test_onnx_and_a_packed_file_have_it(operation, data):
    network, shape = data.draw(networks(operation))
    net, images = lowered(network, shape), images_of(shape)
    net = replace(net, graph=for_inference(net.graph))
    expected = by_torch(network, images)
    assert_near(by_onnx(net, images), expected, 1e-5)
    again = packed.unpacked(packed.packed(tiny(net)))
    assert again.net.graph == net.graph
    batch = images.astype("float32").reshape(len(images), *net.graph.shapes[0])
    assert_near(NumpyModel(again).logits(batch), expected, 1e-5)


@NETWORKS
@settings(max_examples=3)
@given(data=st.data())
def test_it_costs_what_pytorch_counts(operation, data):
    network, shape = data.draw(networks(operation))
    counter, products = FlopCounterMode(display=False), sdpa_kernel(SDPBackend.MATH)
    with counter, products, torch.no_grad():  # PyTorch counts no fused attention on a CPU
        network(torch.zeros(2, *shape))
    assert 4 * profile(network, shape).macs == counter.get_total_flops()


def test_every_kind_is_drawn():
    names = {name.upper().replace(" ", "_") for name in OPERATIONS}
    assert {kind.name for kind in Kind} - {"INPUT"} <= names
    assert set(onnx_forms.FORMS) == set(Kind)
