"""FLOPs by layer, by method and by round."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from fedtiny import models
from fedtiny.cost import Workload, flops, layers
from fedtiny.cost.workload import CountedMask
from fedtiny.devices.torch_gradients import top_gradients
from fedtiny.federation.verbs import TopGradients
from fedtiny.methods import OURS
from fedtiny.sparse.mask import Mask

from .tiny import CLASSES, GIVEN, SHAPE, config, tiny_network, workload

IMAGES = 2 * 20  # epochs x samples
DENSE = 2 * (288 + 128 + 320 + 15)  # one forward pass of one image
HALF = 2 * (288 + 64 + 160 + 15)  # the same at density 0.5: the first and last layer stay dense


def swapped(work, round):
    """The gradients that a round asks for, by layer."""
    return {
        layer: count
        for verb in work.program(round)
        if isinstance(verb, TopGradients)
        for layer, count in verb.counts.items()
    }


def test_layers_by_hand():
    first, convolution, linear, last = workload(density=0.5).load.layers
    assert [layer.kept for layer in (first, convolution, linear, last)] == [18, 4, 160, 15]
    assert [layer.forward for layer in (first, convolution, linear, last)] == [576, 128, 320, 30]
    assert [layer.dense for layer in (first, convolution, linear, last)] == [576, 256, 640, 30]
    rows = layers(config(), model=tiny_network(), **GIVEN)
    assert rows[1] == {
        "density": 0.5,
        "name": "3",
        "kept": 4,
        "forward": 128,
        "input_gradient": 128,
        "weight_gradient": 128,
        "dense": 256,
    }


def test_a_round_by_hand():
    part = IMAGES * HALF
    items = {"forward": part, "input_gradient": part, "weight_gradient": part}
    assert flops.of_round(workload(), round=0) == items
    assert flops.dense_round(workload()) == 3 * IMAGES * DENSE
    assert flops.never_computed(workload(), 0) == IMAGES * 576


def test_the_products_of_attention_count_in_full_at_every_density():
    network = models.build("vit_tiny", (3, 8, 8), 10, width=8)
    inputs = {"model": network, "shape": (3, 8, 8), "classes": 10, "samples": 20}
    sparse, dense = (Workload.of(config(density=d), **inputs) for d in (0.1, 1.0))
    products = 2 * dense.network.profile.other_macs
    assert products == 4 * 2 * 2 * 64 * 64 * 8, "four blocks of two products over 64 tokens"
    for work in (sparse, dense):
        layers = sum(layer.forward for layer in work.load.layers)
        assert flops.of_round(work, 0)["forward"] == IMAGES * (layers + products)
    assert sum(flops.of_round(dense, 0).values()) == flops.dense_round(dense)


@pytest.mark.parametrize("method", ["fedavg", "lotteryfl"])
def test_a_method_that_starts_dense_counts_as_dense(method):
    work = workload(method, density=0.1)
    assert sum(flops.of_round(work, 0).values()) == flops.dense_round(work)


def test_prunefl_computes_full_gradients_of_every_batch_in_an_adjusting_round():
    work = workload("prunefl")
    assert flops.of_round(work, 2)["full_gradients"] == IMAGES * 2 * (64 + 160)
    assert "full_gradients" not in flops.of_round(work, 1)
    assert "full_gradients" not in flops.of_round(work, 8)  # a = 0 at r_stop


def test_feddst_computes_full_gradients_of_one_batch_of_all_layers():
    """Forward, back to the first prunable layer, and the weight gradients of both."""
    one = HALF + 2 * (160 + 15) + 2 * (128 + 320)
    assert flops.of_round(workload("feddst"), 2)["top_a_pass"] == 8 * one


def test_fedtiny_computes_full_gradients_of_one_batch_of_one_block():
    work = workload("fedtiny")
    assert swapped(work, 0) == {"5.weight": 48}  # floor(0.3 x 160); backward: the last block first
    assert flops.of_round(work, 0)["top_a_pass"] == 8 * (HALF + 2 * 15 + 2 * 320)
    assert swapped(work, 2) == {"3.weight": 1}
    assert flops.of_round(work, 2)["top_a_pass"] == 8 * (HALF + 2 * (160 + 15) + 2 * 128)
    assert flops.costliest_round(work) == 0
    assert swapped(workload("fedtiny", pruning={"progressive": False}), 0) == {}


@pytest.mark.parametrize("block", [0, 1])
def test_the_top_a_pass_is_what_pytorch_counts_where_all_weights_but_one_are_kept(block):
    network = models.build("small", (3, 16, 16), 10, width=8)
    work = Workload.of(
        config("fedtiny", model="small", width=8), shape=(3, 16, 16), classes=10, samples=20
    )
    param_spec = work.network.param_spec
    mask = Mask(param_spec, {name: np.arange(size - 1) for name, size in param_spec.sizes.items()})
    counts = dict.fromkeys(param_spec.blocks[block], 1)
    with FlopCounterMode(display=False) as counted:
        inputs = torch.zeros(8, 3, 16, 16)
        top_gradients(network.train(), inputs, torch.zeros(8, dtype=torch.int64), mask, counts)
    round = 2 if block == 0 else 0
    assert swapped(work.under(mask), round) == counts
    predicted = flops.of_round(work.under(mask), round)["top_a_pass"]
    assert predicted == pytest.approx(counted.get_total_flops(), rel=0.005)


def test_selection_by_hand():
    """Four candidates, five development images, a pass for batch norm and one for the loss."""
    assert flops.selection(workload("fedtiny")) == 4 * 2 * 5 * HALF
    three_passes = workload("fedtiny", selection={"passes": 3})
    assert flops.selection(three_passes) == 4 * 4 * 5 * HALF
    assert flops.selection(workload("fedtiny", selection={"kind": "vanilla"})) == 4 * 5 * HALF
    assert flops.selection(workload("fedtiny", selection={"kind": "none"})) == 0
    assert flops.selection(workload("snip")) == 0


def test_selection_under_the_pool_that_was_drawn():
    """Two passes of five images through four candidates: those of 4 and 160 weights, and denser."""
    work = workload("fedtiny")
    spec = work.network.param_spec
    pool = [CountedMask(spec, {"3.weight": 4 + n, "5.weight": 160}) for n in range(4)]
    assert flops.selection(work, pool[:1] * 4) == flops.selection(work)
    assert flops.selection(work, pool) == 2 * 5 * (4 * HALF + 2 * 16 * (1 + 2 + 3))


@pytest.mark.parametrize(
    ("method", "gradients"),
    [("fl_pqsu", 0), ("snip", 100 * 15), ("synflow", 100), ("grasp", 3 * 15), ("fedtiny", 0)],
)
def test_the_servers_work_by_hand(method, gradients):
    """Three epochs on 5 images of each of 3 classes; ten devices' values are averaged."""
    work = workload(method)
    assert flops.server(work) == {
        "pretraining": 3 * 15 * 3 * DENSE,
        "coarse_pruning": gradients * 3 * DENSE,
        "averaging": 2 * 10 * (164 + work.network.param_spec.dense_count),
    }


@given(density=st.floats(0.02, 1), method=st.sampled_from(sorted({*OURS} - {"small_model"})))
def test_no_method_takes_more_than_a_dense_round_and_a_pass(density, method):
    work = workload(method, density)
    found = sum(flops.of_round(work, flops.costliest_round(work)).values())
    passes = 3 if method == "fedfit" else 1  # it scores kept weights in two
    both_ends = 3 * IMAGES * 2 * (288 + 15)
    dense = flops.dense_round(work) + passes * 3 * work.load.batch * DENSE
    assert both_ends < found <= dense


def test_a_run_costs_what_its_mask_keeps():
    work = workload("lotteryfl")
    param_spec = work.network.param_spec
    kept = {"3.weight": np.arange(2), "5.weight": np.arange(10)}
    items = flops.of_round(work.under(Mask(param_spec, kept)), round=5)
    assert items["forward"] == IMAGES * 2 * (288 + 2 * 16 + 10 + 15)


def test_the_small_model_is_compared_with_the_large_one():
    settings = config("small_model", density=0.01, model="resnet18")
    work = Workload.of(settings, shape=(3, 32, 32), classes=10, samples=100)
    assert work.network.profile.layers[0].shape == (34, 3, 3, 3)
    assert work.network.profile.parameters == 106_804  # the next width has 113,095
    assert work.kept == work.network.param_spec.prunable_count
    assert flops.dense_round(work) == 3 * 2 * 555_422_720 * 2 * 100


def test_a_network_of_ones_own_keeps_its_classes():
    work = Workload.of(config(), model=tiny_network(), **GIVEN)
    assert (work.network.classes, work.public) == (CLASSES, 15)
    assert work.network.profile.layers[0].shape[1] == SHAPE[0]
