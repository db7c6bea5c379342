"""FL-PQSU, SNIP, SynFlow and GraSP: which weights the server keeps, by hand and by autograd."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from fedtiny import methods
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.federation.rounds import federate, prepare
from fedtiny.federation.server import Server
from fedtiny.models import build
from fedtiny.models.networks import ResidualBlock
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.densities import budget, uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length

from ..devices.tiny import CLASSES, SIDE, Smooth, lab, seeded, settings
from ..federation.fakes import FakeTransport

ON_THE_SERVER = ("fl_pqsu", "snip", "synflow", "grasp")
BY_SCORE = ("snip", "synflow", "grasp")
every_method = pytest.mark.parametrize("method", ON_THE_SERVER)
every_score = pytest.mark.parametrize("method", BY_SCORE)


def prepared(method, model=None, density=0.2, **pruning):
    """A bench whose server has pruned, before any round."""
    config = settings(method=method, density=density, pruning=pruning)
    bench = lab(config, model=model)
    prepare(bench.server, bench.method)
    return bench


def kept(theta):
    return {layer: theta.mask.indices(layer).tolist() for layer in theta.mask}


# What they share


@every_method
@pytest.mark.parametrize("scope", ["uniform", "global"])
def test_kept_weights_are_the_pretrained_ones_and_nothing_dense_changed(method, scope):
    bench = prepared(method, budgets=scope)
    theta, start = bench.server.theta, bench.start
    assert theta.mask.count == budget(bench.param_spec, 0.2)
    for layer in theta.mask:
        assert np.array_equal(theta.kept(layer), start.kept(layer)[theta.mask.indices(layer)])
        assert theta.mask.kept(layer) >= 1
    for name in bench.param_spec.dense:
        assert np.array_equal(theta.tensor(name), start.tensor(name))


@every_method
def test_every_layer_has_the_target_density(method):
    bench = prepared(method)
    counts = list(bench.server.theta.mask.counts.values())
    assert counts == uniform(bench.param_spec, 0.2).tolist()


@every_method
def test_no_device_is_asked_and_the_mask_stays_for_good(method):
    bench = prepared(method)
    assert bench.server.traffic.down == bench.server.traffic.up == 0
    mask = bench.server.theta.mask
    results = list(federate(bench.server, bench.method, 2))
    assert bench.server.theta.mask == mask
    assert [result.changes for result in results] == [{}, {}]
    assert bench.method.summary(bench.server) == {}


@every_method
def test_a_density_that_empties_a_layer_is_refused_in_time(method):
    bench = lab()
    with pytest.raises(ConfigError, match="leaves 1 weights for 3 prunable layers"):
        methods.create(settings(method=method, density=0.002)).check(bench.param_spec)


@every_score
def test_without_a_public_set_there_is_no_score(method):
    bench = lab(settings(method=method))
    server = Server(bench.config, bench.transport, bench.start)
    with pytest.raises(FedTinyError, match=f"method '{method}' needs a public set"):
        prepare(server, bench.method)


# FL-PQSU


def test_fl_pqsu_keeps_the_two_larger_of_three_weights():
    param_spec = ParamSpec(
        prunable={"a": (3,), "b": (3, 1)},
        dense={"bias": (1,)},
        blocks=(("a",), ("b",)),
        norms=(),
        input_layer="first",
        output_layer="last",
    )
    mask = Mask.full(param_spec)
    theta = Theta(mask, np.array([0.5, -2, 1, 30, 10, -20, 7], np.float32))
    assert length(mask) == 7
    config = settings(method="fl_pqsu", density=2 / 3)
    server = Server(config, FakeTransport(), theta)
    prepare(server, methods.create(config))
    assert kept(server.theta) == {"a": [1, 2], "b": [0, 2]}
    assert server.theta.vector.tolist() == [-2, 1, 30, -20, 7]


# SNIP


def public_loss(bench, model):
    """The mean loss on the six public images as they are, in float64."""
    pixels = torch.from_numpy(bench.data.train.images[:6]).double()
    inputs = (pixels / 255 - bench.data.mean[0]) / bench.data.std[0]
    labels = torch.from_numpy(bench.data.train.labels[:6])
    return F.cross_entropy(model.eval()(inputs), labels)


def gradients(bench, model, create_graph=False):
    weights = {name: model.get_parameter(name) for name in bench.param_spec.prunable}
    loss = public_loss(bench, model)
    found = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
    return dict(zip(weights, found, strict=True))


def sensitivity(bench, model):
    """|g w|, all by autograd."""
    return {
        name: (g * model.get_parameter(name)).abs().detach().flatten()
        for name, g in gradients(bench, model).items()
    }


def snip_by_hand(density, steps, scope):
    """The plainest SNIP there is: score, sort, put zeros, and again."""
    bench = lab(settings(method="snip", density=density), model=seeded(Smooth))
    model = copy.deepcopy(bench.model).double()
    sizes = bench.param_spec.sizes
    alive = {name: torch.ones(size, dtype=torch.bool) for name, size in sizes.items()}
    for step in range(1, steps + 1):
        scores = {
            name: torch.where(alive[name], values, -1.0)
            for name, values in sensitivity(bench, model).items()
        }
        share = density ** (step / steps)
        for name, count in layer_counts(scores, bench.param_spec, share, scope).items():
            best = scores[name].argsort(descending=True)[:count]
            alive[name] = torch.zeros(sizes[name], dtype=torch.bool).index_fill(0, best, True)
            model.get_parameter(name).data.view(-1)[~alive[name]] = 0
    return {name: torch.nonzero(bits).flatten().tolist() for name, bits in alive.items()}


def layer_counts(scores, param_spec, share, scope):
    if scope == "uniform":
        return dict(zip(scores, uniform(param_spec, share).tolist(), strict=True))
    floor = torch.cat(list(scores.values())).sort(descending=True).values
    threshold = floor[budget(param_spec, share) - 1]
    return {name: int((values >= threshold).sum()) for name, values in scores.items()}


@pytest.mark.parametrize("scope", ["uniform", "global"])
@pytest.mark.parametrize(("density", "steps"), [(0.5, 1), (0.34, 3), (0.5, 4)])
def test_snip_keeps_the_highest_sensitivity_by_hand(density, steps, scope):
    bench = prepared("snip", seeded(Smooth), density, iterations=steps, budgets=scope)
    assert kept(bench.server.theta) == snip_by_hand(density, steps, scope)


def test_snip_is_neither_magnitude_nor_gradient():
    """Else the test above would prove little."""
    snip = kept(prepared("snip", seeded(Smooth), 0.5, iterations=1).server.theta)
    assert snip != kept(prepared("fl_pqsu", seeded(Smooth), 0.5).server.theta)
    bench = lab(model=seeded(Smooth))
    slopes = gradients(bench, copy.deepcopy(bench.model).double())
    steepest = {
        n: sorted(g.abs().flatten().argsort(descending=True)[:3].tolist())
        for n, g in slopes.items()
    }
    assert snip != steepest


def test_scoring_anew_makes_a_difference():
    once, often = (prepared("snip", density=0.05, iterations=n).server.theta for n in (1, 20))
    assert once.mask != often.mask


# GraSP


def grasp_scores(bench, model):
    """w (H g), by differentiating the gradient's squared length: its gradient is 2 H g."""
    weights = {name: model.get_parameter(name) for name in bench.param_spec.prunable}
    slopes = gradients(bench, model, create_graph=True)
    length = sum((g**2).sum() for g in slopes.values())
    twice = torch.autograd.grad(length, list(weights.values()))
    return {
        name: (w * h / 2).detach().flatten()
        for (name, w), h in zip(weights.items(), twice, strict=True)
    }


def test_grasp_keeps_the_highest_products_signs_and_all():
    bench = prepared("grasp", seeded(Smooth, seed=1), 0.5)
    scores = grasp_scores(bench, copy.deepcopy(lab(model=seeded(Smooth, seed=1)).model).double())
    for layer, values in scores.items():
        expected = sorted(values.argsort(descending=True)[:3].tolist())
        assert bench.server.theta.mask.indices(layer).tolist() == expected
    every = torch.cat(list(scores.values()))
    assert (every > 0).any()
    assert (every < 0).any()


def test_grasp_s_scores_are_not_ranked_by_size():
    bench = lab(model=seeded(Smooth, seed=1))
    scores = grasp_scores(bench, copy.deepcopy(bench.model).double())
    largest = {n: sorted(v.abs().argsort(descending=True)[:3].tolist()) for n, v in scores.items()}
    assert kept(prepared("grasp", seeded(Smooth, seed=1), 0.5).server.theta) != largest


def test_a_weight_that_grasp_keeps_holds_the_gradient_up():
    """Shrinking the best weight by a little costs gradient, shrinking the worst adds some."""
    bench = lab(model=seeded(Smooth, seed=1))
    model = copy.deepcopy(bench.model).double()
    found = methods.grasp.flow_kept(bench.server.public, bench.start)

    def squared_length(network):
        return sum(float((g**2).sum()) for g in gradients(bench, network).values())

    changes = {}
    for layer, scores in found.items():
        for position, score in enumerate(scores.ravel()):
            less = copy.deepcopy(model)
            less.get_parameter(layer).data.view(-1)[position] *= 1 - 1e-4
            loss = (squared_length(model) - squared_length(less)) / 1e-4
            changes[layer, position] = (loss, 2 * float(score))
    lost, told = map(np.array, zip(*changes.values(), strict=True))
    np.testing.assert_allclose(lost, told, rtol=0.02, atol=1e-3 * np.abs(told).max())


def test_grasp_prunes_in_one_shot_whatever_the_iterations():
    one, many = (prepared("grasp", iterations=n).server.theta for n in (1, 50))
    assert one.version == many.version


# SynFlow


def test_synflow_needs_no_data():
    bench = prepared("synflow")
    other = lab(settings(method="synflow"))
    other.server.public.shard.data.images.setflags(write=True)
    other.server.public.shard.data.images[:] = 255 - other.data.train.images
    prepare(other.server, other.method)
    assert bench.server.theta.mask == other.server.theta.mask


@pytest.mark.parametrize("scope", ["uniform", "global"])
def test_synflow_leaves_resnet18_its_shortcuts(scope):
    """Zero-initialised gammas and odd statistics would stop the flow if batch norm counted."""
    model = build("resnet18", (1, SIDE, SIDE), CLASSES, width=4)
    for module in model.modules():
        if isinstance(module, ResidualBlock):
            module.bn2.weight.data.zero_()
            module.bn1.running_var.fill_(1e-4)
    bench = prepared("synflow", model, 0.05, iterations=10, budgets=scope)
    counts = bench.server.theta.mask.counts
    shortcuts = {layer: count for layer, count in counts.items() if "shortcut" in layer}
    sizes = bench.param_spec.sizes
    assert len(shortcuts) == 3
    for layer, count in shortcuts.items():
        assert count >= 0.05 * sizes[layer] - 1, "not below the share of the others"
    flow = bench.server.public.synaptic_flow(bench.server.theta)
    assert all((flow[layer] > 0).any() for layer in shortcuts)
    assert scope == "global" or all((scores > 0).any() for scores in flow.values())


class Tower(nn.Module):
    """Residual blocks deep and wide enough that their flow leaves the range of float32."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(8, 8, 1) for _ in range(8)))
        self.head = nn.Linear(8, CLASSES)
        for parameter in self.parameters():
            parameter.data.mul_(200)

    def forward(self, x):
        x = F.avg_pool2d(x, 4)
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def test_synflow_stays_finite_over_a_hundred_steps():
    config = settings(method="synflow", density=0.05, pruning={"iterations": 100})
    bench = lab(config, model=seeded(Tower))
    seen, plain = [], bench.server.public.synaptic_flow

    def spy(theta, *, normalized):
        assert not normalized
        scores = plain(theta)
        seen.append((theta.mask.count, [values.max() for values in scores.values()]))
        assert all(np.isfinite(values).all() for values in scores.values())
        return scores

    bench.server.public.synaptic_flow = spy
    prepare(bench.server, bench.method)
    assert len(seen) == 100
    assert max(seen[0][1]) > np.finfo(np.float32).max
    assert min(highest for _, each in seen for highest in each) > 0, "no layer without flow"
    counts = [count for count, _ in seen]
    assert counts == sorted(counts, reverse=True)


@every_score
def test_the_engine_s_network_is_left_as_the_server_s_model_was(method):
    bench = lab(settings(method=method))
    statistics = {name: bench.start.tensor(name).copy() for name in bench.param_spec.dense}
    kinds = {name: values.dtype for name, values in bench.model.state_dict().items()}
    prepare(bench.server, bench.method)
    held = bench.model.state_dict()
    assert {name: values.dtype for name, values in held.items()} == kinds
    for name, values in statistics.items():
        assert np.array_equal(held[name].numpy(), values), name
    assert all(p.grad is None for p in bench.model.parameters())
