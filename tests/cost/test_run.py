"""What is predicted is what a run counts."""

import json

import pytest

from fedtiny.config import (
    Config,
    DataConfig,
    FleetConfig,
    PruningConfig,
    SelectionConfig,
    TrainConfig,
)
from fedtiny.cost import Workload, traffic
from fedtiny.cost.workload import CountedMask
from fedtiny.devices import torch_public
from fedtiny.models import synaptic_flow
from fedtiny.runs.reporter import Silent
from fedtiny.runs.runner import run

from ..runs.tiny import tiny, train

DEVICES = 4
NEW_MASK_ROUNDS = {"fedtiny": {0, 1}, "prunefl": {0, 1}, "feddst": {0, 1}, "fedavg": {0}}


def short_run(method, out):
    config = Config(
        method=method,
        model="small",
        width=8,
        density=0.2,
        rounds=3,
        workers=1,
        data=DataConfig(limit_train=290),
        fleet=FleetConfig(devices=DEVICES, partition="iid"),
        train=TrainConfig(local_epochs=1, batch_size=16),
        selection=SelectionConfig(pool_size=5),
        pruning=PruningConfig(delta_r=2, r_stop=8),
    )
    return run(config, out=out, reporter=Silent())


def with_layer_counts(work, record):
    """No round changes how many weights a layer keeps; FedTiny's candidate chose the numbers."""
    sizes = work.network.param_spec.sizes
    counts = {layer: round(d * sizes[layer]) for layer, d in record["densities"].items()}
    return work.under(CountedMask(work.network.param_spec, counts))


@pytest.mark.parametrize("method", sorted(NEW_MASK_ROUNDS))
def test_the_bytes_of_a_run(method, tmp_path):
    result = short_run(method, tmp_path / "run")
    work = Workload.of(result.config, shape=(1, 8, 8), classes=10, samples=60)
    work = with_layer_counts(work, result.metrics[0])
    for record in result.metrics:
        round = record["round_number"] - 1
        new = round in NEW_MASK_ROUNDS[method]
        found = traffic.training_round(work, round, new_mask=new)
        assert record["bytes_down"] / DEVICES == pytest.approx(found.down, rel=0.005)
        assert record["bytes_up"] / DEVICES == pytest.approx(found.up, rel=0.005)
    if method == "fedtiny":
        selection = traffic.selection(work)
        assert result.selection["bytes_down"] / DEVICES == pytest.approx(selection.down, rel=0.01)
        assert result.selection["bytes_up"] / DEVICES == selection.up


@pytest.mark.parametrize(
    ("method", "changes", "passes"),
    [
        ("synflow", {}, 100),
        ("synflow", {"pruning": {"budgets": "flow"}}, 200),
        ("fl_pqsu", {"pruning": {"budgets": "flow"}}, 100),
        ("fedtiny_flow", {}, 201),
        ("fedtiny_flow", {"pruning": {"budgets": "uniform"}}, 101),
        ("fedtiny", {"selection": {"pool": "flow"}}, 201),
        ("fedtiny_flow", {"flops_budget": "40%"}, None),
    ],
)
def test_the_passes_of_the_server_are_those_it_made(method, changes, passes, tmp_path, monkeypatch):
    made, plain = [], synaptic_flow.flow

    def counted(*given, **named):
        made.append(1)
        return plain(*given, **named)

    for place in (synaptic_flow, torch_public):
        monkeypatch.setattr(place, "flow", counted)
    train(tiny(method=method, rounds=1, **changes), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "about.json").read_text())["server"]
    assert told["server_passes"] == len(made)
    assert passes == len(made) if passes else len(made) > 201
    assert told["pretraining_passes"] == 3 * 50
