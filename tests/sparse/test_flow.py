"""Layer budgets by synaptic flow, by hand and beside the reference."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from torch import nn

from fedtiny.config import Config, PruningConfig
from fedtiny.cost.network import describe
from fedtiny.cost.workload import layer_flow_of
from fedtiny.errors import FedTinyError
from fedtiny.models.synaptic_flow import SynapticFlow, prune_by
from fedtiny.sparse.densities import budget
from fedtiny.sparse.flow import LayerFlow
from fedtiny.sparse.iterative import prune_iteratively
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length

from ..devices.tiny import lab, random_mask, settings
from .strategies import anatomy_of

SCORES = {"a": [9, 8, 7, 1], "b": [3, 2, 2, 1]}


def by_hand(**uses):
    """Two layers of four weights whose flow does not change as others are pruned."""
    param_spec = anatomy_of(dict.fromkeys(SCORES, (4,)))
    flat = torch.tensor([*SCORES["a"], *SCORES["b"]], dtype=torch.float64)

    def prune(prices, totals):
        return prune_by(lambda kept: flat[kept], [4, 4], prices, totals)

    return LayerFlow(param_spec, uses, lambda: prune)


@pytest.mark.parametrize(
    ("beta", "uses", "counts"),
    [
        (0, 16, [3, 1]),  # 9, 8, 7 and the best of b
        (0.5, 16, [2, 2]),  # of 2.25, 2, 1.75, .25 and 3, 2, 2, 1; ties to the first
        (1, 16, [1, 3]),  # of .56, .5, .44, .06 and 3, 2, 2, 1
        (1, 1, [3, 1]),
        (1, 4, [2, 2]),  # as half the power of 16
    ],
)
def test_flow_is_shared_by_what_a_weight_costs(beta, uses, counts):
    for steps in (1, 5):
        assert by_hand(a=uses, b=1).counts(0.5, beta, steps).tolist() == counts


@pytest.mark.parametrize(("floor", "counts"), [(0, [3, 1]), (0.5, [3, 1]), (1, [2, 2])])
def test_a_layer_keeps_its_floor(floor, counts):
    """Uniform budgets leave two weights of each: at half of it one is enough."""
    flow = by_hand(a=16, b=1)
    floors = dict.fromkeys(flow.uses, floor)
    raised = LayerFlow(flow.param_spec, flow.uses, lambda: flow._prune, floors=floors)
    assert raised.counts(0.5, 0, 5).tolist() == counts
    assert raised.with_counts(lambda counts: counts).counts(0.5, 0, 5).tolist() == counts


def test_operations_of_layer_counts():
    assert by_hand(a=16, b=1).operations(np.array([3, 2])) == 50


def test_a_dense_model_needs_no_measure():
    flow = LayerFlow(by_hand(a=1, b=1).param_spec, {}, lambda: pytest.fail("not needed"))
    assert flow.counts(1.0, 0.5, 100).tolist() == [4, 4]


def test_counts_are_worked_out_once():
    flow = by_hand(a=4, b=1)
    assert flow.counts(0.5, 1, 3) is flow.counts(0.5, 1, 3)


def test_flow_through_three_layers_by_hand():
    """R = |w3| (|w2| (|w1| 1)): for one weight each the flow of every one is R itself."""
    network = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(3)))
    with torch.no_grad():
        for layer, value in zip(network, (2.0, -3.0, 0.5), strict=True):
            layer.weight.fill_(value)
    flow = SynapticFlow(network, (1,), ["0.weight", "1.weight"])
    assert flow.scores(torch.tensor([0, 1])).tolist() == [3.0, 3.0]
    assert flow.scores(torch.tensor([1])).tolist() == [0.0], "nothing comes in"


@settings_of_hypothesis(max_examples=30)
@given(seed=st.integers(0, 99), density=st.floats(0.1, 0.9), steps=st.integers(1, 4))
def test_pruning_by_flow_is_pruning_iteratively_with_one_threshold(seed, density, steps):
    """Also where many scores are alike."""
    param_spec = anatomy_of({"a": (5, 4), "b": (7,), "c": (2, 3)})
    values = np.random.default_rng(seed).integers(1, 5, size=(40, 33)).astype(np.float64)
    edges = np.cumsum([0, *param_spec.sizes.values()])
    uses = {"a": 9, "b": 1, "c": 4}

    def scores(positions):
        return values[len(positions), positions]  # anew with every step

    def measured(theta):
        own = [theta.mask.indices(n) + start for n, start in zip(uses, edges, strict=False)]
        found = np.split(scores(np.concatenate(own)), np.cumsum([len(v) for v in own])[:-1])
        return {n: v / uses[n] ** 0.5 for n, v in zip(uses, found, strict=True)}

    def prune(prices, totals):
        flat = [*param_spec.sizes.values()]
        return prune_by(lambda kept: torch.tensor(scores(kept.numpy())), flat, prices, totals)

    full = Mask.full(param_spec)
    theta = Theta(full, np.zeros(length(full), np.float32))
    pruned = prune_iteratively(theta, measured, density, iterations=steps, budgets="global")
    found = LayerFlow(param_spec, uses, lambda: prune).counts(density, 0.5, steps)
    assert found.tolist() == list(pruned.mask.counts.values())


def test_flow_that_is_no_number_prunes_nothing():
    with pytest.raises(FedTinyError, match="not finite, so nothing can be pruned"):
        prune_by(lambda kept: torch.full((4,), torch.nan), [2, 2], [1.0, 1.0], [3])


@pytest.mark.parametrize("normalized", [False, True])
def test_the_measure_is_that_of_synflow(normalized):
    bench = lab()
    names = tuple(bench.param_spec.prunable)
    flow = SynapticFlow(bench.model, bench.data.shape, names, normalized=normalized)
    starts = np.cumsum([0, *bench.param_spec.sizes.values()])
    for mask in (random_mask(bench.param_spec, seed=1), bench.start.mask):
        theta = bench.start.remasked(mask)
        expected = bench.server.public.synaptic_flow(theta, normalized=normalized)
        kept = np.concatenate([mask.indices(n) + s for n, s in zip(mask, starts, strict=False)])
        np.testing.assert_allclose(
            flow.scores(torch.tensor(kept)), np.concatenate([*expected.values()]), rtol=1e-12
        )


def facts(bench):
    return {"model": bench.model, "shape": bench.data.shape, "classes": 3}


def test_a_weight_is_used_once_for_every_place_of_its_filter():
    bench = lab()
    flow = layer_flow_of(bench.config, **facts(bench))
    assert flow.uses == {"conv1.weight": 16, "conv2.weight": 16, "hidden.weight": 1}


@pytest.mark.parametrize("beta", [0, 0.5, 1, 3])
def test_the_total_is_exact_and_operations_fall_with_beta(beta):
    bench = lab(settings(density=0.1))
    flow = layer_flow_of(bench.config, **facts(bench))
    counts = flow.counts(0.1, beta, 10)
    assert counts.sum() == budget(bench.param_spec, 0.1)
    assert (counts >= 1).all()
    assert flow.operations(counts) >= flow.operations(flow.counts(0.1, beta + 1, 10))


@pytest.mark.parametrize(
    ("method", "model", "asked", "normalized", "floor"),
    [
        ("fedtiny_flow", "vgg11", {}, True, 0.0),
        ("fedtiny_flow", "resnet18", {}, False, 1.0),
        ("synflow", "resnet18", {}, False, 0.0),
        ("fedtiny_flow", "resnet18", {"flow_normalize": "always"}, True, 1.0),
        ("fedtiny_flow", "resnet18", {"flow_floor": 0.5}, False, 0.5),
        ("fedtiny_flow", "vgg11", {"flow_normalize": "never"}, False, 0.0),
        ("synflow", "vgg11", {}, True, 0.0),
        ("fedtiny_flow", "vgg11", {"flow_floor": 0.5}, True, 0.0),
        ("synflow", "squeezenet", {"flow_floor": 0.25}, False, 0.0),
    ],
)
def test_what_is_normalized_is_a_chain_and_what_has_a_floor_is_a_shortcut(
    method, model, asked, normalized, floor
):
    pruning = PruningConfig(budgets="flow", **asked)
    flow = layer_flow_of(Config(method=method, model=model, width=4, pruning=pruning))
    shortcuts = [f"layer{stage}.0.shortcut.0.weight" for stage in (2, 3, 4)]
    assert flow.normalized == normalized
    assert {n: own for n, own in flow.floors.items() if own} == (
        dict.fromkeys(shortcuts, floor) if floor else {}
    )


def test_a_network_that_cannot_be_traced_is_not_taken_for_a_chain():
    class Untraced(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 8))
            self.out = nn.Linear(8, 3)

        def forward(self, x):
            return self.out(self.layers(x.flatten(1)).sort(dim=1).values)

    network = describe(Untraced(), (1, 8, 8), 3)
    assert network.not_native, "it can be traced after all"
    assert not network.is_chain
