"""Layer budgets by synaptic flow, by hand and beside the reference."""

import numpy as np
import pytest
import torch
from torch import nn

from fedtiny.cost.workload import layer_flow_of
from fedtiny.models import synaptic_flow
from fedtiny.sparse.densities import budget
from fedtiny.sparse.flow import LayerFlow

from ..devices.tiny import lab, random_mask, settings
from .strategies import anatomy_of

SCORES = {"a": [9, 8, 7, 1], "b": [3, 2, 2, 1]}


def by_hand(**uses):
    """Two layers of four weights whose flow does not change as others are pruned."""
    param_spec = anatomy_of(dict.fromkeys(SCORES, (4,)))
    scores = {layer: np.array(values, np.float64) for layer, values in SCORES.items()}

    def measure(mask):
        return {layer: scores[layer][mask.indices(layer)] for layer in mask}

    return LayerFlow(param_spec, uses, lambda: measure)


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
    measure = synaptic_flow.measure(network, (1,), ["0.weight", "1.weight"])
    found = measure({"0.weight": None, "1.weight": np.array([0], np.int32)})
    assert {name: values.tolist() for name, values in found.items()} == {
        "0.weight": [3.0],
        "1.weight": [3.0],
    }


def test_the_measure_is_that_of_synflow():
    bench = lab()
    measure = layer_flow_of(bench.config, **facts(bench))._measure
    for mask in (random_mask(bench.param_spec, seed=1), bench.start.mask):
        expected = bench.server.public.synaptic_flow(bench.start.remasked(mask))
        found = measure(mask)
        for layer in mask:
            np.testing.assert_allclose(found[layer], expected[layer], rtol=1e-12)


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
