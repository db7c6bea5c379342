"""Module, functional and method forms of an operation are one."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Kind
from fedtiny.graph.operations import native_lacks
from fedtiny.graph.trace import trace

from .dense import assert_near, by_numpy, by_torch, images_of, lowered, shaken
from .spelled import SHAPE, SPELLINGS, Net

CASES = [(name, number) for name, spelled in SPELLINGS.items() for number in range(len(spelled))]
SAME_KINDS = {  # spelled so that more than one way of computing it is meant
    "mean over space": 10,
    "multiply": 4,
}


def network(name, number=0):
    torch.manual_seed(1)
    body, features = SPELLINGS[name][number]
    return shaken(Net(body, features))


@pytest.mark.parametrize(("name", "number"), CASES)
def test_every_spelling_computes_what_torch_does(name, number):
    net, images = network(name, number), images_of(SHAPE)
    found = by_numpy(lowered(net, SHAPE), images)
    assert_near(found, by_torch(net, images), 1e-6)


@pytest.mark.parametrize(("name", "number"), CASES)
def test_all_spellings_are_one(name, number):
    if number < SAME_KINDS.get(name, len(SPELLINGS[name])):
        kinds = [[n.kind for n in trace(network(name, k), SHAPE).nodes] for k in (0, number)]
        assert kinds[0] == kinds[1]


MODULES = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "silu": nn.SiLU(inplace=True),
    "softmax": nn.Softmax(dim=1),
    "mean over space": nn.AdaptiveAvgPool2d(1),
    "max pool": nn.MaxPool2d(2),
    "upsample": nn.Upsample(scale_factor=2),
    "dropout": nn.Dropout(0.3),
    "channel shuffle": nn.ChannelShuffle(2),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_its_function(name):
    features = SPELLINGS[name][0][1]
    net = Net(nn.Sequential(nn.Identity(), nn.Sequential(MODULES[name]), nn.Flatten()), features)
    found, expected = trace(net, SHAPE), trace(network(name), SHAPE)
    assert found == expected, "whatever module computes it"


class Functional(nn.Module):
    """Layers called as functions of the parameters of modules."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 5, 3), nn.Linear(5 * 9 * 4, 3, bias=False)

    def forward(self, x):
        x = F.pad(x, (0, 0, 1, 2))
        x = F.conv2d(x, self.first.weight, self.first.bias, stride=1, padding=0)
        return F.linear(F.relu(x).flatten(1), self.last.weight)


def test_layers_as_functions_are_those_of_their_modules():
    net, images = shaken(Functional()), images_of(SHAPE)
    graph = trace(net, SHAPE)
    assert graph.nodes[1].name == "first"
    assert (graph.nodes[1].padding, graph.nodes[1].padding_end) == ((1, 0), (2, 0))
    assert_near(by_numpy(lowered(net, SHAPE), images), by_torch(net, images), 1e-9)


def test_a_subclass_of_a_layer_is_followed_into():
    class Same(nn.Conv2d):
        def forward(self, x):
            return super().forward(F.pad(x, (1, 0, 1, 0)))

    net = shaken(nn.Sequential(Same(4, 2, 2), nn.Flatten(), nn.Linear(96, 3)))
    node = trace(net, SHAPE).nodes[1]
    assert (node.name, node.padding, node.padding_end) == ("0", (1, 1), (0, 0))
    images = images_of(SHAPE)
    assert_near(by_numpy(lowered(net, SHAPE), images), by_torch(net, images), 1e-9)


class Shared(nn.Module):
    """Reads a tensor again that was changed in place."""

    def __init__(self, change):
        super().__init__()
        self.change, self.relu, self.last = change, nn.ReLU(inplace=True), nn.Linear(192, 3)

    def forward(self, x):
        x = x * 1.0
        turned = x.permute(0, 2, 3, 1)
        y = self.change(self, x)
        return self.last((y + x).flatten(1)) + self.last(turned.permute(0, 3, 1, 2).flatten(1))


@pytest.mark.parametrize(
    "change",
    [
        lambda net, x: F.relu(x, inplace=True),
        lambda net, x: x.relu_(),
        lambda net, x: net.relu(x),
        lambda net, x: x.add_(torch.tanh(x)),
        lambda net, x: x.mul_(2),
        lambda net, x: torch.relu(x),
    ],
)
def test_a_tensor_that_was_changed_in_place_is_read_as_changed(change):
    net, images = shaken(Shared(change)), images_of(SHAPE)
    assert_near(by_numpy(lowered(net, SHAPE), images), by_torch(net, images.copy()), 1e-9)


def test_a_step_knows_the_module_that_computes_it():
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Sequential(nn.GELU()), nn.Linear(4, 2))
    assert [n.module for n in trace(net, SHAPE).nodes] == ["", "0", "1", "2.0", "3"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (lambda x: x.cumsum(1).flatten(1), "'cumsum'"),
        (lambda x: x.mean((0, 2, 3)), "mean over"),
        (lambda x: x.mean(1).flatten(1), "mean over 1"),
        (lambda x: F.dropout(x).flatten(1), "training=self.training"),
        (lambda x: F.max_pool2d(F.pad(x, (1, 1)), 2).flatten(1), "anything but a convolution"),
        (lambda x: F.pad(x, (1, 1), mode="reflect").flatten(1), "padding by reflect"),
        (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear").flatten(1), "by bilinear"),
        (lambda x: F.interpolate(x, size=(9, 6)).flatten(1), "whole numbers"),
        (lambda x: torch.flatten(x), "several images as one"),
        (lambda x: torch.cat([x, x]).flatten(1), "cat of images"),
        (lambda x: x[0].flatten(1), "a part of the images"),
        (lambda x: x[:, ::2].flatten(1), "indexing by"),
        (lambda x: torch.clamp(x, -1, 1).flatten(1), r"clamp to \(-1, 1\)"),
        (lambda x: (x + x.mean((2, 3), keepdim=True)).flatten(1), "different shapes"),
        (lambda x: (x / x).flatten(1), "anything but a number"),
        (lambda x: F.log_softmax(x, 1).flatten(1), "log_softmax of anything but the logits"),
        (lambda x: F.log_softmax(x.flatten(1), 1), "anywhere but at the end"),
        (lambda x: x.flatten(1) if x.size(0) > 1 else x, "the number of images in a batch"),
        (lambda x: x.mean((2, 3), keepdim=True).expand_as(x).flatten(1), "but a product"),
    ],
)
def test_what_a_graph_does_not_have_is_named(body, sentence):
    with pytest.raises(ModelError, match=sentence):
        trace(Net(body, 192), SHAPE)


class Ending(nn.Module):
    """A network that ends as that of PyTorch's MNIST example."""

    def __init__(self, ending):
        super().__init__()
        self.last, self.ending = nn.Linear(192, 3), ending

    def forward(self, x):
        return self.ending(self.last(x.flatten(1)))


@pytest.mark.parametrize(
    "ending",
    [
        lambda x: F.log_softmax(x, 1),
        lambda x: F.log_softmax(x, dim=1),
        lambda x: x.log_softmax(-1),
        lambda x: torch.log_softmax(x, dim=1),
        nn.LogSoftmax(dim=1),
    ],
)
def test_a_log_softmax_at_the_end_is_left_out_and_its_cross_entropy_is_that_of_the_logits(ending):
    net, images = shaken(Ending(ending)), images_of(SHAPE)
    graph = trace(net, SHAPE)
    assert graph.log_softmax
    assert graph == trace(Ending(nn.Identity()), SHAPE)
    logits, given = (
        torch.from_numpy(array)
        for array in (by_numpy(lowered(net, SHAPE), images), by_torch(net, images))
    )
    assert_near(F.log_softmax(logits, 1).numpy(), given.numpy(), 1e-9)
    labels = torch.tensor([0, 2, 1])
    torch.testing.assert_close(F.cross_entropy(logits, labels), F.cross_entropy(given, labels))
    assert not trace(Ending(nn.Identity()), SHAPE).log_softmax


def decides(x):
    return x.flatten(1) if x.sum() > 0 else x.relu().flatten(1)


def loops(x):
    return torch.stack([image.flatten() for image in x])


def chooses(x):
    return x.flatten(1) if x.cumsum(1).dim() == 4 else x


def counts(x):
    return x.view(len(x), -1)


def converts(x):
    return x.flatten(1) * float(x.mean())


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (decides, r"\(return x.flatten\(1\) if x.sum\(\) > 0 .*\) asks for the values of a tensor"),
        (loops, r"for image in x.*\) asks for the values of a tensor"),
        (chooses, r"asks for what is not known \(fedtiny's graph does not have 'cumsum'\)"),
        (counts, r"\(return x.view\(len\(x\), -1\)\) counts a tensor; use its size"),
        (converts, r"\(return .*float\(x.mean\(\)\)\) raises TypeError: "),
    ],
)
def test_a_network_that_cannot_be_traced_is_told_the_line(body, sentence):
    line = body.__code__.co_firstlineno + 1
    with pytest.raises(ModelError, match=sentence) as told:
        trace(Net(body, 192), SHAPE)
    start = f"the network cannot be traced: line {line} of test_spellings.py "
    assert str(told.value).startswith(start)
    assert "\n" not in str(told.value)
    assert "torch.fx" not in str(told.value)


@pytest.mark.parametrize("spelled", [nn.Dropout2d(0.3), "function"])
def test_dropout_of_channels_is_not_that_of_values(spelled):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.last = nn.Dropout2d(0.3), nn.Linear(192, 3)

        def forward(self, x):
            p, training = 0.3, self.training
            x = F.dropout2d(x, p, training) if spelled == "function" else self.drop(x)
            return self.last(x.flatten(1))

    node = trace(Net(), SHAPE).nodes[1]
    assert (node.kind, node.probability, node.by_channel) == (Kind.DROPOUT, 0.3, True)
    lack = "dropout (drop) of channels" if spelled != "function" else "dropout of channels"
    assert native_lacks(trace(Net(), SHAPE).nodes) == lack


def test_dropout_that_is_spelled_as_a_function_has_its_probability():
    node = trace(network("dropout"), SHAPE).nodes[2]
    assert (node.kind, node.probability) == (Kind.DROPOUT, 0.3)
