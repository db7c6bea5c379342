"""Memory as the paper counts it and as a device needs it."""

import numpy as np
import pytest

from fedtiny.cost import Workload, memory
from fedtiny.sparse.mask import Mask

from .tiny import config, workload

KEPT, DENSE = 164, 47  # of 328 prunable weights; 47 biases, norm scales and end-layer weights
PARAMETERS = 328 + DENSE


def test_the_paper_counts_seven_bytes_a_kept_weight_and_four_a_dense_one():
    assert memory.paper(workload()) == {
        "weights": 7 * KEPT + 4 * DENSE,
        "gradients": 7 * KEPT + 4 * DENSE,
        "constant": 0,
    }


@pytest.mark.parametrize("method", ["fedavg", "lotteryfl"])
def test_the_paper_counts_eight_bytes_a_parameter_of_a_dense_model(method):
    assert memory.total(workload(method), "paper") == 8 * PARAMETERS
    assert memory.total(workload("snip", density=1.0), "paper") == 8 * PARAMETERS


def test_the_paper_gives_prunefl_full_gradients():
    items = memory.paper(workload("prunefl"))
    assert items["weights"] == 7 * KEPT + 4 * DENSE
    assert items["gradients"] == 4 * PARAMETERS


@pytest.mark.parametrize(
    ("model", "width", "constant"),
    [
        ("resnet18", None, 1_050_000),
        ("resnet18", 64, 1_050_000),
        ("resnet18", 16, 0),
        ("vgg11", None, 2_480_000),
        ("vgg11_small", None, 0),
    ],
)
def test_the_papers_constant_is_known_for_its_own_networks_only(model, width, constant):
    work = Workload.of(config(model=model, width=width, density=0.01))
    assert memory.paper(work)["constant"] == constant


def test_the_items_of_a_device_by_hand():
    trained, statistics = KEPT + DENSE, 4
    assert memory.device(workload()) == {
        "weights": 4 * trained,
        "indices": 4 * KEPT,
        "gradients": 4 * trained,
        "optimizer_state": 8 * trained,
        "batch_norm_statistics": 4 * statistics,
        "activations": 8 * 4 * (16 + 32 + 32 + 64 + 5) + 4 * 4,
    }


def test_sgd_holds_half_the_state_of_adam():
    adam, sgd = (memory.device(workload(optimizer=name)) for name in ("adam", "sgd"))
    assert adam["optimizer_state"] == 2 * sgd["optimizer_state"] == 8 * (KEPT + DENSE)


def test_a_dense_model_needs_no_positions():
    assert memory.device(workload("fedavg"))["indices"] == 0
    param_spec = workload().network.param_spec
    one_full = Mask(param_spec, {"3.weight": None, "5.weight": np.arange(10)})
    assert memory.device(workload().under(one_full))["indices"] == 4 * 10


def test_a_device_with_few_samples_has_a_small_batch():
    few = Workload.of(config("fedavg", model="small"), samples=5)
    eight = Workload.of(config("fedavg", model="small"), samples=20)
    per_image = few.network.profile.activation_bytes
    difference = memory.device(eight)["activations"] - memory.device(few)["activations"]
    assert difference == 3 * per_image


def test_fedtiny_holds_the_top_a_of_its_largest_block():
    """48 of the linear layer; the slab is 4 x 48 values, three of its five filters."""
    items = memory.device(workload("fedtiny"))
    assert items["top_a_buffer"] == 8 * 48
    assert items["gradient_slab"] == 4 * (4 * 48)


def test_feddst_holds_the_top_a_of_all_layers():
    assert memory.device(workload("feddst"))["top_a_buffer"] == 8 * (48 + 1)


def test_prunefl_holds_the_sums_of_all_gradients_and_one_layers_gradient():
    items = memory.device(workload("prunefl"))
    assert items["gradient_sums"] == 4 * 328
    assert items["gradient_slab"] == 4 * 320


def test_a_method_that_never_adjusts_holds_nothing_for_it():
    plain = memory.device(workload("fl_pqsu"))
    assert memory.device(workload("fedtiny", pruning={"progressive": False})) == plain
