"""The cost columns as plain data."""

import json
import subprocess
import sys

import pytest

from fedtiny import methods
from fedtiny.config import Config, DataConfig
from fedtiny.cost import flops, memory, summary

from .tiny import GIVEN, config, tiny_network, workload


@pytest.fixture(scope="module", params=sorted(methods.OURS))
def row(request):
    return summary(config(request.param), model=tiny_network(), **GIVEN)


def test_totals_are_the_sums_of_their_items(row):
    assert row["flops_round"] == sum(row["flops_items"].values())
    assert row["flops_ratio"] == row["flops_round"] / row["flops_dense_round"]
    assert row["memory_paper"] == sum(row["memory_paper_items"].values())
    assert row["memory_device"] == sum(row["memory_device_items"].values())
    assert row["selection_bytes"] == row["selection_bytes_down"] + row["selection_bytes_up"]


def test_an_adjusting_round_never_takes_fewer_bytes_than_a_plain_one(row):
    assert row["bytes_adjusting_down"] > row["bytes_down"]
    assert row["bytes_adjusting_up"] >= row["bytes_up"]


def test_a_summary_is_plain_json(row):
    assert json.loads(json.dumps(row)) == row


def test_the_costs_of_a_tiny_network():
    row = summary(config("fedtiny"), model=tiny_network(), **GIVEN)
    work = workload("fedtiny")
    assert row["flops_items"] == flops.of_round(work, 0)
    assert row["flops_exact"] == row["flops_round"] - flops.never_computed(work, 0)
    assert row["memory_device_items"] == memory.device(work)
    assert (row["kept_weights"], row["parameters"], row["pool_size"]) == (164, 375, 4)
    assert row["dense_model_bytes"] == 4 * 375


def test_a_method_that_is_not_installed_is_costed_as_plain_sparse_training():
    theirs = summary(config("theirs"), model=tiny_network(), **GIVEN)
    plain = summary(config("fl_pqsu"), model=tiny_network(), **GIVEN)
    assert theirs["flops_items"] == plain["flops_items"]
    assert theirs["memory_device_items"] == plain["memory_device_items"]
    assert "'theirs' is not installed here" in theirs["notes"][0]
    assert not any("installed" in note for note in plain["notes"])


def test_a_missing_constant_is_told_where_it_would_count():
    assert "none is added" in summary(config("snip"), model=tiny_network(), **GIVEN)["notes"][0]
    assert summary(config("fedavg"), model=tiny_network(), **GIVEN)["notes"] == []
    assert summary(config("snip", model="resnet18"))["notes"] == []


def test_settings_left_open_are_the_presets():
    row = summary(Config(method="fedavg", data=DataConfig(name="cifar10")))
    assert row["flops_round"] == 3 * 2 * 555_422_720 * 5 * 5_000
    quick = summary(Config(method="fedavg"), shape=(1, 8, 8), samples=100)
    assert quick["parameters"] < row["parameters"] / 10


def test_images_too_small_for_a_network_are_taken_for_resized():
    small, fitting = (
        summary(config("snip", model="vgg11", width=4), shape=(1, side, side)) for side in (8, 32)
    )
    assert small == fitting


def test_torch_is_loaded_only_to_look_at_a_network():
    code = "import sys, fedtiny.cost, fedtiny.cli.cost; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
