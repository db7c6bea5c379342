"""What the server measures on its public set, against autograd, by hand and by small steps."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from fedtiny.data import from_arrays
from fedtiny.data.transforms import Preparation
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.torch_engine import TorchEngine
from fedtiny.devices.torch_public import TorchPublicSet
from fedtiny.models import analyze, build
from fedtiny.models.networks import ResidualBlock
from fedtiny.randomness import SERVER

from .tiny import Smooth, TinyNet, graph_of, lab, random_mask, seeded, settings

MEASURES = ("gradients", "hessian_gradient", "synaptic_flow")


class Chain(nn.Sequential):
    """Linear layers one after the other."""

    def __init__(self, *weights, biases=None):
        layers = [nn.Flatten()]
        for k, weight in enumerate(weights):
            matrix = torch.tensor(weight, dtype=torch.float32)
            layer = nn.Linear(*reversed(matrix.shape), bias=biases is not None)
            layer.weight.data = matrix
            if biases is not None:
                layer.bias.data = torch.tensor(biases[k], dtype=torch.float32)
            layers.append(layer)
        super().__init__(*layers)


def public_of(model, shape):
    """The public set of a network that takes images of this shape; its values do not matter."""
    images = np.zeros((4, *shape), np.float32)
    layout = "NCHW" if len(shape) == 3 else "NHW"
    data = from_arrays((images, [0, 1, 0, 1]), (images, [0, 1, 0, 1]), layout=layout)
    param_spec = analyze(model, data.shape)
    spec = DeviceSpec(settings(), param_spec, Preparation.of(data))
    every = np.arange(4)
    own = DeviceData(SERVER, data.train, every, every)
    return TorchPublicSet(TorchEngine(model, spec), own, graph_of(model, data))


def flow(model, shape):
    public = public_of(model, shape)
    return public.synaptic_flow(public.engine.theta())


def loss_by_hand(bench, model, *, training=True):
    """The mean loss on the six public images, batch norm at their own statistics in training."""
    pixels = torch.from_numpy(bench.data.train.images[:6]).to(next(model.parameters()).dtype)
    mean, std = bench.data.mean[0], bench.data.std[0]
    logits = model.train(training)((pixels / 255 - mean) / std)
    return F.cross_entropy(logits, torch.from_numpy(bench.data.train.labels[:6]))


def gradients_by_hand(bench, model):
    names = list(bench.param_spec.prunable)
    weights = [model.get_parameter(name) for name in names]
    found = torch.autograd.grad(loss_by_hand(bench, model), weights)
    return dict(zip(names, found, strict=True))


def twin(bench, theta):
    """Another copy of the network, holding these values, in float64."""
    model = copy.deepcopy(bench.model).double()
    state = {name: torch.from_numpy(values.copy()) for name, values in theta.tensors().items()}
    model.load_state_dict(state, strict=False)
    return model


# Evaluation


def test_the_loss_is_that_by_hand_and_no_draw_and_no_statistic_is_touched():
    bench = lab(model=seeded(TinyNet, 0.5))
    theta = bench.theta(0.3, seed=3)
    before = torch.get_rng_state()
    found = bench.server.public.evaluate(theta)
    assert torch.equal(torch.get_rng_state(), before)
    assert bench.engine.theta().version == theta.version
    expected = loss_by_hand(bench, twin(bench, theta), training=False).item()
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert found["accuracy"] * 6 == pytest.approx(round(found["accuracy"] * 6))


# Gradients


@pytest.mark.parametrize("density", [1.0, 0.3])
def test_gradients_of_kept_weights_are_those_of_autograd(density):
    bench = lab()
    theta = bench.theta(density, seed=3) if density < 1 else bench.start
    found = bench.server.public.gradients(theta)
    expected = gradients_by_hand(bench, twin(bench, theta))
    assert list(found) == list(bench.param_spec.prunable)
    for layer, gradient in expected.items():
        kept = gradient.flatten().numpy()[theta.mask.indices(layer)]
        np.testing.assert_allclose(found[layer], kept, rtol=1e-3, atol=1e-6)


def test_under_a_full_mask_pruned_weights_have_gradients_too():
    bench = lab()
    theta = bench.theta(0.3, seed=3)
    found = bench.server.public.gradients(theta.remasked(bench.start.mask))
    for layer, gradient in gradients_by_hand(bench, twin(bench, theta)).items():
        np.testing.assert_allclose(found[layer], gradient.flatten(), rtol=1e-3, atol=1e-6)
        assert (found[layer] != 0).mean() > 0.5


def test_gradients_take_all_of_the_public_set_and_no_dropout():
    bench = lab(model=seeded(TinyNet, 0.5))
    first, second = (bench.server.public.gradients(bench.start) for _ in range(2))
    for layer in first:
        assert np.array_equal(first[layer], second[layer])
        assert not np.may_share_memory(first[layer], second[layer])


# Hessian x gradient


def all_gradients(bench, model):
    return torch.cat([g.flatten() for g in gradients_by_hand(bench, model).values()])


def move(bench, model, step):
    """Add a step, one long vector, to the prunable weights."""
    with torch.no_grad():
        for name in bench.param_spec.prunable:
            weight = model.get_parameter(name)
            part, step = step[: weight.numel()], step[weight.numel() :]
            weight += part.view_as(weight)


def hessian(bench, model, by=1e-5):
    """A column a weight: how the gradient changes when that weight takes a small step."""
    columns = []
    for unit in torch.eye(sum(bench.param_spec.sizes.values()), dtype=torch.float64):
        ahead, behind = copy.deepcopy(model), copy.deepcopy(model)
        move(bench, ahead, by * unit)
        move(bench, behind, -by * unit)
        difference = all_gradients(bench, ahead) - all_gradients(bench, behind)
        columns.append(difference / (2 * by))
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("density", [1.0, 0.6])
def test_the_hessian_times_the_gradient_by_small_steps(density):
    bench = lab(settings(density=0.9), model=seeded(Smooth, seed=1))
    theta = bench.theta(density, seed=2) if density < 1 else bench.start
    model = twin(bench, theta)
    matrix = hessian(bench, model)
    assert torch.allclose(matrix, matrix.T, atol=1e-7)
    expected = (matrix @ all_gradients(bench, model)).numpy()
    expected = expected[np.concatenate([theta.mask.array(layer).ravel() for layer in theta.mask])]
    found = bench.server.public.hessian_gradient(theta)
    flat = np.concatenate([found[layer] for layer in bench.param_spec.prunable])
    np.testing.assert_allclose(flat, expected, rtol=2e-3, atol=2e-6 * abs(expected).max())
    assert abs(expected).max() > 1e-5


# Synaptic flow


def test_the_flow_of_a_chain_of_single_weights_is_their_product():
    found = flow(Chain([[2.0]], [[-3.0]], [[0.5]], [[-7.0]]), (1, 1, 1))
    assert {layer: scores.tolist() for layer, scores in found.items()} == {
        "2.weight": [21],
        "3.weight": [21],
    }


def test_the_flow_of_three_layers_by_hand():
    """|w_ij| times what comes in at j times what goes out from i."""
    first = [[1, -2], [0.5, 0.5], [-1, -3]]
    middle = [[1, -2, 3], [-4, 0, 6]]
    last = [[1, -1], [2, 2], [0, -5]]
    (scores,) = flow(Chain(first, middle, last), (1, 1, 2)).values()
    comes_in, goes_out = np.array([3, 1, 4]), np.array([3, 8])
    assert scores.dtype == np.float64
    expected = np.abs(middle) * comes_in * goes_out[:, None]
    np.testing.assert_array_equal(scores, expected.ravel())


def test_biases_add_to_the_flow():
    model = Chain([[1, 1]], [[-2]], [[3]], biases=[[-10], [100], [1000]])
    (scores,) = flow(model, (1, 1, 2)).values()
    np.testing.assert_array_equal(scores, [(2 + 10) * 2 * 3])


def test_the_flow_through_a_convolution_by_hand():
    """A 1x1 image, so that of each 3x3 kernel the centre alone meets a pixel."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, bias=False),
        nn.Conv2d(2, 1, 3, padding=1, bias=False),
        *(nn.Flatten(), nn.Linear(1, 2, bias=False)),
    )
    for parameter, value in zip(model.parameters(), (2.0, -3.0, 5.0), strict=True):
        parameter.data.fill_(value)
    (scores,) = flow(model, (1, 1, 1)).values()
    expected = np.zeros((1, 2, 3, 3))
    expected[:, :, 1, 1] = 2 * 3 * 10
    np.testing.assert_array_equal(scores, expected.ravel())


def test_what_flows_through_each_layer_of_a_chain_is_the_same():
    draw = np.random.default_rng(0)
    weights = [draw.normal(size=shape) for shape in ((5, 4), (6, 5), (3, 6), (4, 3), (2, 4))]
    totals = [scores.sum() for scores in flow(Chain(*weights), (1, 2, 2)).values()]
    assert len(totals) == 3
    np.testing.assert_allclose(totals, totals[0], rtol=1e-6)


def test_signs_and_pruned_weights_do_not_flow():
    bench = lab()
    theta = bench.theta(0.3, seed=5)
    flipped = type(theta)(theta.mask, np.abs(theta.vector))
    full = theta.remasked(bench.start.mask)
    one, other, every = map(bench.server.public.synaptic_flow, (theta, flipped, full))
    for layer in one:
        np.testing.assert_array_equal(one[layer], other[layer])
        kept = theta.mask.array(layer).ravel()
        np.testing.assert_array_equal(every[layer][kept], one[layer])
        assert (every[layer][~kept] == 0).all()


@pytest.mark.parametrize("gamma", [0.0, -1.0, 1.0])
def test_every_weight_of_a_residual_network_has_a_score_whatever_its_batch_norm(gamma):
    model = build("resnet18", (1, 8, 8), 3, width=2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.fill_(gamma)
            module.bias.data.fill_(-4.0)
            module.running_mean.fill_(1e3)
            module.running_var.fill_(1e-6)
    scores = flow(model, (8, 8))
    assert sum("shortcut" in layer for layer in scores) == 3
    for layer, values in scores.items():
        assert np.isfinite(values).all()
        assert (values > 0).mean() > 0.1, layer  # corners of 1x1 feature maps meet no pixel
        assert "shortcut" not in layer or (values > 0).all()


class Deep(nn.Module):
    """Thirty residual blocks whose flow no float32 could hold."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(4, 4, 1) for _ in range(30)))
        self.head = nn.Linear(4, 2)
        for parameter in self.parameters():
            parameter.data.mul_(4)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def test_the_flow_of_a_deep_network_does_not_overflow():
    scores = flow(seeded(Deep), (3, 3))
    assert min(values.max() for values in scores.values()) > np.finfo(np.float32).max
    assert all(np.isfinite(values).all() for values in scores.values())


# What is left behind: nothing


@pytest.mark.parametrize("measure", MEASURES)
def test_the_engine_holds_what_was_measured_and_nothing_else_changed(measure):
    bench = lab()
    theta = bench.theta(0.4, seed=1)
    bench.engine.load(theta)
    before = copy.deepcopy(bench.model.state_dict())
    getattr(bench.server.public, measure)(theta)
    after = bench.model.state_dict()
    for name, values in before.items():
        assert torch.equal(after[name], values), name
        assert after[name].dtype == values.dtype
    assert bench.engine.theta().version == theta.version
    assert all(p.grad is None and p.requires_grad for p in bench.model.parameters())


@pytest.mark.parametrize("measure", MEASURES)
def test_measuring_makes_no_difference_to_training(measure):
    trained = []
    for measured in (False, True):
        bench = lab()
        theta = bench.start.remasked(random_mask(bench.param_spec))
        if measured:
            getattr(bench.server.public, measure)(bench.start)
        bench.engine.load(theta)
        bench.engine.train(bench.shards[0], bench.rng_key(), epochs=1)
        trained.append(bench.engine.theta().version)
    assert trained[0] == trained[1]


@pytest.mark.parametrize("measure", MEASURES)
def test_what_is_given_back_does_not_change_with_the_engine(measure):
    bench = lab()
    found = getattr(bench.server.public, measure)(bench.start)
    copies = {layer: values.copy() for layer, values in found.items()}
    bench.engine.load(bench.theta())
    bench.engine.train(bench.shards[0], bench.rng_key(), epochs=1)
    for layer, values in found.items():
        np.testing.assert_array_equal(values, copies[layer])


# Frozen layers


@pytest.mark.parametrize("measure", MEASURES)
def test_a_frozen_layer_is_scored_like_any_other_and_stays_frozen(measure):
    free, frozen = lab(model=seeded(TinyNet)), lab(model=seeded(TinyNet))
    layer = next(iter(frozen.param_spec.prunable))
    weight = frozen.model.get_parameter(layer)
    weight.requires_grad = False
    ours, theirs = (getattr(b.server.public, measure)(b.start) for b in (frozen, free))
    for name, scores in theirs.items():
        assert scores.any()
        assert np.array_equal(ours[name], scores), name
    assert not weight.requires_grad


def test_scores_use_batch_statistics_and_change_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.9))
    model.append(nn.Linear(4, 4)).append(nn.Linear(4, 2))
    public = public_of(model, (3, 1, 1))
    public.shard.data.images[:] = np.random.default_rng(0).random((4, 3, 1, 1), np.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    theta = public.engine.theta()
    found = public.gradients(theta)
    inputs, labels = public.engine.inputs(public.shard.data, public.shard.indices)
    flat, (first, norm, last, head) = inputs.flatten(1), (model[k] for k in (1, 2, 4, 5))
    normal = F.batch_norm(first(flat), None, None, norm.weight, norm.bias, training=True)
    loss = F.cross_entropy(head(last(normal)), labels)  # without dropout
    (expected,) = torch.autograd.grad(loss, [last.weight])
    assert np.allclose(found["4.weight"], expected.flatten().numpy(), atol=1e-7)
    assert not any(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
